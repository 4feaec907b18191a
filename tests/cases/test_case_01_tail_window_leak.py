"""An epoch's unfinished window: a step of its own, averaged over what it holds, never carried into the next epoch."""

import paddle
import pytest

pytestmark = pytest.mark.paddlenlp


def gradients_of_each_step(tmp_path, callbacks, fixed_sampler=True, **arguments):
    from paddlenlp.trainer import Trainer, TrainerCallback, TrainingArguments

    class Powers(paddle.io.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return {"x": float(10**index)}

    class Net(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.w = self.create_parameter([1], default_initializer=paddle.nn.initializer.Constant(0.0))

        def forward(self, x):
            return (self.w * x.astype("float32")).mean()

    class InOrder(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return model(**inputs)

        def _get_train_sampler(self):
            size = 1 if fixed_sampler else self.args.per_device_train_batch_size
            return paddle.io.BatchSampler(dataset=self.train_dataset, shuffle=False, batch_size=size)

    seen = []

    class Spy(TrainerCallback):
        def on_optimizer_begin(self, args, state, control, **kwargs):
            seen.append(float(net.w.grad))

    net = Net()
    settings = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 0.0,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "device": "cpu",
        **arguments,
    }
    optimizer = paddle.optimizer.SGD(paddle.optimizer.lr.LambdaDecay(1e-9, lambda step: 1.0), net.parameters())
    trainer = InOrder(
        model=net,
        args=TrainingArguments(output_dir=str(tmp_path), **settings),
        train_dataset=Powers(),
        optimizers=(optimizer, optimizer._learning_rate),
        callbacks=[*callbacks, Spy()],
    )
    trainer.train()
    left = net.w.grad
    return seen, 0.0 if left is None else float(left), trainer


def test_the_trainers_own_accumulation_leaks(tmp_path):
    seen, _, _ = gradients_of_each_step(tmp_path, [])
    assert len(seen) == 4
    assert seen[2] == pytest.approx((10000 + 1 + 10) / 2)


@pytest.mark.parametrize("fixed_sampler", [True, False])
def test_every_window_is_a_step_of_its_own(tmp_path, fixed_sampler):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    seen, left, trainer = gradients_of_each_step(tmp_path, [MemoryCallback()], fixed_sampler)
    assert seen == pytest.approx([5.5, 550, 10000, 5.5, 550, 10000], rel=1e-6)
    assert left == 0
    assert trainer.state.global_step == trainer.state.max_steps == 6


def test_more_accumulation_than_batches_keeps_the_users_arguments(tmp_path):
    """The toolkit rewrites gradient_accumulation_steps where an epoch is shorter; ours does not."""
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    seen, left, trainer = gradients_of_each_step(
        tmp_path, [MemoryCallback()], False, gradient_accumulation_steps=8, num_train_epochs=3
    )
    assert seen == pytest.approx([11111 / 5] * 3, rel=1e-6)
    assert left == 0
    assert trainer.args.gradient_accumulation_steps == 8
    assert trainer.args.per_device_train_batch_size == 1
