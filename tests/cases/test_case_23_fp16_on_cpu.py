"""fp16 and bf16 on a CPU: one message, fp32, and the training goes on."""

import paddle
import pytest

pytestmark = pytest.mark.paddlenlp


def train(tmp_path, callbacks, **arguments):
    from paddlenlp.trainer import Trainer, TrainingArguments

    class Rows(paddle.io.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"x": [1.0, 2.0]}

    class Plain(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            return model(inputs["x"].astype("float32")).mean()

    paddle.seed(0)
    trainer = Plain(
        model=paddle.nn.Linear(2, 1),
        args=TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=1,
            max_steps=2,
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
    return trainer


def test_the_trainer_alone_crashes(tmp_path):
    with pytest.raises(AttributeError, match="_cache_found_inf"):
        train(tmp_path, [], fp16=True)


@pytest.mark.parametrize(
    ("arguments", "keys", "message"),
    [
        ({"fp16": True}, {}, "fp16 loss scaling is off on cpu; training in fp32"),
        ({"bf16": True}, {}, "bf16 autocast has no effect on cpu; training in fp32"),
        ({}, {"amp": True}, "fp16 loss scaling is off on cpu; training in fp32"),
        ({"fp16": True, "fp16_opt_level": "O2"}, {}, "fp16 loss scaling is off on cpu; training in fp32"),
    ],
)
def test_one_message_and_fp32(tmp_path, caplog, arguments, keys, message):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        trainer = train(tmp_path, [MemoryCallback(keys)], **arguments)
    assert trainer.state.global_step == 2
    assert [record.getMessage() for record in caplog.records].count(message) == 1
    assert trainer.model.weight.dtype == paddle.float32
    assert trainer.args.fp16 is arguments.get("fp16", False)


def test_off_by_name_against_the_flag_is_a_contradiction(tmp_path):
    from paddle_memcallbacks.integrations.paddlenlp import MemoryCallback

    from paddle_memcallbacks import ConfigError

    with pytest.raises(ConfigError, match="amp.enable.*fp16=True"):
        train(tmp_path, [MemoryCallback({"amp": {"enable": False}})], fp16=True)
