"""Tiny PaddleNLP models with a batch and their own loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F

from tests.planner.models import Case

VOCABULARY, TOKENS, LAYERS = 300, 48, 5
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
}


def nlp_case(name: str, rows: int = 4) -> Case:
    """``ernie``, ``bert``, ``gpt`` or ``llama``."""
    ids = paddle.randint(1, VOCABULARY, [rows, TOKENS])
    model, loss = _MODELS[name]()
    return Case(model, {"input_ids": ids, "labels": paddle.randint(0, 2, [rows])}, loss)


def _classifier(kind: str) -> tuple[Any, Callable[[Any, Any], Any]]:
    from paddlenlp import transformers as T

    config = getattr(T, f"{kind}Config")(**_SIZES, num_labels=2)
    model = getattr(T, f"{kind}ForSequenceClassification")(config)
    return model, lambda m, b: F.cross_entropy(m(b["input_ids"]), b["labels"])


def _gpt() -> tuple[Any, Callable[[Any, Any], Any]]:
    from paddlenlp.transformers import GPTConfig, GPTForCausalLM

    model = GPTForCausalLM(GPTConfig(**_SIZES))
    criterion = paddle.nn.CrossEntropyLoss()

    def loss(m: Any, b: Any) -> Any:
        logits = m(b["input_ids"])
        logits = logits[0] if isinstance(logits, tuple) else logits
        return criterion(logits[:, :-1], b["input_ids"][:, 1:])

    return model, loss


def _llama() -> tuple[Any, Callable[[Any, Any], Any]]:
    from paddlenlp.transformers import LlamaConfig, LlamaForCausalLM

    sizes = {**_SIZES, "seq_length": TOKENS, "use_flash_attention": False}
    model = LlamaForCausalLM(LlamaConfig(**sizes))

    def loss(m: Any, b: Any) -> Any:
        result = m(b["input_ids"], labels=b["input_ids"])
        return result[0] if isinstance(result, tuple) else result

    return model, loss


_MODELS: dict[str, Callable[[], tuple[Any, Callable[[Any, Any], Any]]]] = {
    "ernie": lambda: _classifier("Ernie"),
    "bert": lambda: _classifier("Bert"),
    "gpt": _gpt,
    "llama": _llama,
}
