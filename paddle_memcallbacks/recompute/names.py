"""Which layers a list of patterns means. Pure: works on plain descriptions of layers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from paddle_memcallbacks.recompute.errors import RecomputeError

_WILD = frozenset("*?[")


@dataclass(frozen=True)
class LayerInfo:
    """One layer of a model as plain data.

    Attributes:
        name: dotted name, as in ``named_sublayers``; a layer with two names has two entries.
        class_name: the class's own name, without module.
        key: the same for all names of one layer object.
        called: it has a forward of its own. A LayerList has none: it stands for its children.
        listing: its children stand in a list (LayerList, Sequential).
        opaque: its children are never called themselves (LSTM, GRU: one fused kernel over flat weights).
        matrices: parameters of two and more axes that it holds itself.
        parameters: parameters that it holds itself.
    """

    name: str
    class_name: str
    key: int
    called: bool = True
    listing: bool = False
    opaque: bool = False
    matrices: int = 0
    parameters: int = 0


@dataclass(frozen=True)
class UnitSelection:
    """The units in the model's order, and what the user should be told about the choice."""

    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def choose_units(
    layers: Sequence[LayerInfo],
    patterns: Sequence[str],
    every_n: int = 1,
    first: int | None = None,
    last: int | None = None,
) -> UnitSelection:
    """The units that ``patterns`` mean.

    A pattern is the name of a class, or a dotted name in which ``*``, ``?`` and ``[..]`` match within one part and
    ``**`` matches any number of parts (none included, but at the end at least one: ``encoder.**`` is what lies inside).
    A container that is never called stands for its children. Of nested matches the outermost is kept. ``first`` and
    ``last`` keep the first and last so many of the ordered units (both: either end), ``every_n`` then keeps each n-th,
    beginning with the first.

    Raises:
        RecomputeError: a pattern fits nothing, or names given one by one lie in each other.
    """
    if isinstance(patterns, str):
        patterns = (patterns,)
    if not patterns:
        raise RecomputeError("recompute: no layers were named -> name layers, e.g. 'encoder.layers.*', or use 'auto'")
    notes: list[str] = []
    by_name = {layer.name: layer for layer in layers}
    matched: dict[str, bool] = {}
    for pattern in patterns:
        hits, note = _match(layers, pattern)
        if not hits:
            raise RecomputeError(_no_match_text(layers, pattern))
        notes.extend(note)
        listed = not _is_wild(pattern) and pattern in by_name
        for hit in hits:
            if hit.name:
                matched[hit.name] = matched.get(hit.name, False) or (listed and hit.name == pattern)
    _refuse_listed_nesting([name for name, listed in matched.items() if listed and by_name[name].called])
    expanded = _expand([by_name[name] for name in matched], layers)
    kept, nested = _outermost([layer.name for layer in layers if layer.name in expanded])
    if nested:
        notes.append(
            f"recompute: {len(nested)} of the matched layers lie inside another matched layer and are recomputed with "
            f"it, e.g. '{nested[0][0]}' inside '{nested[0][1]}'"
        )
    kept, doubles = _one_name_each(kept, by_name)
    notes.extend(f"recompute: '{other}' and '{name}' are one layer; it is one unit" for other, name in doubles)
    names = thin_out(kept, every_n, first, last)
    if not names:
        raise RecomputeError(
            f"recompute: {list(patterns)} fits layers, but every_n={every_n}, first={first}, last={last} leaves none"
        )
    notes.extend(_big_unit_note(names, layers))
    return UnitSelection(tuple(names), tuple(notes))


def thin_out(names: Sequence[str], every_n: int = 1, first: int | None = None, last: int | None = None) -> list[str]:
    """Apply ``first``, ``last`` and then ``every_n`` to an ordered list."""
    if every_n < 1:
        raise RecomputeError(f"recompute: every_n is {every_n}; it must be 1 or more")
    for key, value in (("first", first), ("last", last)):
        if value is not None and value < 1:
            raise RecomputeError(f"recompute: {key} is {value}; it must be 1 or more")
    if first is not None or last is not None:
        from_start, from_end = first or 0, len(names) - (last or 0)
        names = [name for index, name in enumerate(names) if index < from_start or index >= from_end]
    return list(names[::every_n])


def matches(name: str, pattern: str) -> bool:
    """Whether a dotted name fits a pattern, as `choose_units` has it."""
    return _parts_match(name.split("."), pattern.split("."))


