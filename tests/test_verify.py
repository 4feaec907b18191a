"""``paddle-mem verify``: gradients compared by group, and what their difference is called."""

import math

import numpy as np
import pytest

from paddle_memcallbacks.verify import Verdict, compare, group_of


@pytest.mark.parametrize(
    ("relative", "word"),
    [
        (0.0, "exact, bit for bit"),
        (3e-8, "exact to rounding (3.0e-08)"),
        (0.037, "approximate (3.7e-02)"),
        (None, "refused"),
    ],
)
def test_the_word(relative, word):
    assert Verdict("way", "group", relative).word == word


def test_groups_are_compared_apart():
    whole = {"a.b.c.weight": np.ones(4), "a.d.weight": np.ones(4)}
    other = {"a.b.c.weight": np.ones(4), "a.d.weight": np.full(4, 1.5)}
    verdicts = {verdict.group: verdict.relative for verdict in compare("way", whole, other)}
    assert verdicts == {"a.b": 0.0, "a.d": 0.5}


def test_a_missing_gradient_is_no_small_difference():
    assert compare("way", {"a.weight": np.ones(2)}, {})[0].relative == math.inf
    assert compare("way", {}, {"a.weight": np.ones(2)})[0].relative == math.inf


def test_the_group_of_a_name():
    assert group_of("ernie.encoder.layers.0.norm1.weight") == "ernie.encoder"
    assert group_of("classifier.weight") == "classifier"
    assert group_of("weight") == "weight"


def test_batch_norm_is_not_called_exact():
    import paddle

    import paddle_memcallbacks as pm
    from paddle_memcallbacks.verify import Verifier

    model = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.BatchNorm1D(8), paddle.nn.Linear(8, 1))
    optimizer = paddle.optimizer.SGD(parameters=model.parameters())
    session = pm.Session({}, model=model, optimizer=optimizer)
    functions = session.plain_functions(lambda model, batch: (model(batch) ** 2).mean())
    verdicts = Verifier(model, session.loop, paddle.randn([8, 4]), *functions).verify([])
    assert verdicts[0].word == "refused"
    assert "BatchNorm" in verdicts[0].why
    assert model[1].training
