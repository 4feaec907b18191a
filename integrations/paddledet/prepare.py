"""Around `Trainer.__init__`: our keys are read, PaddleDetection gets its own, and its reader the whole batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import paddle
from ppdet.core import workspace
from ppdet.engine import Trainer

from paddle_memcallbacks.alerts import announce, warn_once
from paddle_memcallbacks.config import AmpConfig, ConfigError, MemoryConfig

from .keys import Translation, reader_factor, refused_by_loop, translate
from .shims import apply_shims

ATTRIBUTE = "_memcallbacks"
_DEVICES = ("use_gpu", "use_npu", "use_mlu", "use_xpu")
# trains with the ordinary loop, but on a head that it builds after __init__
_OTHER_LOOPS = ("TrainerCot",)


@dataclass(frozen=True)
class Prepared:
    """What `Trainer.__init__` was built with.

    Attributes:
        config: our keys.
        reader_rows: rows of a batch as the user's TrainReader has it, per rank.
        factor: by how much the reader's batch was multiplied.
    """

    config: MemoryConfig
    reader_rows: int
    factor: int

    @property
    def micro_batch_size(self) -> int | str | None:
        """Rows of a micro-batch; None where batches are not sliced, ``auto`` where the planner chooses."""
        section = self.config.gradient_accumulation
        if not section.enable:
            return None
        return self.reader_rows if section.steps is not None else section.micro_batch_size


def read_keys(cfg: Mapping[Any, Any], beside: Mapping[str, Any] | None) -> Translation:
    """Our keys in a merged PaddleDetection config; see `keys.translate`."""
    return translate(cfg, workspace.get_registered_modules(), beside)


def initialise(
    original: Callable[..., None], trainer: Any, cfg: Any, mode: str, beside: Mapping[str, Any] | None
) -> None:
    """Run `Trainer.__init__`, prepared for our keys; without any it does what it always did.

    Raises:
        ConfigError: a key is wrong, contradicts another, or can do nothing here.
    """
    apply_shims()
    translation = read_keys(cfg, beside)
    config = translation.config
    if config is None:
        original(trainer, cfg, mode)
        return
    cfg = cfg.copy()
    cfg.update(translation.native)
    if mode.lower() != "train":
        original(trainer, cfg, mode)
        return
    refuse_other_loop(type(trainer), config)
    for note in translation.notes:
        announce(note)
    prepared = Prepared(config, _reader_rows(), reader_factor(config))
    trainer.__dict__[ATTRIBUTE] = prepared
    with _enlarged_reader(prepared), _decorate_settings(config):
        original(trainer, cfg, mode)
    if prepared.factor > 1:
        _check_batches(trainer, prepared)


def refuse_other_loop(cls: type, config: MemoryConfig | None) -> None:
    """Raise where the class trains in a loop of its own, which would ignore our keys."""
    owner = next(base for base in cls.__mro__ if "train" in vars(base))
    calls_ours = "super" in vars(owner)["train"].__code__.co_names
    own_loop = owner is not Trainer and not calls_ours
    if own_loop or cls.__name__ in _OTHER_LOOPS:
        error = refused_by_loop(cls.__name__, config)
        if error is not None:
            raise error


def on_accelerator(cfg: Mapping[str, Any]) -> bool:
    """Whether PaddleDetection switches AMP on at all: it asks its use_* keys, not the device."""
    return any(bool(cfg.get(key)) for key in _DEVICES[:3])


def amp_text(cfg: Mapping[str, Any], amp: AmpConfig) -> tuple[str, str]:
    """What is truly active of AMP, for the start line; warns once where it was asked for and a CPU cannot do it."""
    if not amp.enable:
        return "off", ""
    if on_accelerator(cfg):
        return f"{amp.dtype} {amp.level}", ""
    asked = next((key for key in _DEVICES if cfg.get(key)), "a CPU")
    text = f"amp is asked for, but PaddleDetection runs it on gpu, npu and mlu only, and this run is on {asked}"
    warn_once("paddledet_amp_cpu", f"{text}: everything is computed in fp32, without a loss scale")
    return "off", f"asked for, not on {asked}"


def _reader_rows() -> int:
    return int(workspace.global_config["TrainReader"].get("batch_size", 1))


@contextlib.contextmanager
def _enlarged_reader(prepared: Prepared) -> Iterator[None]:
    """`create('TrainReader')` reads the global config; it holds the user's own value again afterwards."""
    reader = workspace.global_config["TrainReader"]
    given = "batch_size" in reader
    reader["batch_size"] = prepared.reader_rows * prepared.factor
    try:
        yield
    finally:
        if given:
            reader["batch_size"] = prepared.reader_rows
        else:
            reader.pop("batch_size", None)


def _check_batches(trainer: Any, prepared: Prepared) -> None:
    """The Trainer's own copy of the reader's keys shows what it reads; a set smaller than one batch is named."""
    rows = prepared.reader_rows * prepared.factor
    reader = trainer.cfg["TrainReader"].copy()
    reader["batch_size"] = rows
    trainer.cfg["TrainReader"] = reader
    if len(trainer.loader) == 0:
        raise ConfigError(
            f"gradient_accumulation.steps ({prepared.factor}) makes the train reader's batch {rows} rows, and "
            f"the training set has only {len(trainer.dataset)} (drop_last is on). Take fewer steps, or a smaller "
            "TrainReader.batch_size."
        )


@contextlib.contextmanager
def _decorate_settings(config: MemoryConfig) -> Iterator[None]:
    """`Trainer.__init__` decorates for O2 without dtype and master copies; they come from our section."""
    amp = config.amp
    if not amp.enable or amp.level != "O2":
        yield
        return
    original = paddle.amp.decorate
    master_grad = amp.master_grad if amp.master_grad is not None else config.gradient_accumulation.enable
    extra = {"dtype": amp.dtype, "master_weight": amp.master_weight, "master_grad": master_grad}

    def decorate(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**extra, **kwargs})

    paddle.amp.decorate = decorate
    try:
        yield
    finally:
        paddle.amp.decorate = original
