"""The contents of a unit's state: buffers and stop_gradient parameters, whatever the layer.

Paddle's inplace version cannot be relied on here: BatchNorm's kernel, `set_value` and the optimizers leave it as it
was. So small tensors are always copied, and a large one is compared once and then watched.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import paddle
from paddle.base import core

from paddle_memcallbacks.recompute.amp_state import amp_off

# copied at every first pass and held until backward: running statistics, norms' vectors, counters
SMALL_BYTES = 2**16
# a frozen weight matrix above this is not even copied once: a layer of a large frozen model may fill the card
EXAMINE_BYTES = 2**22

# paddle 2.6's name for it is the older one
_DENSE = getattr(core.VarDesc.VarType, "DENSE_TENSOR", None) or core.VarDesc.VarType.LOD_TENSOR


@dataclass
class Learned:
    """What the first passes taught about a unit's large tensors, by layer, name and training flag."""

    steady: set[tuple[int, str, bool]] = field(default_factory=set)
    changing: set[tuple[int, str, bool]] = field(default_factory=set)

    def __deepcopy__(self, memo: dict[int, Any]) -> Learned:
        return Learned()


@dataclass(frozen=True)
class _Examined:
    key: tuple[int, str, bool]
    live: paddle.Tensor
    before: paddle.Tensor


@dataclass
class _Watched:
    key: tuple[int, str, bool]
    live: paddle.Tensor
    version: int


class TensorState:
    """The contents of some layers' state before a forward; what it changed can be put back for a second one."""

    def __init__(self, layers: Sequence[paddle.nn.Layer], learned: Learned) -> None:
        self._learned = learned
        self._copies: list[tuple[paddle.Tensor, paddle.Tensor]] = []
        self._examined: list[_Examined] = []
        self._watched: list[_Watched] = []
        with paddle.no_grad(), amp_off():
            for key, tensor, is_parameter in _tensors(layers):
                self._take(key, tensor, is_parameter)

    def _take(self, key: tuple[int, str, bool], tensor: paddle.Tensor, is_parameter: bool) -> None:
        if not tensor.stop_gradient:
            self._watched.append(_Watched(key, tensor, tensor.inplace_version))
            return
        size = tensor_bytes(tensor)
        if size == 0:
            return
        if size <= SMALL_BYTES or key in self._learned.changing:
            self._copies.append((tensor, tensor.clone()))
        elif key in self._learned.steady or (is_parameter and size > EXAMINE_BYTES):
            self._watched.append(_Watched(key, tensor, tensor.inplace_version))
        else:
            self._examined.append(_Examined(key, tensor, tensor.clone()))

    def settle(self) -> paddle.Tensor | None:
        """After the first pass: drop the copies that were not needed.

        Returns:
            A tensor that the forward changed and that cannot be put back, or None. It is copied from the next call on,
            unless it is trained.
        """
        for examined in self._examined:
            if _same(examined.live, examined.before):
                self._learned.steady.add(examined.key)
                self._watched.append(_Watched(examined.key, examined.live, examined.live.inplace_version))
            else:
                self._learned.changing.add(examined.key)
                self._copies.append((examined.live, examined.before))
        self._examined = []
        return self.moved()

    def moved(self) -> paddle.Tensor | None:
        """A watched tensor that was changed in place since, or None."""
        for watched in self._watched:
            if watched.live.inplace_version != watched.version:
                watched.version = watched.live.inplace_version
                if watched.live.stop_gradient:
                    self._learned.steady.discard(watched.key)
                    self._learned.changing.add(watched.key)
                return watched.live
        return None

    def put_back(self) -> Callable[[], None]:
        """Give the layers the contents from before the forward. Call what is returned to undo it.

        Storage is exchanged, not written: other holders of today's contents keep them, and nothing is copied back.
        """
        today = []
        with paddle.no_grad(), amp_off():
            for live, before in self._copies:
                today.append((live, _today(live)))
                # a copy of the copy: the second pass changes it, and a third may follow (retain_graph)
                _give(live, before.clone())

        def undo() -> None:
            with paddle.no_grad(), amp_off():
                for live, content in today:
                    _give(live, content)

        return undo

    def without_graph(self, tensor: paddle.Tensor) -> paddle.Tensor:
        """A saved tensor of the second pass without that pass's graph, which nobody walks."""
        if not hooks_keep_storage():
            return alias(tensor)
        if tensor.is_leaf:
            # as the plain graph has it: the weight itself, whose main_grad fused layers add to, and today's state
            return tensor
        leaf = tensor.detach()
        leaf.stop_gradient = tensor.stop_gradient
        return leaf

    def write_back(self) -> None:
        """Write the contents from before the forward into the layers' own storage, for good."""
        with paddle.no_grad(), amp_off():
            for live, before in self._copies:
                paddle.assign(before, live)


