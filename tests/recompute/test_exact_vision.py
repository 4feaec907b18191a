"""Real vision models, with dropout and BatchNorm's running statistics, bit for bit."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.vision import models

from paddle_memcallbacks.recompute import find_units
from tests.recompute.steps import assert_same, data, train


def classify(model):
    return nn.functional.cross_entropy(model(data(2, 3, 32, 32)), paddle.to_tensor([1, 3]))


@pytest.mark.parametrize(
    ("make", "units"),
    [
        (lambda: models.resnet18(num_classes=5), [f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)]),
        (lambda: models.mobilenet_v2(num_classes=5, scale=0.35), [f"features.{i}" for i in range(1, 18)]),
    ],
    ids=["resnet18", "mobilenet_v2"],
)
def test_gradients_and_statistics(make, units):
    with paddle.utils.unique_name.guard():
        assert find_units(make()) == units
    plain = train(make, classify, None, steps=2, optimizer=paddle.optimizer.SGD)
    assert_same(plain, train(make, classify, units, steps=2, optimizer=paddle.optimizer.SGD))
    statistics = [name for name in plain[0] if name.endswith("._mean")]
    assert statistics
    assert all(not np.array_equal(plain[0][name], plain[1][name]) for name in statistics)


@pytest.mark.parametrize(
    ("make", "count", "first"),
    [
        (models.resnet50, 16, "layer1.0"),
        (models.mobilenet_v1, 13, "conv2_1"),
        (models.vgg11, 2, "features"),
        (models.alexnet, 3, "_conv1"),
        (models.googlenet, 9, "_ince3a"),
        (models.shufflenet_v2_x0_25, 16, None),
        (models.squeezenet1_0, 8, None),
        (models.densenet121, 58, None),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_blocks_of_paddles_own_models(make, count, first):
    found = find_units(make(num_classes=5))
    assert (len(found), found[0] if first else None) == (count, first), found
