"""The error that a layer's name goes with."""

from __future__ import annotations


class RecomputeError(RuntimeError):
    """A layer cannot be recomputed exactly, or a name fits no layer. The message names the layer and the remedy."""


def unit_error(name: str, class_name: str, what: str, remedy: str) -> RecomputeError:
    """The one form that all messages about a unit have."""
    return RecomputeError(f"recompute unit '{name}' ({class_name}): {what} -> {remedy}")
