"""What measured steps said of a model: plain data, no paddle.

A step is cut into segments by markers: a unit's forward begins, ends, its output's first gradient arrives, the
optimizer steps. The peak of a segment is what the step holds there plus a transient. What is held depends on which
units are recomputed, and every held storage says how: it is alive while any of its conditions is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Condition:
    """True where ``needs`` (if given) is recomputed and no unit of ``none_of`` is.

    An operator inside units u and v that saves a tensor: ``none_of = {u, v}``. The inputs that a recomputed unit u
    keeps: ``needs = u``. What u still holds until the next recomputed unit's second pass: ``needs = u``, ``none_of`` =
    those whose second pass came since.
    """

    needs: str | None = None
    none_of: frozenset[str] = frozenset()

    def true(self, chosen: frozenset[str]) -> bool:
        """Whether it holds when the units ``chosen`` are recomputed."""
        return (self.needs is None or self.needs in chosen) and self.none_of.isdisjoint(chosen)

    def implies(self, other: Condition) -> bool:
        """Whether ``other`` is true wherever this is."""
        return other.needs in (None, self.needs) and other.none_of <= self.none_of


@dataclass(frozen=True)
class Holding:
    """Bytes that live through the segments ``first`` to ``last`` (both included) while any of its conditions is true.

    Attributes:
        held_bytes: the bytes.
        first: index of the first segment.
        last: index of the last segment.
        any_of: the conditions.
    """

    held_bytes: int
    first: int
    last: int
    any_of: frozenset[Condition]

    def alive(self, chosen: frozenset[str]) -> bool:
        """Whether the bytes are held when the units ``chosen`` are recomputed."""
        return any(condition.true(chosen) for condition in self.any_of)


@dataclass(frozen=True)
class Segment:
    """The part of a step between two markers.

    Attributes:
        key: the marker that ends it, e.g. ``backward_begin encoder.layers.3 0``; the same at every size.
        phase: ``forward``, ``backward`` or ``step``.
        transient_bytes: the segment's peak less what is held, when no owner is recomputed.
        owner_transient_bytes: the same for each owner, when that owner is recomputed. Owners are the units inside which
            (or right after which) the segment runs.
    """

    key: str
    phase: str
    transient_bytes: int
    owner_transient_bytes: dict[str, int] = field(default_factory=dict)

    def transient(self, chosen: frozenset[str]) -> int:
        """The transient bytes when the units ``chosen`` are recomputed."""
        for owner, transient_bytes in self.owner_transient_bytes.items():
            if owner in chosen:
                return transient_bytes
        return self.transient_bytes


@dataclass(frozen=True)
class UnitProfile:
    """What one unit costs in one micro-batch's forward and backward.

    Attributes:
        name: the unit's dotted name.
        activation_bytes: held after its forward, summed over its calls.
        kept_bytes: still held when it is recomputed.
        forward_seconds: its forward passes.
        backward_seconds: from the first gradient of its output to the next unit's.
        recompute_seconds: what recomputing it adds to a micro-batch.
        calls: how often it was called.
        excludes: units nested with it, of which only one can be recomputed.
        kind: ``recompute``, or ``replace`` for a choice that computes the same in another way (a head in chunks).
    """

    name: str
    activation_bytes: int
    kept_bytes: int
    forward_seconds: float
    backward_seconds: float
    recompute_seconds: float
    calls: int = 1
    excludes: frozenset[str] = frozenset()
    kind: str = "recompute"

    @property
    def saved_bytes(self) -> int:
        """What recomputing the unit frees between its forward and its backward."""
        return self.activation_bytes - self.kept_bytes


@dataclass(frozen=True)
class SizeProfile:
    """A step measured at one micro-batch size.

    Attributes:
        micro_batch_size: rows of a micro-batch; None where the step was not told its size.
        segments: the step in order.
        holdings: what is held, by condition.
        units: in the order of their first call; units that were not called come last, with nothing to save.
        micro_seconds: one micro-batch's forward and backward, nothing recomputed.
        step_seconds: the optimizer's step.
        micro_batches: micro-batches in the measured step.
        static_bytes: allocated when the step begins: weights, gradients, optimizer state, the batch.
        measured: whether a step was run at this size, or the numbers lie on a line through two that were.
    """

    micro_batch_size: int | None
    segments: tuple[Segment, ...]
    holdings: tuple[Holding, ...]
    units: tuple[UnitProfile, ...]
    micro_seconds: float
    step_seconds: float
    static_bytes: int
    micro_batches: int = 1
    measured: bool = True

    def unit(self, name: str) -> UnitProfile:
        """The unit of that name. Raises KeyError."""
        for unit in self.units:
            if unit.name == name:
                return unit
        raise KeyError(name)

    def lighter(self, held_bytes: int) -> SizeProfile:
        """The profile of the same step without ``held_bytes`` that stood all through it."""
        segments = [
            replace(
                segment,
                transient_bytes=segment.transient_bytes - held_bytes,
                owner_transient_bytes={k: v - held_bytes for k, v in segment.owner_transient_bytes.items()},
            )
            for segment in self.segments
        ]
        return replace(self, segments=tuple(segments), static_bytes=self.static_bytes - held_bytes)

    def seconds(self, chosen: Iterable[str], rows: int | None = None) -> float:
        """Predicted seconds of an optimizer step over ``rows`` rows (default: one micro-batch)."""
        extra = sum(self.unit(name).recompute_seconds for name in chosen)
        return self.count(rows) * (self.micro_seconds + extra) + self.step_seconds

    def count(self, rows: int | None) -> int:
        """Micro-batches that ``rows`` rows make."""
        if rows is None or self.micro_batch_size is None:
            return 1
        return -(-rows // self.micro_batch_size)


@dataclass(frozen=True)
class Profile:
    """A model's measured steps, at one or more micro-batch sizes in rising order.

    Attributes:
        sizes: the measured sizes.
        device: where it was measured, e.g. ``cpu`` or ``gpu:0``.
        batch_rows: rows of the batch that the plan is for; None where unknown.
        too_large: the smallest micro-batch size that ran out of memory while profiling, everything recomputed.
        device_total_bytes: the device's memory, where known.
        notes: what the profiler had to say, in whole sentences.
        correction: measured peak over predicted peak in a real run; 1.0 until one was seen.
    """

    sizes: tuple[SizeProfile, ...]
    device: str = "cpu"
    batch_rows: int | None = None
    too_large: int | None = None
    device_total_bytes: int | None = None
    notes: tuple[str, ...] = ()
    correction: float = 1.0

    @property
    def units(self) -> tuple[UnitProfile, ...]:
        """The units at the largest measured size."""
        return self.sizes[-1].units

    @property
    def static_bytes(self) -> int:
        """Weights, gradients, optimizer state and the batch: what no choice of the planner can free."""
        return min(size.static_bytes for size in self.sizes)

    def at(self, micro_batch_size: int | None = None) -> SizeProfile:
        """The profile at a size: measured, or on the line through the two nearest measured sizes.

        Raises:
            ValueError: the size was not measured and there is only one that was.
        """
        if micro_batch_size is None:
            return self.sizes[-1]
        for size in self.sizes:
            if size.micro_batch_size == micro_batch_size:
                return size
        # a step of one micro-batch has other segments than one of several: only like ones lie on a line
        keys = [segment.key for segment in self.sizes[0].segments]
        known = [s for s in self.sizes if s.micro_batch_size is not None and [g.key for g in s.segments] == keys]
        if len(known) < 2:
            measured = [size.micro_batch_size for size in self.sizes]
            raise ValueError(f"micro-batch size {micro_batch_size} needs two measured sizes; measured: {measured}")
        above = [i for i, size in enumerate(known) if (size.micro_batch_size or 0) > micro_batch_size]
        upper = max(1, above[0]) if above else len(known) - 1
        return between(known[upper - 1], known[upper], micro_batch_size)


def between(low: SizeProfile, high: SizeProfile, micro_batch_size: int) -> SizeProfile:
    """The profile on the line through two sizes, inside or outside them.

    Bytes are rounded up. Both have the same segments.
    """
    share = (micro_batch_size - (low.micro_batch_size or 0)) / (
        (high.micro_batch_size or 0) - (low.micro_batch_size or 0)
    )

    def line(a: float, b: float) -> float:
        return a + (b - a) * share

    def whole(a: int, b: int) -> int:
        return _ceil(line(a, b))

    segments = []
    for segment, other in zip(high.segments, low.segments, strict=True):
        owners = {
            owner: whole(other.owner_transient_bytes.get(owner, value), value)
            for owner, value in segment.owner_transient_bytes.items()
        }
        transient_bytes = whole(other.transient_bytes, segment.transient_bytes)
        segments.append(replace(segment, transient_bytes=transient_bytes, owner_transient_bytes=owners))
    units = {unit.name: unit for unit in low.units}
    return replace(
        high,
        micro_batch_size=micro_batch_size,
        segments=tuple(segments),
        holdings=tuple(_holdings_between(low.holdings, high.holdings, whole)),
        units=tuple(_unit_between(units.get(unit.name, unit), unit, line) for unit in high.units),
        micro_seconds=max(0.0, line(low.micro_seconds, high.micro_seconds)),
        step_seconds=(low.step_seconds + high.step_seconds) / 2,
        static_bytes=whole(low.static_bytes, high.static_bytes),
        measured=False,
    )


def _ceil(value: float) -> int:
    return int(-(-value // 1))


def _holdings_between(low: Iterable[Holding], high: Iterable[Holding], whole: object) -> Iterator[Holding]:
    assert callable(whole)
    low, high = list(low), list(high)
    sums = {(h.first, h.last, h.any_of): [0, 0] for h in (*low, *high)}
    for side, holdings in enumerate((low, high)):
        for h in holdings:
            sums[h.first, h.last, h.any_of][side] += h.held_bytes
    for key, (a, b) in sums.items():
        yield Holding(whole(a, b), *key)


def _unit_between(low: UnitProfile, high: UnitProfile, line: object) -> UnitProfile:
    assert callable(line)
    return replace(
        high,
        activation_bytes=_ceil(line(low.activation_bytes, high.activation_bytes)),
        kept_bytes=_ceil(line(low.kept_bytes, high.kept_bytes)),
        forward_seconds=max(0.0, line(low.forward_seconds, high.forward_seconds)),
        backward_seconds=max(0.0, line(low.backward_seconds, high.backward_seconds)),
        recompute_seconds=max(0.0, line(low.recompute_seconds, high.recompute_seconds)),
    )
