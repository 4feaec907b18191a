"""The main job: ERNIE on real reviews through PaddleNLP's Trainer, the same training in less memory."""

import gc
import json

import numpy as np
import paddle
import pytest

from .ernie import losses, relative_difference, train_ernie, weights

pytestmark = pytest.mark.paddlenlp

ACCUMULATION = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
RECOMPUTE = {"recompute": {"layers": ["ernie.encoder.layers.*"]}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The whole batch without this library, dropout off."""
    trainer = train_ernie(tmp_path_factory.mktemp("plain"), None)
    return losses(trainer), weights(trainer)


def test_accumulation_is_the_whole_batch_for_thirty_steps(tmp_path, plain):
    trainer = train_ernie(tmp_path, {}, **ACCUMULATION)
    ours = losses(trainer)
    assert len(ours) == len(plain[0]) == 30
    assert ours == pytest.approx(plain[0], rel=1e-5)
    assert relative_difference(weights(trainer), plain[1]) < 1e-4
    assert trainer.args.gradient_accumulation_steps == 4


def test_the_callback_alone_changes_no_bit(tmp_path, plain):
    trainer = train_ernie(tmp_path, {})
    assert losses(trainer) == plain[0]
    ours = weights(trainer)
    assert all(np.array_equal(ours[name], value) for name, value in plain[1].items())


def test_recompute_changes_no_bit_with_dropout_on(tmp_path):
    without = train_ernie(tmp_path / "without", None, dropout=0.1)
    with_it = train_ernie(tmp_path / "with", RECOMPUTE, dropout=0.1)
    assert losses(with_it) == losses(without)
    ours, theirs = weights(with_it), weights(without)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def metrics_of(folder):
    lines = [json.loads(line) for line in (folder / "memcallbacks.jsonl").read_text().splitlines()]
    return [line["metrics"] for line in lines if "metrics" in line]


def test_both_together_hold_a_tenth_and_peak_at_two_fifths(tmp_path):
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "max_steps": 4}
    train_ernie(tmp_path / "a", {}, per_device_train_batch_size=32, **sizes)
    accumulation = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    train_ernie(tmp_path / "b", RECOMPUTE, **accumulation, **sizes)
    before, after = metrics_of(tmp_path / "a")[1:], metrics_of(tmp_path / "b")[1:]

    def held(steps):
        return max(step["memory/held_after_forward_gib"] for step in steps)

    def activations_at_peak(steps):
        return max(step["memory/peak_backward_gib"] - step["memory/base_gib"] for step in steps)

    assert held(after) <= 0.1 * held(before)
    assert activations_at_peak(after) <= 0.4 * activations_at_peak(before)
    assert after[-1]["accumulation/micro_batches"] == 4
    assert after[-1]["recompute/units"] == 4


def test_bytes_repeat_within_one_percent(tmp_path):
    seen = []
    for name in "ab":
        gc.collect()
        train_ernie(tmp_path / name, {}, max_steps=3, hidden_size=128, **ACCUMULATION)
        last = metrics_of(tmp_path / name)[-1]
        base = last["memory/base_gib"]
        seen.append(
            [
                last["memory/peak_forward_gib"] - base,
                last["memory/peak_backward_gib"] - base,
                last["memory/held_after_forward_gib"],
            ]
        )
    assert seen[0] == pytest.approx(seen[1], rel=0.01)
    assert min(seen[0]) > 0


def test_metrics_reach_log_history_and_visualdl(tmp_path):
    from visualdl.reader.reader import LogReader

    trainer = train_ernie(
        tmp_path,
        {"memory": {"interval": 1}, "visualdl": {"interval": 1}},
        max_steps=3,
        report_to=["visualdl"],
        logging_dir=str(tmp_path / "vdl"),
        **ACCUMULATION,
    )
    entry = next(entry for entry in trainer.state.log_history if entry.get("step") == 3)
    assert entry["memory/peak_backward_gib"] > 0
    trainer.evaluate()
    files = list((tmp_path / "vdl").glob("*vdlrecords*"))
    assert len(files) == 1
    reader = LogReader(file_path=str(files[0]))
    assert [point.id for point in reader.get_data("scalar", "memory/peak_backward_gib")] == [1, 2, 3]
    assert [point.id for point in reader.get_data("scalar", "train/loss")] == [1, 2, 3]
    # evaluated after train(), when the Trainer's own callback has closed its writer
    assert reader.get_data("scalar", "eval/loss")[-1].id == 3


def test_saved_arguments_show_the_users_values(tmp_path):
    trainer = train_ernie(tmp_path, RECOMPUTE, max_steps=2, save_strategy="steps", save_steps=2, **ACCUMULATION)
    saved = paddle.load(str(tmp_path / "checkpoint-2" / "training_args.bin"))
    assert (saved.per_device_train_batch_size, saved.gradient_accumulation_steps) == (4, 4)
    assert type(saved) is type(trainer.args)


@pytest.mark.parametrize("keys", [{}, RECOMPUTE])
def test_resume_is_bit_equal(tmp_path, keys):
    settings = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "dropout": 0.1, **ACCUMULATION}
    whole = train_ernie(tmp_path / "whole", keys, **settings)
    checkpoint = str(tmp_path / "whole" / "checkpoint-3")
    resumed = train_ernie(tmp_path / "resumed", keys, resume=checkpoint, **settings)
    assert losses(resumed)[-3:] == losses(whole)[-3:]
    ours, theirs = weights(resumed), weights(whole)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_resume_under_another_batch_is_refused(tmp_path):
    from paddle_memcallbacks import ConfigError

    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
    train_ernie(tmp_path / "whole", {}, **settings, **ACCUMULATION)
    checkpoint = str(tmp_path / "whole" / "checkpoint-2")
    with pytest.raises(ConfigError, match="16 rows a step.*has 8"):
        train_ernie(
            tmp_path / "other",
            {},
            resume=checkpoint,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_steps=4,
        )


def test_resume_of_a_native_checkpoint(tmp_path, caplog):
    """The Trainer's own accumulation counts other steps an epoch: read where both agree, refused where not."""
    from paddle_memcallbacks import ConfigError

    native = {"save_strategy": "steps", "save_steps": 2, "rows": 72, "num_train_epochs": 3, **ACCUMULATION}
    train_ernie(tmp_path / "native", None, max_steps=-1, **native)
    native["save_strategy"] = "no"
    with caplog.at_level("INFO", logger="paddle_memcallbacks"):
        early = train_ernie(
            tmp_path / "early", {}, resume=str(tmp_path / "native" / "checkpoint-2"), max_steps=-1, **native
        )
    # 72 rows are 18 micro-batches: 4 whole windows and one of 2
    assert early.state.global_step == 15
    assert "4 steps an epoch there, 5 here" in caplog.text
    with pytest.raises(ConfigError, match="4 steps an epoch"):
        train_ernie(tmp_path / "late", {}, resume=str(tmp_path / "native" / "checkpoint-6"), max_steps=-1, **native)


def test_an_oom_is_replayed_and_the_run_goes_on(tmp_path, plain, caplog):
    from paddlenlp.trainer import Trainer

    class Hungry(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            if len(inputs["labels"]) > 8:
                paddle.zeros([1 << 44])
            return super().compute_loss(model, inputs, return_outputs)

    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        trainer = train_ernie(tmp_path, {}, trainer_class=Hungry)
    assert losses(trainer) == pytest.approx(plain[0], rel=1e-5)
    assert caplog.text.count("the batch is replayed") == 1
    assert trainer.callback_handler.callbacks[-2].last_run.session.loop.oom_count == 1


def test_what_cannot_be_sliced_is_refused_before_step_one(tmp_path):
    from paddlenlp.trainer import Trainer

    from paddle_memcallbacks import ConfigError

    class OwnStep(Trainer):
        def training_step(self, model, inputs):
            loss = self.compute_loss(model, inputs)
            loss.backward()
            return loss.detach()

    with pytest.raises(ConfigError, match="OwnStep.training_step never calls super"):
        train_ernie(tmp_path, {}, trainer_class=OwnStep, **ACCUMULATION)


def test_overrides_that_call_super_keep_working(tmp_path, plain):
    from paddlenlp.trainer import Trainer

    calls = {"step": 0, "loss": 0}

    class Counting(Trainer):
        def training_step(self, model, inputs):
            calls["step"] += 1
            return super().training_step(model, inputs)

        def compute_loss(self, model, inputs, return_outputs=False):
            calls["loss"] += 1
            return super().compute_loss(model, inputs, return_outputs)

    trainer = train_ernie(tmp_path, {}, trainer_class=Counting, **ACCUMULATION)
    assert losses(trainer) == pytest.approx(plain[0], rel=1e-5)
    assert calls["step"] == 30
    assert calls["loss"] >= 120
