"""Which storages a step's backward keeps alive, and which unit's operators keep them: watched in one step.

Paddle hands every tensor that an operator saves for backward to a pair of hooks. The hooks change nothing; they note
the storage, its bytes, the units whose forward runs, and when it is taken out again.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import paddle

from paddle_memcallbacks.planner.markers import Call, Recorder, tensors_in

NEVER = 1 << 60


@dataclass
class Slot:
    """One tensor saved by one operator. Times count markers: the value t lies in the segment that marker t ends.

    Attributes:
        storage: number of the storage; the same for tensors that share one.
        storage_bytes: bytes of the whole storage.
        calls: calls of units that ran, outermost first.
        packed: when it was saved.
        released: when backward took it out for the last time.
        died: when the graph let go of it.
    """

    storage: int
    storage_bytes: int
    calls: tuple[Call, ...]
    packed: int
    unpacked: int | None = None
    died: int = NEVER

    @property
    def released(self) -> int:
        """When its bytes are free if nothing else holds them."""
        return self.died if self.unpacked is None else min(self.unpacked, self.died)


@dataclass
class Seen:
    """A tensor that a unit took or gave, as long as Python refers to it."""

    storage: int
    storage_bytes: int
    born: int
    died: int = NEVER


@dataclass
class Watched:
    """Everything that one watched step showed.

    Attributes:
        slots: saved tensors, in order.
        seen: inputs and outputs of units while Python held them.
        arguments: call -> storages (number, bytes) of its inputs, which its recompute keeps until the graph dies.
        fixed: storages of parameters and buffers: always alive.
    """

    slots: list[Slot] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    arguments: dict[Call, list[tuple[int, int]]] = field(default_factory=dict)
    fixed: set[int] = field(default_factory=set)


class _Packed:
    __slots__ = ("__weakref__", "slot", "tensor")

    def __init__(self, tensor: Any, slot: Slot | None) -> None:
        self.tensor, self.slot = tensor, slot


class SavedWatch:
    """Context manager that fills `Watched` while a step runs; attach it to the step's `Recorder` first."""

    def __init__(self, model: Any) -> None:
        self.watched = Watched()
        self.recorder: Recorder | None = None
        self._numbers: dict[int, list[int]] = {}
        self._count = 0
        for tensor in (*model.parameters(), *model.buffers()):
            number = self._number(tensor)
            if number is not None:
                self.watched.fixed.add(number[0])
        self._hooks = paddle.autograd.saved_tensors_hooks(self._pack, self._unpack)

    def __enter__(self) -> SavedWatch:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._hooks.__exit__(*exc)
        # what outlives the step (the batch) keeps its finalizer, and that keeps this object
        self.recorder = None

    def inputs(self, call: Call, value: Any) -> None:
        """A unit is about to run on ``value``."""
        storages = self.watched.arguments.setdefault(call, [])
        for tensor in tensors_in(value):
            storages.extend(self._see(tensor))

    def outputs(self, call: Call, value: Any) -> None:
        """A unit gave ``value``."""
        for tensor in tensors_in(value):
            self._see(tensor)

    def _now(self) -> int:
        assert self.recorder is not None
        return len(self.recorder.markers)

    def _see(self, tensor: Any) -> list[tuple[int, int]]:
        number = self._number(tensor)
        if number is None:
            return []
        seen = Seen(*number, born=self._now())
        self.watched.seen.append(seen)
        weakref.finalize(tensor, self._forget, seen).atexit = False
        return [number]

    def _pack(self, tensor: Any) -> _Packed:
        if tensor is None:
            return _Packed(None, None)
        # the tensor itself may refer to the node that keeps it: a cycle that no collector sees
        alone = tensor.detach()
        number = self._number(tensor)
        if number is None or self.recorder is None:
            return _Packed(alone, None)
        slot = Slot(*number, calls=tuple(self.recorder.stack), packed=self._now())
        self.watched.slots.append(slot)
        packed = _Packed(alone, slot)
        weakref.finalize(packed, self._forget, slot).atexit = False
        return packed

    def _unpack(self, packed: _Packed) -> Any:
        if packed.slot is not None:
            packed.slot.unpacked = self._now()
        return packed.tensor

    def _number(self, tensor: Any) -> tuple[int, int] | None:
        """The storage's number, counted as one more user of it, and its bytes; None for what has no plain storage."""
        try:
            size = tensor._holder_size()
            address = tensor.data_ptr() - tensor._offset()
        except (AttributeError, RuntimeError, ValueError, OSError):
            return None
        if not size:
            return None
        entry = self._numbers.get(address)
        if entry is None:
            # an address whose users are all gone may hold another tensor by now
            entry = self._numbers[address] = [self._count, 0]
            self._count += 1
        entry[1] += 1
        self._address[entry[0]] = address
        return entry[0], size

    @property
    def _address(self) -> dict[int, int]:
        return self.__dict__.setdefault("_addresses", {})

    def _forget(self, item: Slot | Seen) -> None:
        if self.recorder is None:
            return
        item.died = self._now()
        address = self._address[item.storage]
        entry = self._numbers.get(address)
        if entry is not None and entry[0] == item.storage:
            entry[1] -= 1
            if not entry[1]:
                del self._numbers[address]
