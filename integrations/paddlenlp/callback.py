"""MemoryCallback: all that a user adds to a PaddleNLP Trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paddlenlp.trainer import TrainerCallback

from paddle_memcallbacks.config import MemoryConfig, load_config

from .run import Run


class MemoryCallback(TrainerCallback):
    """Micro-batches, recompute, memory, loss scale and VisualDL for a PaddleNLP Trainer.

    ``Trainer(..., callbacks=[MemoryCallback(cfg)])`` is all that is needed.

    Args:
        cfg: a `MemoryConfig`, a mapping of the keys, `MemoryArguments`, or the path of a YAML or JSON file. Nothing
            at all measures and shows, and takes gradient_accumulation_steps and recompute over where they are set.

    Raises:
        ConfigError: a key is wrong; the message names it and the nearest valid one.
    """

    def __init__(self, cfg: MemoryConfig | Mapping[str, Any] | str | Path | Any | None = None) -> None:
        to_config = getattr(cfg, "to_config", None)
        self.config = to_config() if to_config is not None else load_config(cfg if cfg is not None else {})
        self.run: Run | None = None
        self.last_run: Run | None = None

    @contextlib.contextmanager
    def taking_over(self, trainer: Any, base_class: type, resume_from: str | None) -> Iterator[None]:
        """Around the Trainer's own train(): the arguments are settled before it, and put back after it."""
        run = Run(self.config, trainer, base_class, resume_from)
        self.run = self.last_run = run
        reason = "finished"
        try:
            with run.settled():
                yield
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"[:500]
            raise
        finally:
            run.close(reason)
            self.run = None

    def before_log(self, trainer: Any, logs: dict[str, float]) -> None:
        """Evaluations logged after train() still reach VisualDL: its callback has closed its writer by then."""
        if self.last_run is not None:
            self.last_run.curves.before_log(logs)
        if self.run is not None:
            self.run.explain_loss(logs)

    def after_log(self, trainer: Any) -> None:
        """Our newest metrics join the Trainer's log_history."""
        run = self.run
        if run is not None and trainer.state.log_history:
            trainer.state.log_history[-1].update(run.session.metrics())

    # ---- the Trainer's events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Recompute on, moments created, the record opened."""
        if self.run is not None:
            self.run.begin(state, kwargs.get("optimizer"))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step's forward and backward must come through ours."""
        if self.run is not None:
            self.run.expect_step()

    def on_optimizer_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The peak of the optimizer's step begins."""
        if self.run is not None:
            self.run.optimizer_begin(kwargs.get("scaler"))

    def on_optimizer_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The peak of the optimizer's step ends."""
        if self.run is not None:
            self.run.optimizer_end()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Readings, alerts and writers; actions that the config names."""
        return self.run.step_end(control) if self.run is not None else None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What a resumed run needs stands beside the checkpoint."""
        if self.run is not None:
            self.run.save(Path(args.output_dir) / f"checkpoint-{state.global_step}")
