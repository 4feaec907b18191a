"""The Trainer's methods are wrapped once, reversibly, and do nothing without a MemoryCallback."""

import copy
import pickle

import paddle
import pytest

pytestmark = pytest.mark.paddlenlp


class Rows(paddle.io.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": [float(index), 1.0]}


def build(tmp_path, callbacks, trainer_class=None, dataset=None, **settings):
    from paddlenlp.trainer import Trainer, TrainingArguments

    class Plain(trainer_class or Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return model(inputs["x"].astype("float32")).mean()

    arguments = {
        "per_device_train_batch_size": 2,
        "max_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "device": "cpu",
        **settings,
    }
    return Plain(
        model=paddle.nn.Linear(2, 1),
        args=TrainingArguments(output_dir=str(tmp_path), **arguments),
        train_dataset=dataset if dataset is not None else Rows(),
        callbacks=callbacks,
    )


def test_wrapped_once_and_put_back():
    from paddle_memcallbacks.integrations import paddlenlp as ours
    from paddlenlp.trainer import Trainer

    wrapped = Trainer.train
    ours.install()
    assert Trainer.train is wrapped
    ours.uninstall()
    try:
        assert Trainer.train is wrapped.__wrapped__
    finally:
        ours.install()


def test_nothing_happens_without_the_callback(tmp_path):
    build(tmp_path, []).train()
    assert not list(tmp_path.glob("**/memcallbacks*"))


def test_activate_gives_every_trainer_the_callback(tmp_path):
    from paddle_memcallbacks.integrations import paddlenlp as ours

    from paddle_memcallbacks.config import load_config

    ours.activate(load_config({"gradient_accumulation": {"steps": 2}}))
    try:
        build(tmp_path, []).train()
    finally:
        ours.uninstall()
        ours.install()
    assert (tmp_path / "memcallbacks.jsonl").is_file()


def test_arguments_are_the_users_again_after_an_error(tmp_path):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback
    from paddlenlp.trainer import Trainer

    class Breaks(Trainer):
        def training_step(self, model, inputs):
            super().training_step(model, inputs)
            raise RuntimeError("broken step")

    trainer = build(tmp_path, [MemoryCallback()], Breaks, gradient_accumulation_steps=4)
    own_class = type(trainer.args)
    with pytest.raises(RuntimeError, match="broken step"):
        trainer.train()
    args = trainer.args
    assert type(args) is own_class
    assert (args.gradient_accumulation_steps, args.per_device_train_batch_size, args.recompute) == (4, 2, False)
    assert "get_train_dataloader" not in trainer.__dict__


def test_the_arguments_view_shows_the_users_values():
    from paddle_memcallbacks.integrations.paddlenlp.arguments_view import overlay
    from paddlenlp.trainer import TrainingArguments

    args = TrainingArguments(output_dir="out", gradient_accumulation_steps=4, device="cpu")
    with overlay(args, gradient_accumulation_steps=1):
        assert args.gradient_accumulation_steps == 1
        assert isinstance(args, TrainingArguments)
        assert args.to_dict()["gradient_accumulation_steps"] == 4
        for twin in (pickle.loads(pickle.dumps(args)), copy.deepcopy(args), copy.copy(args)):
            assert type(twin) is TrainingArguments
            assert twin.gradient_accumulation_steps == 4
        assert not any(isinstance(value, bool) for value in args.to_sanitized_dict().values())
    assert type(args) is TrainingArguments


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"pipeline_parallel_degree": 2}, "pipeline_parallel_degree=2"), ({"sharding": ["stage1"]}, "sharding='stage1'")],
)
def test_modes_that_slice_by_themselves_are_refused(tmp_path, settings, name):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    from paddle_memcallbacks import ConfigError

    trainer = build(tmp_path, [MemoryCallback()])
    for key, value in settings.items():
        trainer.args.__dict__[key] = value
    with pytest.raises(ConfigError, match=name):
        trainer.train()


def test_a_loader_that_cannot_be_enlarged_is_refused(tmp_path):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback
    from paddlenlp.trainer import Trainer

    from paddle_memcallbacks import ConfigError

    class OwnLoader(Trainer):
        def get_train_dataloader(self):
            return [{"x": paddle.ones([2, 2])} for _ in range(4)]

    with pytest.raises(ConfigError, match="has no batch sampler that can be enlarged"):
        build(tmp_path, [MemoryCallback()], OwnLoader, gradient_accumulation_steps=2).train()
    build(tmp_path, [MemoryCallback({"gradient_accumulation": {"micro_batch_size": 1}})], OwnLoader).train()


def test_a_step_that_bypasses_ours_is_refused_before_the_optimizer_moves(tmp_path):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback
    from paddlenlp.trainer import Trainer

    from paddle_memcallbacks import ConfigError

    class Bypass(Trainer):
        def training_step(self, model, inputs):
            if False:
                return super().training_step(model, inputs)
            loss = self.compute_loss(model, inputs)
            loss.backward()
            return loss.detach()

    trainer = build(tmp_path, [MemoryCallback()], Bypass)
    before = trainer.model.weight.numpy().copy()
    with pytest.raises(ConfigError, match="past Trainer.training_step"):
        trainer.train()
    assert (trainer.model.weight.numpy() == before).all()


def test_a_loader_without_a_batch_is_refused_by_name(tmp_path):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    from paddle_memcallbacks import ConfigError

    settings = {"gradient_accumulation_steps": 8, "dataloader_drop_last": True}
    with pytest.raises(ConfigError, match="no batch: a step takes 16 rows"):
        build(tmp_path, [MemoryCallback()], **settings).train()


def test_an_iterable_dataset_trains(tmp_path):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback
    from paddlenlp.trainer import Trainer

    class Stream(paddle.io.IterableDataset):
        def __iter__(self):
            return iter([{"x": [float(index), 1.0]} for index in range(32)])

    trainer = build(tmp_path, [MemoryCallback()], Trainer, dataset=Stream(), gradient_accumulation_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2
