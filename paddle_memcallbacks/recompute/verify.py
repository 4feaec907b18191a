"""One step with and without recompute, unit by unit: gradients, buffers and the loss, compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle

from paddle_memcallbacks.recompute.attributes import KeptAttributes
from paddle_memcallbacks.recompute.errors import RecomputeError
from paddle_memcallbacks.recompute.passes import layers_of
from paddle_memcallbacks.recompute.rng import RngState
from paddle_memcallbacks.recompute.switch import recompute_units
from paddle_memcallbacks.recompute.tensors import Learned, TensorState

# where the plain step differs from itself, a unit is blamed for more than this many times that difference
_NOISE_FACTOR = 10.0

Snapshot = dict[str, np.ndarray]


@dataclass(frozen=True)
class Difference:
    """The tensor in which two steps differ most, and by how much (L2 norm of the difference over the norm)."""

    tensor: str
    relative: float


@dataclass(frozen=True)
class VerifyResult:
    """What one step said of each unit.

    Attributes:
        units: the units that were tried.
        differing: those whose step is not the plain step.
        differences: for each differing unit, where and by how much.
        refused: for each unit that cannot be exact, why.
        noise: how far two plain steps differ; None where they agree to the bit.
        only_together: no unit differs alone, but all of them together do.
    """

    units: tuple[str, ...]
    differing: tuple[str, ...] = ()
    differences: Mapping[str, Difference] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    noise: Difference | None = None
    only_together: bool = False

    @property
    def exact(self) -> bool:
        """Nothing differs and nothing was refused."""
        return not self.differing and not self.refused

    @property
    def deterministic(self) -> bool:
        """Whether the plain step equals itself; only then can equality to the bit be asked for."""
        return self.noise is None

    def text(self) -> str:
        """The result for the log, one line for each thing to know."""
        lines = []
        if self.noise is not None:
            lines.append(
                f"recompute verify: the plain step differs from itself ({self.noise.tensor}, relative "
                f"{self.noise.relative:.1e}); units are compared within {_NOISE_FACTOR:g} times that. A "
                "non-deterministic operation (FLAGS_cudnn_deterministic=1 helps) or state outside the model causes it"
            )
        lines.extend(f"recompute verify: refused: {why}" for why in self.refused.values())
        if self.only_together:
            lines.append("recompute verify: no unit differs alone, but all of them together do")
        lines.extend(
            f"recompute verify: unit '{name}' differs: {self.differences[name].tensor}, relative "
            f"{self.differences[name].relative:.1e} -> leave it out of recompute"
            for name in self.differing
            if name in self.differences
        )
        if self.exact:
            how = "bit for bit" if self.deterministic else "within the step's own noise"
            lines.append(f"recompute verify: {len(self.units)} units, gradients and buffers equal {how}")
        return "\n".join(lines)


def verify_units(
    model: paddle.nn.Layer, run_forward_backward: Callable[[], paddle.Tensor], names: Sequence[str]
) -> VerifyResult:
    """Compare one step with each of the units recomputed against the plain step.

    Args:
        run_forward_backward: one forward and backward of ``model`` on a fixed batch, returning the loss. It must not
            step the optimizer. It runs three times, and once more for each unit where all together differ.
        names: the units to try. No unit of the model may be switched on now.

    Weights, gradients, buffers, attributes and random states are as before when it returns. Raises what
    ``run_forward_backward`` raises, other than a `RecomputeError` of a unit.
    """
    switch = recompute_units(model, names)
    with _undisturbed(model) as step:
        plain = step(run_forward_backward)
        noise = compare_steps(plain, step(run_forward_backward))
        limit = _NOISE_FACTOR * noise.relative if noise is not None else 0.0

        def tried(units: Sequence[str]) -> Difference | str | None:
            switch.set(units)
            try:
                with switch:
                    found = compare_steps(plain, step(run_forward_backward))
            except RecomputeError as error:
                return str(error)
            return found if found is not None and found.relative > limit else None

        units = switch.names
        together = tried(units)
        alone = {name: tried([name]) for name in units} if together is not None else {}
    differences = {name: found for name, found in alone.items() if isinstance(found, Difference)}
    refused = {name: found for name, found in alone.items() if isinstance(found, str)}
    only_together = together is not None and not differences and not refused
    return VerifyResult(
        units=units,
        differing=units if only_together else tuple(differences),
        differences=differences,
        refused=refused,
        noise=noise,
        only_together=only_together,
    )


def compare_steps(one: Snapshot, other: Snapshot) -> Difference | None:
    """Where two steps differ most; None where they agree to the bit. A tensor that only one of them has: infinity."""
    worst: Difference | None = None
    for name in [*one, *(name for name in other if name not in one)]:
        relative = _relative(one.get(name), other.get(name))
        if relative is not None and (worst is None or relative > worst.relative):
            worst = Difference(name, relative)
    return worst


def _relative(one: np.ndarray | None, other: np.ndarray | None) -> float | None:
    if one is None or other is None or one.shape != other.shape:
        return float("inf")
    if one.tobytes() == other.tobytes():
        return None
    wide_one, wide_other = one.astype(np.float64), other.astype(np.float64)
    relative = float(np.linalg.norm(wide_one - wide_other) / max(float(np.linalg.norm(wide_one)), 1e-300))
    # differing bits with an undefined or vanishing norm (NaN, signed zeros) still differ
    return relative if relative > 0 else float("inf") if np.isnan(relative) else 1e-300


@contextmanager
def _undisturbed(model: paddle.nn.Layer) -> Iterator[Callable[[Callable[[], Any]], Snapshot]]:
    """Hands out a function that runs a step from one and the same state; everything is put back at the end."""
    layers = layers_of(model)
    attributes = KeptAttributes(layers)
    tensors = TensorState(layers, Learned())
    rng = RngState.now()
    gradients = [(parameter, _gradients_on_host(parameter)) for parameter in model.parameters()]
    for parameter, _ in gradients:
        _drop_gradients(parameter)
    settled = False

    def put_back() -> None:
        nonlocal settled
        if not settled:
            tensors.settle()
            settled = True
        tensors.write_back()
        attributes.put_back()
        rng.put_back()

    def step(run: Callable[[], Any]) -> Snapshot:
        try:
            loss = run()
            return _snapshot(model, loss)
        finally:
            for parameter, _ in gradients:
                _drop_gradients(parameter)
            put_back()

    try:
        yield step
    finally:
        put_back()
        for parameter, gradient in gradients:
            _give_gradients(parameter, gradient)


def _gradients_on_host(parameter: paddle.Tensor) -> tuple[Any, Any]:
    host = paddle.CPUPlace()
    own, main = parameter.grad, getattr(parameter, "main_grad", None)
    return (
        None if own is None else own._copy_to(host, True),
        None if main is None else main._copy_to(host, True),
    )


def _drop_gradients(parameter: paddle.Tensor) -> None:
    """What comes in next starts from none."""
    parameter.clear_gradient(False)
    if getattr(parameter, "main_grad", None) is not None:
        parameter.main_grad.zero_()


def _give_gradients(parameter: paddle.Tensor, gradients: tuple[Any, Any]) -> None:
    own, main = gradients
    if own is not None:
        parameter.grad = own._copy_to(parameter.place, True)
    if main is not None:
        parameter.main_grad.copy_(main, True)


def _snapshot(model: paddle.nn.Layer, loss: Any) -> Snapshot:
    found: Snapshot = {}
    if isinstance(loss, paddle.Tensor):
        found["loss"] = _on_host(loss)
    for name, parameter in model.named_parameters():
        if parameter.stop_gradient:
            found[f"state {name}"] = _on_host(parameter)
            continue
        for kind in ("grad", "main_grad"):
            gradient = getattr(parameter, kind, None)
            if gradient is not None:
                found[f"{kind} {name}"] = _on_host(gradient)
    for name, buffer in model.named_buffers():
        found[f"buffer {name}"] = _on_host(buffer)
    return found


def _on_host(tensor: paddle.Tensor) -> np.ndarray:
    value = tensor.detach()
    return value.astype("float32").numpy() if value.dtype == paddle.bfloat16 else value.numpy()
