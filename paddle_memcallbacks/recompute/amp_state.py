"""The tracer's AMP settings: read, put back, and off for copies.

They are set on the tracer itself: entering `auto_cast` again would register O2's master-gradient hook a second time,
and on a CPU it would warn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import paddle
from paddle.base import core


@dataclass(frozen=True)
class AmpState:
    """Level, dtype, op lists and promotion, as the tracer has them."""

    level: Any
    dtype: Any
    op_lists: Any
    use_promote: Any

    @classmethod
    def now(cls) -> AmpState:
        """The settings as they are now."""
        tracer = paddle.framework._dygraph_tracer()
        return cls(
            level=tracer._amp_level,
            dtype=tracer._amp_dtype,
            op_lists=tracer._get_amp_op_list() if tracer._amp_level != core.AmpLevel.O0 else None,
            use_promote=tracer._use_promote,
        )

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Run the body under these settings."""
        tracer = paddle.framework._dygraph_tracer()
        before = tracer._amp_level, tracer._amp_dtype, tracer._use_promote, tracer._get_amp_op_list()
        tracer._amp_level = self.level
        tracer._amp_dtype = self.dtype
        tracer._use_promote = self.use_promote
        if self.op_lists is not None:
            tracer._set_amp_op_list(*self.op_lists)
        try:
            yield
        finally:
            tracer._amp_level, tracer._amp_dtype, tracer._use_promote = before[:3]
            tracer._set_amp_op_list(*before[3])


@contextmanager
def amp_off() -> Iterator[None]:
    """Run the body without AMP: under O2 even a copy would be cast."""
    tracer = paddle.framework._dygraph_tracer()
    level = tracer._amp_level
    tracer._amp_level = core.AmpLevel.O0
    try:
        yield
    finally:
        tracer._amp_level = level
