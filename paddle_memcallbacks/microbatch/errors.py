"""The error of this room."""

from __future__ import annotations


class MicroBatchError(RuntimeError):
    """A batch or its loss cannot be taken apart exactly; the message says why and what to do instead."""
