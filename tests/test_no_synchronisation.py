"""A step in which nothing is due reads no number from a tensor: on a GPU each would wait for the device."""

import paddle
import pytest

import paddle_memcallbacks as pm

READS = ("item", "numpy", "tolist", "__float__", "__int__", "__bool__", "cpu")


@pytest.fixture
def reads(monkeypatch):
    seen = []
    for name in READS:
        original = getattr(paddle.Tensor, name)

        def counted(self, *args, _name=name, _original=original, **kwargs):
            seen.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(paddle.Tensor, name, counted)
    return seen


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"gradient_accumulation": {"steps": 4}},
        {"gradient_accumulation": {"steps": 4, "slice_by": "order"}, "recompute": {"layers": ["0", "1"]}},
    ],
)
def test_a_quiet_step_reads_nothing(reads, keys):
    model = paddle.nn.Sequential(
        *[paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.Dropout(0.1)) for _ in range(2)]
    )
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    batch = {"x": paddle.randn([8, 8])}
    with pm.Session(keys, model=model, optimizer=optimizer) as session:
        for _ in range(3):
            session.step(batch, lambda model, part: (model(part["x"]) ** 2).mean())
        reads.clear()
        for _ in range(3):
            session.step(batch, lambda model, part: (model(part["x"]) ** 2).mean())
        assert reads == []
        session.step(batch, lambda model, part: (model(part["x"]) ** 2).mean()).loss.item()
        assert reads == ["item"]
