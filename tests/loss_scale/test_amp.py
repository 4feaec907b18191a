"""What mixed precision a device can do, and what a plain loop gets for it."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import paddle
import pytest

from paddle_memcallbacks.config import load_config
from paddle_memcallbacks.loss_scale import AmpSupport, amp, amp_support, prepare_amp
from paddle_memcallbacks.loss_scale.amp import judge_support
from tests.real_scaler import scalers_enabled


@pytest.mark.parametrize(
    ("kind", "dtype", "capability", "supported", "words"),
    [
        ("cpu", "float16", None, False, "fp16 loss scaling is off on cpu; training in fp32"),
        ("cpu", "bfloat16", None, False, "bf16 is off on cpu; training in fp32"),
        ("gpu", "float16", (6, 1), False, "float16 needs compute capability 7.0, this card has 6.1; training in fp32"),
        ("gpu", "float16", (7, 0), True, "Tensor Cores (compute capability 7.0)"),
        ("gpu", "bfloat16", (7, 5), False, "bfloat16 needs compute capability 8.0"),
        ("gpu", "bfloat16", (9, 0), True, "Tensor Cores"),
        ("gpu", "float16", None, True, "float16 on gpu"),
        ("xpu", "float16", None, True, "float16 on xpu"),
        ("npu", "bfloat16", None, True, "bfloat16 on npu"),
    ],
)
def test_support_by_device(kind, dtype, capability, supported, words):
    support = judge_support(kind, dtype, capability)
    assert support.supported is supported and words in support.reason


def test_the_least_capabilities_are_those_of_paddle():
    source = Path(paddle.__path__[0], "amp", "auto_cast.py").read_text(encoding="utf-8")
    assert "For gpu float16: Compute Capability should >= 7" in source
    assert "For gpu bfloat16: Compute Capability should >= 8" in source


def test_the_current_device_is_asked():
    assert not amp_support("cpu").supported
    assert amp_support().supported == (paddle.device.cuda.device_count() > 0)


def _parts():
    model = paddle.nn.Linear(2, 2)
    return model, paddle.optimizer.AdamW(1e-3, parameters=model.parameters())


def test_on_a_cpu_one_clear_line_and_fp32_without_paddles_warnings():
    model, optimizer = _parts()
    config = load_config({"amp": {"level": "O2"}}).amp
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared = prepare_amp(model, optimizer, config, device="cpu")
        with prepared.autocast():
            assert model(paddle.ones([1, 2])).dtype == paddle.float32
    assert (prepared.model, prepared.optimizer, prepared.scaler) == (model, optimizer, None)
    assert (prepared.active, prepared.note) == ("off", "fp16 loss scaling is off on cpu; training in fp32")


def test_turned_off_is_off():
    model, optimizer = _parts()
    prepared = prepare_amp(model, optimizer, load_config({}).amp)
    assert (prepared.active, prepared.note, prepared.scaler) == ("off", "", None)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Everything as on a card with Tensor Cores, but for the casting itself: what Paddle is asked for is recorded."""
    asked = {}

    @contextlib.contextmanager
    def auto_cast(**arguments):
        asked["auto_cast"] = arguments
        yield

    def decorate(**arguments):
        asked["decorate"] = arguments
        given = arguments["models"], arguments.get("optimizers")
        return given[0] if given[1] is None else given

    monkeypatch.setattr(amp, "amp_support", lambda device, dtype: AmpSupport(True, "Tensor Cores"))
    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    monkeypatch.setattr(paddle.amp, "decorate", decorate)
    with scalers_enabled():
        yield asked


def test_every_key_reaches_paddle(as_on_a_gpu):
    model, optimizer = _parts()
    keys = {
        "level": "O2",
        "master_weight": True,
        "master_grad": True,
        "init_loss_scaling": 512.0,
        "incr_ratio": 3.0,
        "decr_ratio": 0.25,
        "incr_every_n_steps": 7,
        "decr_every_n_nan_or_inf": 2,
        "custom_white_list": ["gelu"],
        "custom_black_list": ["matmul_v2"],
    }
    prepared = prepare_amp(model, optimizer, load_config({"amp": keys}).amp)
    assert as_on_a_gpu["decorate"] == {
        "models": model,
        "optimizers": optimizer,
        "level": "O2",
        "dtype": "float16",
        "master_weight": True,
        "master_grad": True,
    }
    scaler = prepared.scaler
    assert scaler.is_enable() and scaler.is_use_dynamic_loss_scaling()
    assert (float(scaler._scale), scaler.get_incr_ratio(), scaler.get_decr_ratio()) == (512.0, 3.0, 0.25)
    assert (scaler.get_incr_every_n_steps(), scaler.get_decr_every_n_nan_or_inf()) == (7, 2)
    with prepared.autocast():
        pass
    assert as_on_a_gpu["auto_cast"] == {
        "enable": True,
        "custom_white_list": {"gelu"},
        "custom_black_list": {"matmul_v2"},
        "level": "O2",
        "dtype": "float16",
    }
    assert (prepared.active, prepared.note) == ("O2 float16", "Tensor Cores")


def test_o1_casts_nothing_for_good_and_bfloat16_needs_no_scaler(as_on_a_gpu):
    model, optimizer = _parts()
    prepared = prepare_amp(model, optimizer, load_config({"amp": True}).amp)
    assert "decorate" not in as_on_a_gpu and prepared.scaler is not None and prepared.active == "O1 float16"
    prepared = prepare_amp(model, optimizer, load_config({"amp": {"dtype": "bfloat16"}}).amp)
    assert prepared.scaler is None and prepared.active == "O1 bfloat16"


def test_the_users_own_scaler_is_kept(as_on_a_gpu):
    model, optimizer = _parts()
    own = paddle.amp.GradScaler(init_loss_scaling=8.0)
    assert prepare_amp(model, optimizer, load_config({"amp": True}).amp, scaler=own).scaler is own


@pytest.mark.parametrize(
    ("key", "accumulates", "expected"), [(None, True, True), (None, False, False), (False, True, False)]
)
def test_master_gradients_come_with_several_micro_batches(as_on_a_gpu, key, accumulates, expected):
    model, optimizer = _parts()
    config = load_config({"amp": {"level": "O2", "master_grad": key}}).amp
    prepare_amp(model, optimizer, config, accumulates=accumulates)
    assert as_on_a_gpu["decorate"]["master_grad"] is expected


def test_o2_after_data_parallel_is_refused(as_on_a_gpu, monkeypatch):
    class Wrapped:
        pass

    monkeypatch.setattr(paddle, "DataParallel", Wrapped)
    with pytest.raises(ValueError, match=r"before paddle\.DataParallel"):
        prepare_amp(Wrapped(), None, load_config({"amp": {"level": "O2"}}).amp)
