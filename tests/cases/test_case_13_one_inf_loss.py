"""One infinite loss: logged where it happened, named, and gone from the step after it."""

import math

import paddle
import pytest

pytestmark = pytest.mark.paddlenlp


def logged_losses(tmp_path, callbacks, **arguments):
    from paddlenlp.trainer import Trainer, TrainingArguments

    class Rows(paddle.io.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return {"i": index}

    class Net(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.w = self.create_parameter([1])

        def forward(self, i):
            loss = (self.w * 0).sum() + 1.0
            return loss + (paddle.to_tensor(float("inf")) if (i == 2).any() else 0.0)

    class InOrder(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return model(inputs["i"])

        def _get_train_sampler(self):
            return paddle.io.BatchSampler(dataset=self.train_dataset, shuffle=False, batch_size=1)

    trainer = InOrder(
        model=Net(),
        args=TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=1,
            num_train_epochs=1,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            device="cpu",
            **arguments,
        ),
        train_dataset=Rows(),
        callbacks=callbacks,
    )
    trainer.train()
    assert bool(paddle.isfinite(trainer.model.w).all())
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_the_trainers_own_log_stays_nan(tmp_path):
    losses = logged_losses(tmp_path, [])
    assert math.isinf(losses[2])
    assert all(math.isnan(loss) for loss in losses[3:])


def test_only_the_bad_step_is_logged_so_and_named(tmp_path, caplog):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        losses = logged_losses(tmp_path, [MemoryCallback()])
    assert losses == [1.0, 1.0, math.inf, 1.0, 1.0, 1.0]
    assert "non-finite loss in 1 step(s): 3" in caplog.text
