"""Is this review positive? ERNIE on real Chinese reviews, with PaddleNLP's Trainer.

All that concerns memory is one callback and its keys:

    python train.py --output_dir out --per_device_train_batch_size 8 --gradient_accumulation_steps 4 \
        --recompute_layers 'ernie.encoder.layers.*'
    python train.py run.yml              # the same keys, nested in a file

ERNIE starts from random weights of a small configuration; --model_name_or_path ernie-3.0-medium-zh takes trained ones
where there is a network.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import paddle
from paddle_memcallbacks.integrations.paddlenlp import MemoryArgumentParser, MemoryArguments, MemoryCallback
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.trainer import Trainer, TrainingArguments
from paddlenlp.transformers import ErnieConfig, ErnieForSequenceClassification, ErnieTokenizer
from reviews import Review, load_reviews, write_vocabulary


@dataclass
class ExampleArguments:
    """What this example adds to the Trainer's arguments."""

    model_name_or_path: str = field(default="", metadata={"help": "Trained ERNIE weights; empty: random ones."})
    max_length: int = field(default=128, metadata={"help": "Reviews are cut to this many characters."})
    hidden_size: int = field(default=128, metadata={"help": "Width of the random ERNIE."})
    num_hidden_layers: int = field(default=4, metadata={"help": "Depth of the random ERNIE."})
    dropout: float = field(default=0.1, metadata={"help": "Dropout probability."})
    train_rows: int = field(default=20000, metadata={"help": "Reviews to train on."})
    eval_rows: int = field(default=500, metadata={"help": "Reviews to evaluate on."})
    save_weights: str = field(default="", metadata={"help": "File for the weights at the end."})


class ReviewDataset(paddle.io.Dataset):
    """Tokenised reviews; lengths vary, the collator pads a batch to its longest row."""

    def __init__(self, reviews: list[Review], tokenizer: ErnieTokenizer, max_length: int) -> None:
        super().__init__()
        self.reviews, self.tokenizer, self.max_length = reviews, tokenizer, max_length

    def __getitem__(self, index: int) -> dict[str, object]:
        review = self.reviews[index]
        encoded = self.tokenizer(review.text, max_length=self.max_length, truncation=True, return_attention_mask=True)
        return {**encoded, "labels": review.label}

    def __len__(self) -> int:
        return len(self.reviews)


def build_model(example: ExampleArguments, tokenizer: ErnieTokenizer) -> paddle.nn.Layer:
    """ERNIE for two classes: trained weights where a name is given, else random ones."""
    if example.model_name_or_path:
        return ErnieForSequenceClassification.from_pretrained(example.model_name_or_path, num_classes=2)
    config = ErnieConfig(
        vocab_size=len(tokenizer.vocab),
        hidden_size=example.hidden_size,
        num_hidden_layers=example.num_hidden_layers,
        num_attention_heads=max(example.hidden_size // 32, 1),
        intermediate_size=4 * example.hidden_size,
        max_position_embeddings=max(example.max_length, 64),
        hidden_dropout_prob=example.dropout,
        attention_probs_dropout_prob=example.dropout,
        num_labels=2,
    )
    return ErnieForSequenceClassification(config)


def main() -> None:
    """Train as the command line says."""
    parser = MemoryArgumentParser((ExampleArguments, TrainingArguments, MemoryArguments))
    from_file = len(sys.argv) > 1 and sys.argv[1].endswith((".json", ".yml", ".yaml"))
    parsed = parser.parse_json_file_and_cmd_lines() if from_file else parser.parse_args_into_dataclasses()
    example, training, memory = parsed

    reviews = load_reviews(example.max_length)
    if example.model_name_or_path:
        tokenizer = ErnieTokenizer.from_pretrained(example.model_name_or_path)
    else:
        tokenizer = ErnieTokenizer(str(write_vocabulary(reviews, Path(training.output_dir) / "vocab.txt")))
    paddle.seed(training.seed)
    trainer = Trainer(
        model=build_model(example, tokenizer),
        args=training,
        train_dataset=ReviewDataset(reviews[: example.train_rows], tokenizer, example.max_length),
        eval_dataset=ReviewDataset(reviews[-example.eval_rows :], tokenizer, example.max_length),
        data_collator=DataCollatorWithPadding(tokenizer),
        tokenizer=tokenizer,
        compute_metrics=lambda result: {
            "accuracy": float((result.predictions.argmax(-1) == result.label_ids.reshape([-1])).mean())
        },
        callbacks=[MemoryCallback(memory)],
    )
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    if training.do_eval:
        trainer.evaluate()
    if example.save_weights:
        paddle.save(trainer.model.state_dict(), example.save_weights)


if __name__ == "__main__":
    main()
