"""Where a step's memory goes, by name: what each repeated block leaves allocated after its forward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import paddle

from paddle_memcallbacks.memory import allocated_bytes
from paddle_memcallbacks.recompute import in_second_pass

MIB = 2**20
_SHOWN = 5


@contextlib.contextmanager
def held_by_unit(model: paddle.nn.Layer, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Measure the named layers' forwards that run inside; nothing waits for the device.

    Args:
        model: the bare model.
        names: dotted names of layers.

    Yields:
        Name -> allocated bytes that its forward added, the largest of its calls; filled as the forwards run.
    """
    held: dict[str, int] = {}
    layers = dict(model.named_sublayers())
    with contextlib.ExitStack() as stack:
        for name in names:
            before: list[int] = []

            def enter(layer: Any, inputs: Any, before: list[int] = before) -> None:
                before.append(allocated_bytes())

            def leave(layer: Any, inputs: Any, outputs: Any, before: list[int] = before, name: str = name) -> None:
                added = allocated_bytes() - before.pop()
                if not in_second_pass():
                    held[name] = max(held.get(name, 0), added)

            stack.callback(layers[name].register_forward_pre_hook(enter).remove)
            stack.callback(layers[name].register_forward_post_hook(leave).remove)
        yield held


def held_text(held: Mapping[str, int]) -> str:
    """The largest units in one line, with their share of all."""
    total = sum(held.values())
    largest = sorted(held.items(), key=lambda item: -item[1])[:_SHOWN]
    shown = ", ".join(f"{name} {size / MIB:.2f} MiB" for name, size in largest)
    more = f", and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
    return f"held after forward by {len(held)} units of a micro-batch: {total / MIB:.2f} MiB ({shown}{more})"


def held_table(held: Mapping[str, int]) -> str:
    """Every unit, in the order of their forwards, for the record and VisualDL."""
    return "\n".join(f"{name}: {size / MIB:.3f} MiB" for name, size in held.items())