def is_inside(name: str, outer: str) -> bool:
    """Whether the layer ``name`` lies strictly inside ``outer``."""
    return name.startswith(f"{outer}.")


def nearest_names(layers: Iterable[LayerInfo], wanted: str, count: int = 3) -> list[str]:
    """Names, patterns or classes close to one that fits nothing, the likeliest first."""
    parts = wanted.split(".")
    near: dict[str, None] = {}
    all_names: dict[str, None] = {}
    for layer in layers:
        own = layer.name.split(".")
        all_names[layer.name] = None
        all_names[layer.class_name] = None
        # the usual slip: the model's own prefix was left out, or an outer model's prefix was kept
        for drop in range(1, len(own)):
            if _parts_match(own[drop:], parts):
                near[".".join([*own[:drop], wanted])] = None
        for drop in range(1, len(parts)):
            if _parts_match(own, parts[drop:]):
                near[".".join(parts[drop:])] = None
    if not near:
        for name in difflib.get_close_matches(wanted, list(all_names), n=count, cutoff=0.4):
            near[name] = None
    return list(near)[:count]


def _is_wild(pattern: str) -> bool:
    return any(mark in pattern for mark in _WILD)


def _parts_match(name: Sequence[str], pattern: Sequence[str]) -> bool:
    if pattern[-1] == "**":
        pattern = [*pattern, "*"]
    # reach[j]: the first j parts of the pattern fit the parts of the name seen so far
    reach = [True] + [False] * len(pattern)
    for j, part in enumerate(pattern):
        reach[j + 1] = reach[j] and part == "**"
    for own in name:
        step = [False] * (len(pattern) + 1)
        for j, part in enumerate(pattern):
            if part == "**":
                step[j + 1] = reach[j + 1] or step[j]
            else:
                step[j + 1] = reach[j] and fnmatchcase(own, part)
        reach = step
    return reach[-1]


def _match(layers: Sequence[LayerInfo], pattern: str) -> tuple[list[LayerInfo], list[str]]:
    by_name = [layer for layer in layers if layer.name and matches(layer.name, pattern)]
    if _is_wild(pattern) or "." in pattern:
        return by_name, []
    by_class = [layer for layer in layers if layer.name and layer.class_name == pattern]
    if by_name and by_class:
        return by_name, [f"recompute: '{pattern}' is a layer and a class; the layer was taken"]
    return by_name or by_class, []


def _refuse_listed_nesting(names: Sequence[str]) -> None:
    for name in names:
        for outer in names:
            if is_inside(name, outer):
                raise RecomputeError(
                    f"recompute: '{name}' lies inside '{outer}'; units cannot be nested -> name one of them"
                )


def _expand(matched: Iterable[LayerInfo], layers: Sequence[LayerInfo]) -> set[str]:
    """Replace every container that is never called by its children."""
    found: set[str] = set()
    waiting = list(matched)
    while waiting:
        layer = waiting.pop()
        if layer.called:
            found.add(layer.name)
        else:
            waiting.extend(other for other in layers if other.name.rpartition(".")[0] == layer.name and other.name)
    return found


def _outermost(names: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    chosen = set(names)
    kept, nested = [], []
    for name in names:
        parts = name.split(".")
        outer = next((o for o in (".".join(parts[:i]) for i in range(1, len(parts))) if o in chosen), None)
        if outer is None:
            kept.append(name)
        else:
            nested.append((name, outer))
    return kept, nested


def _one_name_each(names: Sequence[str], by_name: dict[str, LayerInfo]) -> tuple[list[str], list[tuple[str, str]]]:
    seen: dict[int, str] = {}
    doubles = []
    for name in names:
        first = seen.setdefault(by_name[name].key, name)
        if first != name:
            doubles.append((name, first))
    return list(seen.values()), doubles


def _big_unit_note(names: Sequence[str], layers: Sequence[LayerInfo]) -> list[str]:
    if len(names) != 1:
        return []
    inside = [layer for layer in layers if is_inside(layer.name, names[0]) and layer.parameters]
    if len(inside) < 2:
        return []
    return [
        f"recompute: '{names[0]}' is the only unit; while it is run again all of its activations are held at once, so "
        "the peak hardly falls -> choose the blocks inside it"
    ]


def _no_match_text(layers: Sequence[LayerInfo], pattern: str) -> str:
    near = nearest_names(layers, pattern)
    hint = f"did you mean {' or '.join(repr(name) for name in near)}?" if near else "this model has no such layer"
    return f"recompute: '{pattern}' matches no layer -> {hint}"
