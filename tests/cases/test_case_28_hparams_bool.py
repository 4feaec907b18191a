"""VisualDL's add_hparams refuses a bool under protobuf 7: the Trainer dies before its first step, ours goes on."""

import paddle
import pytest

pytestmark = pytest.mark.paddlenlp


@pytest.fixture
def protobuf_7(monkeypatch):
    """VisualDL as it behaves under protobuf 7 (this environment pins protobuf below it)."""
    from visualdl import LogWriter

    seen = []
    add_hparams = LogWriter.add_hparams

    def refuse_bools(self, hparams_dict, metrics_list, walltime=None):
        seen.append(dict(hparams_dict))
        if any(isinstance(value, bool) for value in hparams_dict.values()):
            raise TypeError("bad argument type for built-in operation: Expected an int, got a boolean.")
        return add_hparams(self, hparams_dict, metrics_list, walltime)

    monkeypatch.setattr(LogWriter, "add_hparams", refuse_bools)
    return seen


def train(tmp_path, callbacks):
    from paddlenlp.trainer import Trainer, TrainingArguments

    class Rows(paddle.io.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return {"x": [1.0, 2.0]}

    class Plain(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return model(inputs["x"].astype("float32")).mean()

    trainer = Plain(
        model=paddle.nn.Linear(2, 1),
        args=TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=1,
            max_steps=1,
            save_strategy="no",
            report_to=["visualdl"],
            disable_tqdm=True,
            device="cpu",
        ),
        train_dataset=Rows(),
        callbacks=callbacks,
    )
    trainer.train()
    return trainer


def test_the_trainer_alone_dies(tmp_path, protobuf_7):
    with pytest.raises(TypeError, match="Expected an int"):
        train(tmp_path, [])


def test_bools_go_as_text(tmp_path, protobuf_7, caplog):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        assert train(tmp_path, [MemoryCallback()]).state.global_step == 1
    assert protobuf_7[0]["do_train"] == "False"
    assert "VisualDL callback failed" not in caplog.text


def test_any_other_failure_of_the_writer_is_one_warning(tmp_path, monkeypatch, caplog):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback
    from visualdl import LogWriter

    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LogWriter, "add_text", full)
    monkeypatch.setattr(LogWriter, "add_scalar", full)
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        assert train(tmp_path, [MemoryCallback({"memory": {"interval": 1}})]).state.global_step == 1
    assert caplog.text.count("PaddleNLP's VisualDL callback failed") == 1
