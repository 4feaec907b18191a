"""Writes a small detection set in COCO format: real handwritten digits, placed into scenes.

The digits are scikit-learn's `load_digits` (1,797 scans of 8x8 pixels from the UCI set "Optical Recognition of
Handwritten Digits"). Those of the training scenes and those of the validation scenes are different scans. The same
arguments give the same bytes.

    python examples/detection/scenes.py DIRECTORY [--train 240] [--val 40] [--side 160] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from sklearn.datasets import load_digits

VALIDATION_SHARE = 0.2
MOST_DIGITS = 6
SMALLEST_SIDE, LARGEST_SIDE = 20, 56
LARGEST_OVERLAP = 0.1


def write_scenes(directory: str | Path, train: int = 240, val: int = 40, side: int = 160, seed: int = 0) -> Path:
    """Write `train` and `val` scenes of side x side pixels with their COCO files; returns the directory.

    Layout: ``images/*.png``, ``train.json``, ``val.json``. Every scene holds 1 to 6 digits, each a box of its class
    (category ids 1 to 10 for the digits 0 to 9).
    """
    root = Path(directory)
    (root / "images").mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(seed)
    scans, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(scans))
    held_out = int(len(scans) * VALIDATION_SHARE)
    for name, count, members in (("train", train, order[held_out:]), ("val", val, order[:held_out])):
        images: list[dict[str, Any]] = []
        boxes: list[dict[str, Any]] = []
        for index in range(count):
            file_name = f"{name}_{index:05d}.png"
            image, found = _scene(rng, scans, labels, members, side)
            cv2.imwrite(str(root / "images" / file_name), image)
            images.append({"id": index + 1, "file_name": file_name, "width": side, "height": side})
            for label, box in found:
                boxes.append(_annotation(len(boxes) + 1, index + 1, label, box))
        categories = [{"id": digit + 1, "name": str(digit)} for digit in range(10)]
        content = {"images": images, "annotations": boxes, "categories": categories}
        (root / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return root


def _annotation(identity: int, image_id: int, label: int, box: tuple[int, int, int]) -> dict[str, Any]:
    x, y, side = box
    return {
        "id": identity,
        "image_id": image_id,
        "category_id": label + 1,
        "bbox": [x, y, side, side],
        "area": side * side,
        "iscrowd": 0,
    }


def _scene(
    rng: np.random.RandomState, scans: np.ndarray, labels: np.ndarray, members: np.ndarray, side: int
) -> tuple[np.ndarray, list[tuple[int, tuple[int, int, int]]]]:
    """One BGR image on a noisy gradient, and the (digit, (x, y, side)) placed into it."""
    slope = rng.uniform(-0.3, 0.3, size=2)
    grid = np.arange(side) - side / 2
    ground = 110 + slope[0] * grid[:, None] + slope[1] * grid[None, :]
    canvas = (ground[..., None] + rng.normal(0, 12, size=(side, side, 3))).astype("float32")
    placed: list[tuple[int, tuple[int, int, int]]] = []
    for _ in range(rng.randint(1, MOST_DIGITS + 1)):
        box = _free_place(rng, side, [other for _, other in placed])
        if box is None:
            continue
        member = int(members[rng.randint(len(members))])
        x, y, size = box
        ink = cv2.resize(scans[member].reshape(8, 8).astype("float32") / 16, (size, size))
        color = rng.uniform(150, 255, size=3) if rng.rand() < 0.5 else rng.uniform(0, 60, size=3)
        patch = canvas[y : y + size, x : x + size]
        patch += ink[..., None] * (color - patch)
        placed.append((int(labels[member]), box))
    return np.clip(canvas, 0, 255).astype("uint8"), placed


def _free_place(
    rng: np.random.RandomState, side: int, others: list[tuple[int, int, int]]
) -> tuple[int, int, int] | None:
    for _ in range(20):
        size = int(rng.randint(SMALLEST_SIDE, min(LARGEST_SIDE, side) + 1))
        x, y = (int(value) for value in rng.randint(0, side - size + 1, size=2))
        if all(_overlap((x, y, size), other) <= LARGEST_OVERLAP for other in others):
            return x, y, size
    return None


def _overlap(first: tuple[int, int, int], second: tuple[int, int, int]) -> float:
    """Shared area over the smaller box's area."""
    width = min(first[0] + first[2], second[0] + second[2]) - max(first[0], second[0])
    height = min(first[1] + first[2], second[1] + second[2]) - max(first[1], second[1])
    return max(width, 0) * max(height, 0) / min(first[2], second[2]) ** 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    for name, default in (("train", 240), ("val", 40), ("side", 160), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    root = write_scenes(arguments.directory, arguments.train, arguments.val, arguments.side, arguments.seed)
    for name in ("train", "val"):
        content = json.loads((root / f"{name}.json").read_text(encoding="utf-8"))
        print(f"{name}: {len(content['images'])} scenes, {len(content['annotations'])} digits")


if __name__ == "__main__":
    main()
