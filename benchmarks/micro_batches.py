"""PaddleNLP's own accumulation against micro-batches inside the step, side by side in one process.

The same ERNIE, the same real reviews (8 to 200 characters), 32 = 4 x 8 rows a step, dropout off. Ratios are printed,
because seconds differ from machine to machine.

    python benchmarks/micro_batches.py --steps 12
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import paddle
from paddlenlp.trainer import Trainer, TrainerCallback, TrainingArguments
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "ernie_reviews"))

import train as example
from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

WAYS: dict[str, dict[str, Any] | None] = {
    "native accumulation": None,
    "ours, slices in order": {"gradient_accumulation": {"steps": 4, "slice_by": "order"}},
    "ours, slices by length": {"gradient_accumulation": {"steps": 4, "slice_by": "length"}},
    "ours, by length + recompute": {
        "gradient_accumulation": {"steps": 4},
        "recompute": {"layers": ["ernie.encoder.layers.*"]},
    },
}


class Clock(TrainerCallback):
    """Seconds of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """The step begins."""
        self.start = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """The step is over."""
        self.seconds.append(time.perf_counter() - self.start)


def run(keys: dict[str, Any] | None, steps: int) -> tuple[list[float], dict[str, Any]]:
    """Seconds of each step after the first two, and the weights at the end."""
    gc.collect()
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, paddle.utils.unique_name.guard():
        reviews = [review for review in example.load_reviews(200) if len(review.text) >= 8][:2000]
        tokenizer = example.ErnieTokenizer(str(example.write_vocabulary(reviews, Path(folder) / "vocab.txt")))
        paddle.seed(1)
        trainer = Trainer(
            model=example.build_model(example.ExampleArguments(dropout=0.0, max_length=200), tokenizer),
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=4,
                max_steps=steps,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=example.ReviewDataset(reviews, tokenizer, 200),
            data_collator=example.DataCollatorWithPadding(tokenizer),
            callbacks=[*([] if keys is None else [MemoryCallback(keys)]), clock],
        )
        trainer.train()
    return clock.seconds[2:], {name: value.numpy() for name, value in trainer.model.state_dict().items()}


def distance(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Relative L2 difference over all weights."""
    square = sum(float(((ours[name] - theirs[name]) ** 2).sum()) for name in theirs)
    return float((square / sum(float((theirs[name] ** 2).sum()) for name in theirs)) ** 0.5)


def main() -> None:
    """Run every way, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    steps = parser.parse_args().steps
    results = {name: run(keys, steps) for name, keys in WAYS.items()}
    base_seconds = statistics.median(results["native accumulation"][0])
    table = Table(title=f"ERNIE on reviews, 32 = 4 x 8 rows a step, {steps} steps")
    for column in ("way", "step", "speed against native", "weights against native"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, (seconds, weights) in results.items():
        median = statistics.median(seconds)
        difference = distance(weights, results["native accumulation"][1])
        table.add_row(name, f"{median:.2f} s", f"{base_seconds / median:.2f} x", f"{difference:.1e}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
