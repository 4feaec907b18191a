"""Which storages a step's backward keeps alive, and which unit's operators keep them: watched in one step.

Paddle hands every tensor that an operator saves for backward to a pair of hooks. The hooks change nothing; they note
the storage, its bytes, the units whose forward runs, and when it is taken out again.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import paddle

from paddle_memcallbacks.planner.markers import Call, Recorder, tensors_in

NEVER = 1 << 60
# how far from a step's function its tensors are looked for, and among how many objects
_DEEPEST, _MOST_OBJECTS = 5, 20_000


@dataclass
class Slot:
    """One tensor saved by one operator. Times count markers: the value t lies in the segment that marker t ends.

    Attributes:
        storage: number of the storage; the same for tensors that share one.
        storage_bytes: bytes of the whole storage.
        calls: calls of units that ran, outermost first.
        packed: when it was saved.
        unpacked: when backward took it out for the last time; None if it never did.
        order: its place among all that was taken out, by the first time; -1 if it never was.
        died: when the graph let go of it.
    """

    storage: int
    storage_bytes: int
    calls: tuple[Call, ...]
    packed: int
    unpacked: int | None = None
    order: int = -1
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
    """Context manager that fills `Watched` while a step runs; attach it to the step's `Recorder` first.

    Args:
        model: its parameters and buffers live all through the step.
        outside: more tensors that do, e.g. the batch.
    """

    def __init__(self, model: Any, outside: Iterable[Any] = ()) -> None:
        self.watched = Watched()
        self.recorder: Recorder | None = None
        self._numbers: dict[int, list[int]] = {}
        self._packed: weakref.WeakSet[_Packed] = weakref.WeakSet()
        self._count = 0
        self._taken = 0
        # kept alive, so that no other storage comes to lie where they were
        self._outside = [*model.parameters(), *model.buffers(), *outside]
        for tensor in self._outside:
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
        self._outside.clear()
        # a graph that outlives the step must not hold what backward has used
        for packed in self._packed:
            packed.tensor = None
        self._packed.clear()

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
        self._packed.add(packed)
        weakref.finalize(packed, self._forget, slot).atexit = False
        return packed

    def _unpack(self, packed: _Packed) -> Any:
        if packed.slot is not None:
            packed.slot.unpacked = self._now()
            if packed.slot.order < 0:
                packed.slot.order = self._taken
                self._taken += 1
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


def tensors_behind(function: Callable[..., Any]) -> Iterator[Any]:
    """Tensors that a step's function refers to: closures, partial arguments, bound objects' attributes, containers."""
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(function, 0)]
    while waiting and len(seen) < _MOST_OBJECTS:
        value, depth = waiting.pop()
        if id(value) in seen or depth > _DEEPEST or isinstance(value, (paddle.nn.Layer, paddle.optimizer.Optimizer)):
            continue
        seen.add(id(value))
        if isinstance(value, paddle.Tensor):
            yield value
        waiting.extend((inner, depth + 1) for inner in _inside(value))


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from value.__defaults__ or ()
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                continue
        yield from (value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__)
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple, set)):
        yield from value
    elif not isinstance(value, (types.ModuleType, type, paddle.Tensor)):
        yield from vars(value).values() if hasattr(value, "__dict__") else ()