@functools.cache
def hooks_keep_storage() -> bool:
    """Whether paddle leaves its storage to the tensor that an unpack hook returns. Tried out: paddle 2.6 takes it."""
    with paddle.enable_grad(), amp_off():
        given, x = paddle.ones([1]), paddle.zeros([1])
        x.stop_gradient = False
        with paddle.autograd.saved_tensors_hooks(lambda _: given, lambda tensor: tensor):
            y = paddle.tanh(x)
        y.backward()
    return bool(given._is_initialized())


def _tensors(layers: Sequence[paddle.nn.Layer]) -> Iterator[tuple[tuple[int, str, bool], paddle.Tensor, bool]]:
    seen: set[int] = set()
    for layer in layers:
        for tensors, is_parameter in ((layer._parameters, True), (layer._buffers, False)):
            for name, tensor in tensors.items():
                if tensor is None or id(tensor) in seen or not _holds_state(tensor, is_parameter):
                    continue
                seen.add(id(tensor))
                yield (id(layer), name, layer.training), tensor, is_parameter


def _holds_state(tensor: Any, is_parameter: bool) -> bool:
    # a buffer with a graph is made anew by each forward (spectral norm's weight): the reference is its state
    return (is_parameter or (tensor.stop_gradient and tensor.is_leaf)) and tensor._is_initialized()


def _has_plain_storage(tensor: paddle.Tensor) -> bool:
    return bool(tensor.is_dense() and tensor.is_contiguous())


def _today(live: paddle.Tensor) -> paddle.Tensor:
    return alias(live) if _has_plain_storage(live) else live.clone()


def _give(live: paddle.Tensor, content: paddle.Tensor) -> None:
    if _has_plain_storage(live):
        content._share_buffer_to(live)
    else:
        # paddle refuses to share a transposed view's storage
        paddle.assign(content, live)


def alias(tensor: paddle.Tensor) -> paddle.Tensor:
    """A leaf on the same storage that is a tensor of its own, with the same ``stop_gradient``.

    `detach` is not: it follows when the first tensor is given other storage, or when the storage is taken from it.
    Paddle's own recompute loses a transposed tensor's strides here, which a PyLayer reads.
    """
    if not tensor.is_dense() or not tensor._is_initialized():
        other = tensor.detach()
    elif tensor.is_contiguous():
        other = core.eager.Tensor(tensor.dtype, tensor.shape, "", _DENSE, False)
        tensor._share_buffer_to(other)
    else:
        with paddle.no_grad(), amp_off():
            other = tensor.unsqueeze(0)[0]
    other.stop_gradient = tensor.stop_gradient
    return other


def tensor_bytes(tensor: paddle.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return math.prod(tensor.shape) * int(tensor.element_size())


def _same(one: paddle.Tensor, other: paddle.Tensor) -> bool:
    """Equal in every element. Reads a value, so it is asked once for each large tensor. NaN counts as changed."""
    try:
        with paddle.no_grad(), amp_off():
            return bool(paddle.equal_all(one, other))
    except Exception:
        # no comparison for this dtype: taken as changing, which costs a copy and is exact
        return False
