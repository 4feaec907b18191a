"""The ERNIE example at a small size, in this process: real reviews, PaddleNLP's own Trainer."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ernie_reviews"


def example() -> Any:
    """The example's train.py as a module."""
    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))
    return importlib.import_module("train")


def build_trainer(folder: Path, callbacks: list[Any], *, trainer_class: Any = None, **settings: Any) -> Any:
    """A Trainer on a small ERNIE; ``settings`` are the Trainer's arguments, and dropout, rows, layers of the model."""
    from paddlenlp.trainer import Trainer, TrainingArguments

    train = example()
    sizes = {
        "dropout": settings.pop("dropout", 0.0),
        "hidden_size": settings.pop("hidden_size", 32),
        "num_hidden_layers": settings.pop("num_hidden_layers", 3),
        "max_length": 48,
    }
    rows = settings.pop("rows", 600)
    example_arguments = train.ExampleArguments(**sizes)
    reviews = train.load_reviews(sizes["max_length"])
    tokenizer = train.ErnieTokenizer(str(train.write_vocabulary(reviews[:4000], folder / "vocab.txt")))
    arguments = {
        "per_device_train_batch_size": 16,
        "max_steps": 30,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "device": "cpu",
        **settings,
    }
    paddle.seed(7)
    return (trainer_class or Trainer)(
        model=train.build_model(example_arguments, tokenizer),
        args=TrainingArguments(output_dir=str(folder), **arguments),
        train_dataset=train.ReviewDataset(reviews[:rows], tokenizer, sizes["max_length"]),
        eval_dataset=train.ReviewDataset(reviews[-32:], tokenizer, sizes["max_length"]),
        data_collator=train.DataCollatorWithPadding(tokenizer),
        tokenizer=tokenizer,
        callbacks=callbacks,
    )


def train_ernie(folder: Path, keys: dict[str, Any] | None, resume: str | None = None, **settings: Any) -> Any:
    """Build and train; ``keys`` None trains without this library."""
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    # the second run of a process would otherwise give its parameters other names than the first
    with paddle.utils.unique_name.guard():
        trainer = build_trainer(folder, [] if keys is None else [MemoryCallback(keys)], **settings)
        trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Any) -> list[float]:
    """The logged loss of each step."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def weights(trainer: Any) -> dict[str, np.ndarray]:
    """All weights on the host."""
    return {name: value.numpy() for name, value in trainer.model.state_dict().items()}


def relative_difference(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """Relative L2 difference over all weights."""
    square = sum(float(((ours[name] - theirs[name]) ** 2).sum()) for name in theirs)
    return (square / sum(float((theirs[name] ** 2).sum()) for name in theirs)) ** 0.5
