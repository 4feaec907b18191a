"""Accumulating in fp32 under AMP O2: fp16 and bf16 gradients of slices are added up without rounding at every slice."""

from __future__ import annotations

from collections.abc import Sequence

import paddle

HALF = (paddle.float16, paddle.bfloat16)


def low_precision(parameters: Sequence[paddle.Tensor]) -> list[paddle.Tensor]:
    """Parameters whose gradients would be added up in fp16 or bf16: no fp32 ``main_grad`` takes them."""
    return [
        parameter
        for parameter in parameters
        if parameter.dtype in HALF and not parameter.stop_gradient and not hasattr(parameter, "main_grad")
    ]


class Fp32Accumulator:
    """Adds the slices' gradients in fp32 and hands back one gradient of the parameter's own dtype.

    Costs four bytes a parameter while the slices run. Under Paddle's ``master_grad`` gradients come in fp32 already,
    and are left where they are.
    """

    def __init__(self, parameters: Sequence[paddle.Tensor]) -> None:
        self._parameters = low_precision(parameters)
        self._sums: dict[int, paddle.Tensor] = {}

    @paddle.no_grad()
    def after_slice(self) -> None:
        """Move the gradients that the last backward left into the fp32 sums."""
        for index, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None or gradient.dtype not in HALF:
                continue
            part = gradient.astype("float32")
            parameter.clear_gradient(False)
            if index in self._sums:
                self._sums[index].add_(part)
            else:
                self._sums[index] = part

    @paddle.no_grad()
    def finish(self) -> None:
        """Round the sums once, into the parameters' gradients."""
        for index, parameter in enumerate(self._parameters):
            total = self._sums.pop(index, None)
            if total is not None:
                parameter.grad = total.astype(parameter.dtype)
