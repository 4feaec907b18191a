"""``recompute=True`` on layers that do not know it: the memory drops, where the Trainer's own flag is ignored."""

import paddle
import pytest
from paddle.base import core

pytestmark = pytest.mark.paddlenlp


def held_after_forward(tmp_path, recompute, callbacks):
    from paddlenlp.trainer import Trainer, TrainingArguments

    held = []

    class Block(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.a, self.b = paddle.nn.Linear(64, 256), paddle.nn.Linear(256, 64)

        def forward(self, x):
            return x + self.b(paddle.nn.functional.gelu(self.a(x)))

    class Net(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.e = paddle.nn.Linear(8, 64)
            self.l = paddle.nn.LayerList([Block() for _ in range(6)])

        def forward(self, x):
            before = core.host_memory_stat_current_value("Allocated", 0)
            hidden = self.e(x)
            for layer in self.l:
                hidden = layer(hidden)
            held.append(core.host_memory_stat_current_value("Allocated", 0) - before)
            return (hidden**2).mean()

    class Rows(paddle.io.Dataset):
        def __len__(self):
            return 256

        def __getitem__(self, index):
            return {"x": [float(index % 3)] * 8}

    class Plain(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return model(inputs["x"].astype("float32"))

    trainer = Plain(
        model=Net(),
        args=TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=256,
            max_steps=1,
            recompute=recompute,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            device="cpu",
        ),
        train_dataset=Rows(),
        callbacks=callbacks,
    )
    trainer.train()
    return held[0], trainer


def test_the_trainers_own_flag_does_nothing(tmp_path):
    with_flag, _ = held_after_forward(tmp_path, True, [])
    without, _ = held_after_forward(tmp_path, False, [])
    assert with_flag == without


def test_the_flag_is_taken_over_and_saves(tmp_path, caplog):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    plain, _ = held_after_forward(tmp_path, False, [MemoryCallback()])
    with caplog.at_level("INFO", logger="paddle_memcallbacks"):
        recomputed, trainer = held_after_forward(tmp_path, True, [MemoryCallback()])
    assert recomputed < 0.25 * plain
    assert "recompute=True is taken over" in caplog.text
    assert trainer.args.recompute is True


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    from paddle_memcallbacks import RecomputeError

    with pytest.raises(RecomputeError, match="encoder"):
        held_after_forward(tmp_path, False, [MemoryCallback({"recompute": {"layers": ["encoder.*"]}})])
