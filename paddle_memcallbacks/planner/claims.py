"""The claims on storages that a watched step shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paddle_memcallbacks.planner.holdings import Claim
from paddle_memcallbacks.planner.markers import FORWARD_BEGIN, FORWARD_END, Call, Marker
from paddle_memcallbacks.planner.measured import Condition
from paddle_memcallbacks.planner.saved import Slot, Watched


class StepClaims:
    """Reads a watched step's claims, in segments (segment i ends at marker i).

    Args:
        watched: what the step saved.
        markers: the step's markers.
        choice_of: layer name -> name of the choice that changes it; default: the layer's own.
    """

    def __init__(self, watched: Watched, markers: Sequence[Marker], choice_of: Mapping[str, str] | None = None) -> None:
        self._watched = watched
        self._choice_of = choice_of or {}
        self._last = len(markers) - 1
        self._begun = {Call(m.unit, m.call): i for i, m in enumerate(markers) if m.kind == FORWARD_BEGIN}
        self._ended = {Call(m.unit, m.call): i for i, m in enumerate(markers) if m.kind == FORWARD_END}
        self._slots: dict[Call, list[Slot]] = {}
        for slot in watched.slots:
            for call in slot.calls:
                self._slots.setdefault(call, []).append(slot)
        self._passes = sorted(
            (again, self._name(call)) for call in self._slots if (again := self._second_pass(call)) is not None
        )
        self._uses = sorted(slot.unpacked for slot in watched.slots if slot.unpacked is not None)
        self._forwards = sorted(self._begun.values())

    def second_passes(self) -> list[tuple[int, Call]]:
        """(segment, call) in the order in which backward comes to each call; there its second pass would run."""
        first = [
            min((slot for slot in slots if slot.order >= 0), key=lambda slot: slot.order, default=None)
            for slots in self._slots.values()
        ]
        # where a unit ends in an inner one both begin with the same tensor: the inner one comes last
        begun = [
            (slot.order, len(slot.calls) if call == slot.calls[-1] else slot.calls.index(call), slot.unpacked, call)
            for call, slot in zip(self._slots, first, strict=True)
            if slot is not None and slot.unpacked is not None
        ]
        return [(segment, call) for _, _, segment, call in sorted(begun, key=lambda entry: entry[:2])]

    def claims(self, kept_bytes: dict[Call, int], *, instant: bool = False) -> Iterator[Claim]:
        """Every claim on every storage.

        Args:
            kept_bytes: what each call keeps beside its inputs when its unit is recomputed (copies of buffers).
            instant: take what is alive at the very beginning of each segment; else what a peak inside it meets.
        """
        for slot in self._watched.slots:
            if slot.storage not in self._watched.fixed:
                yield from self._saved(slot, instant)
        for call, storages in self._watched.arguments.items():
            if call.unit in self._choice_of:
                # a replacement keeps what it keeps: its bytes are in kept_bytes
                continue
            for storage, storage_bytes in storages:
                if storage not in self._watched.fixed:
                    yield from self._kept(call, self._begun[call] + 1, storage, storage_bytes, instant)
        for call, extra_bytes in kept_bytes.items():
            yield from self._kept(call, self._ended[call] + 1, ("kept", call), extra_bytes, instant)
        for seen in self._watched.seen:
            if seen.storage not in self._watched.fixed:
                last = min(seen.died - (not instant), self._last)
                yield Claim(seen.storage, seen.storage_bytes, seen.born, last)

    def _saved(self, slot: Slot, instant: bool) -> Iterator[Claim]:
        """The tensor that an operator saved, and the copies that the units around it make of it in a second pass."""
        first, released = slot.packed + 1, min(slot.released, self._last)
        inside = frozenset(self._name(call) for call in slot.calls)
        yield Claim(slot.storage, slot.storage_bytes, first, released, Condition(None, inside) if inside else None)
        for call in slot.calls:
            if call.unit in self._choice_of:
                continue
            again = self._second_pass(call)
            arguments = {storage for storage, _ in self._watched.arguments.get(call, ())}
            if again is not None and slot.storage not in arguments:
                begin = max(first, again + instant)
                yield Claim((slot.storage, call), slot.storage_bytes, begin, released, Condition(self._name(call)))
            elif again is not None:
                # the second pass saves the input itself
                yield Claim(slot.storage, slot.storage_bytes, max(first, again), released, Condition(self._name(call)))

    def _kept(self, call: Call, first: int, storage: object, storage_bytes: int, instant: bool) -> Iterator[Claim]:
        """What a recomputed call keeps: until backward has passed it and come to the next recomputed unit."""
        slots = self._slots.get(call)
        if not slots:
            return
        if any(slot.unpacked is None for slot in slots):
            died = min(max(slot.died for slot in slots), self._last)
            yield Claim(storage, storage_bytes, first, died, Condition(self._name(call)))
            return
        done = max(slot.released for slot in slots)
        yield Claim(storage, storage_bytes, first, done, Condition(self._name(call)))
        if storage_bytes < 0:
            return
        since: set[str] = set()
        begin, end = done + 1, self._backward_end(done)
        for again, unit in self._passes:
            later = again + instant
            if unit == self._name(call) or again < done or later > end:
                continue
            if later > begin:
                yield Claim(storage, storage_bytes, begin, later - 1, Condition(self._name(call), frozenset(since)))
                begin = later
            since.add(unit)
        yield Claim(storage, storage_bytes, begin, end, Condition(self._name(call), frozenset(since)))

    def _name(self, call: Call) -> str:
        return self._choice_of.get(call.unit, call.unit)

    def _second_pass(self, call: Call) -> int | None:
        times = [slot.unpacked for slot in self._slots.get(call, ()) if slot.unpacked is not None]
        return min(times) if times else None

    def _backward_end(self, time: int) -> int:
        """The segment in which the backward that is under way in segment ``time`` ends."""
        following = next((begin for begin in self._forwards if begin > time), self._last)
        return max(use for use in self._uses if use <= following)
