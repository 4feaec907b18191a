"""A vocabulary head and its cross-entropy in chunks of tokens: the logits of the whole batch never stand in memory.

The peak that recomputing blocks leaves in a language model is the logits, [tokens, vocabulary], their softmax and their
gradient. Here each chunk's logits are made, used and dropped, in forward and once more in backward. The same operators
run on the same rows, so losses are the same; gradients of the weight are summed over chunks and agree to rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import paddle
import paddle.nn.functional as F

from paddle_memcallbacks.planner.measure import ProfileError, Replacement
from paddle_memcallbacks.recompute.amp_state import AmpState

DEFAULT_CHUNK_TOKENS = 1024
# a head is a vocabulary's where it widens the hidden size by at least this
_WIDENS = 4


def chunked_cross_entropy(
    hidden: paddle.Tensor,
    weight: paddle.Tensor,
    labels: paddle.Tensor,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    *,
    bias: paddle.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    transpose_weight: bool = False,
) -> paddle.Tensor:
    """``F.cross_entropy(F.linear(hidden, weight, bias), labels)`` without the logits of more than one chunk.

    Args:
        hidden: [..., d].
        weight: [d, v], or [v, d] with ``transpose_weight`` (a tied embedding).
        labels: int, shape of hidden without its last axis (or with 1 there).
        chunk_tokens: rows of logits that stand at once.
        bias: [v].
        ignore_index: labels that give no loss.
        reduction: ``none`` (one loss a token, the shape of the labels), ``sum`` or ``mean``, which divides as
            F.cross_entropy does: by all tokens, or by those not ignored where ``ignore_index`` is not negative.
        transpose_weight: the weight is [v, d].

    Raises:
        ValueError: chunk_tokens below 1, or an unknown reduction.
    """
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens is at least 1, not {chunk_tokens}")
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"reduction is none, sum or mean, not {reduction!r}")
    tokens = hidden.reshape([-1, hidden.shape[-1]])
    flat = labels.reshape([-1])
    settings = (chunk_tokens, ignore_index, transpose_weight)
    losses = _ChunkedLoss.apply(tokens, weight, bias, flat, settings)
    if reduction == "none":
        shape = labels.shape if len(labels.shape) < len(hidden.shape) else labels.shape[:-1]
        return losses.reshape(shape)
    if reduction == "sum":
        return losses.sum()
    if ignore_index < 0:
        return losses.mean()
    counted = (flat != ignore_index).astype(losses.dtype).sum()
    # no label counts: 0 / 1, as F.cross_entropy has it
    return losses.sum() / paddle.clip(counted, min=1.0)


def chunked_head(
    model: paddle.nn.Layer,
    head: str | None = None,
    criterion: str | None = None,
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
) -> Replacement:
    """The planner's choice to compute a model's vocabulary head and loss in chunks.

    For models whose head is a Linear layer whose output goes, reshaped or cast at most, into a CrossEntropyLoss layer.
    Others call `chunked_cross_entropy` themselves.

    Args:
        model: holds both layers.
        head: name of the head; default: the widest Linear layer.
        criterion: name of the loss layer; default: the only CrossEntropyLoss.
        chunk_tokens: rows of logits that stand at once.

    Raises:
        ProfileError: there is no such head or loss layer.
    """
    layers = dict(model.named_sublayers())
    head = head or _widest_linear(layers)
    criterion = criterion or _only_loss(layers)
    for name, kind in ((head, paddle.nn.Linear), (criterion, paddle.nn.CrossEntropyLoss)):
        if name not in layers or not isinstance(layers[name], kind):
            raise ProfileError(f"a head in chunks needs a {kind.__name__} layer; {name!r} is none of this model's")
    return Replacement(
        name=f"chunked_head({head})",
        layers=(str(head), str(criterion)),
        switch=lambda: _switched(layers[str(head)], layers[str(criterion)], chunk_tokens),
    )


class _ChunkedLoss(paddle.autograd.PyLayer):
    """One loss a token. Saves the hidden states, the weight and the labels; both passes make the logits in chunks."""

    @staticmethod
    def forward(ctx: Any, tokens: Any, weight: Any, bias: Any, labels: Any, settings: tuple[int, int, bool]) -> Any:
        ctx.save_for_backward(tokens, weight, bias, labels)
        ctx.settings, ctx.amp = settings, AmpState.now()
        chunk, ignore_index, transpose = settings
        return paddle.concat(
            [
                _losses(tokens[i : i + chunk], weight, bias, labels[i : i + chunk], ignore_index, transpose)
                for i in range(0, tokens.shape[0], chunk)
            ]
        )

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        tokens, weight, bias, labels = ctx.saved_tensor()
        chunk, ignore_index, transpose = ctx.settings
        wanted = [tensor for tensor in (weight, bias) if tensor is not None and not tensor.stop_gradient]
        sums: list[Any] = [None] * len(wanted)
        parts = []
        for i in range(0, tokens.shape[0], chunk):
            part = tokens[i : i + chunk].detach()
            part.stop_gradient = tokens.stop_gradient
            inputs = [*([] if part.stop_gradient else [part]), *wanted]
            with paddle.set_grad_enabled(True), ctx.amp.put_back():
                losses = _losses(part, weight, bias, labels[i : i + chunk], ignore_index, transpose)
            found = paddle.grad(losses, inputs, gradient[i : i + chunk])
            del losses
            if not part.stop_gradient:
                parts.append(found.pop(0))
            for k, value in enumerate(found):
                sums[k] = value if sums[k] is None else sums[k].add_(value)
            del found
        results = [paddle.concat(parts) if parts else None]
        taken = iter(sums)
        for tensor in (weight, bias):
            if tensor is not None:
                results.append(None if tensor.stop_gradient else next(taken))
        return (*results, None)


def _losses(tokens: Any, weight: Any, bias: Any, labels: Any, ignore_index: int, transpose: bool) -> Any:
    if transpose:
        logits = paddle.matmul(tokens, weight, transpose_y=True)
        logits = logits if bias is None else logits + bias
    else:
        logits = F.linear(tokens, weight, bias)
    return F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="none").reshape([-1])


class _PendingLogits:
    """Stands for logits that were not computed; reshaping and casting them changes nothing that matters here."""

    def __init__(self, hidden: Any, head: Any) -> None:
        self.hidden, self.head = hidden, head

    def reshape(self, *args: Any, **kwargs: Any) -> _PendingLogits:
        return self

    flatten = astype = cast = float = reshape

    @property
    def shape(self) -> list[int]:
        return [*self.hidden.shape[:-1], self.head.weight.shape[-1]]


@contextlib.contextmanager
def _switched(head: Any, criterion: Any, chunk_tokens: int) -> Iterator[None]:
    plain = criterion.forward

    def loss(logits: Any, labels: Any) -> Any:
        if not isinstance(logits, _PendingLogits):
            return plain(logits, labels)
        return chunked_cross_entropy(
            logits.hidden,
            logits.head.weight,
            labels,
            chunk_tokens,
            bias=logits.head.bias,
            ignore_index=criterion.ignore_index,
            reduction=criterion.reduction,
        )

    if criterion.weight is not None or criterion.soft_label or not criterion.use_softmax or criterion.axis != -1:
        raise ProfileError("a head in chunks takes hard labels, no class weights and the last axis")
    if getattr(criterion, "label_smoothing", 0.0):
        raise ProfileError("a head in chunks knows no label smoothing")
    head.__dict__["forward"] = lambda hidden: _PendingLogits(hidden, head)
    criterion.__dict__["forward"] = loss
    try:
        yield
    finally:
        del head.__dict__["forward"], criterion.__dict__["forward"]


def _widest_linear(layers: dict[str, Any]) -> str | None:
    widths = {
        name: layer.weight.shape[1]
        for name, layer in layers.items()
        if isinstance(layer, paddle.nn.Linear) and layer.weight.shape[1] >= _WIDENS * layer.weight.shape[0]
    }
    return max(widths, key=widths.__getitem__) if widths else None


def _only_loss(layers: dict[str, Any]) -> str | None:
    found = [name for name, layer in layers.items() if isinstance(layer, paddle.nn.CrossEntropyLoss)]
    return found[0] if len(found) == 1 else None
