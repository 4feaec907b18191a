"""The valid key nearest to a mistyped one, in its own section, in another, or a level up."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from paddle_memcallbacks.config.errors import Complaint, describe

_CUTOFF = 0.6
_LONGEST_NAME = 60


def nearest_key(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most like `name`, or None where nothing is alike; case and ``-`` for ``_`` cost nothing."""
    best, best_likeness = None, _CUTOFF
    for candidate in valid:
        likeness = _likeness(name, candidate)
        if likeness > best_likeness:
            best, best_likeness = candidate, likeness
    return best


def _likeness(name: str, candidate: str) -> float:
    if name == candidate:
        return 2.0
    # a name of a thousand letters is like nothing, and difflib's cost grows with its square
    name, candidate = name[:100].lower().replace("-", "_"), candidate.lower().replace("-", "_")
    return difflib.SequenceMatcher(None, name, candidate, autojunk=False).ratio()


def unknown_key(key: object, keys_by_section: Mapping[str, Sequence[str]], section: str = "") -> Complaint:
    """The complaint about a key that does not exist in `section` (empty: at the top level)."""
    place = f"{section}." if section else ""
    if not isinstance(key, str):
        shown = describe(key)
        trap = " YAML reads the words on, yes and true as a boolean." if isinstance(key, bool) else ""
        text = f"{place}{shown}: a key must be a word, not {shown}.{trap} {_listing(keys_by_section, section)}"
        return Complaint(f"{place}{shown}", text, (section,) if section else ())
    shown = describe(key)[1:-1] if key.isidentifier() and len(key) < _LONGEST_NAME else describe(key)
    paths = nearest_paths(key, keys_by_section, section)
    meant = " or ".join(paths)
    hint = f"Did you mean {meant}?" if paths else _listing(keys_by_section, section)
    where = f"in the section {section}" if section else "at the top level"
    return Complaint(f"{place}{shown}", f"{place}{shown}: there is no such key {where}. {hint}", tuple(paths))


def nearest_paths(key: str, keys_by_section: Mapping[str, Sequence[str]], section: str = "") -> list[str]:
    """Full paths of the valid keys most like `key`, which was written in `section`; several where equally like."""
    here = [f"{section}.{name}" for name in keys_by_section[section]] if section else list(keys_by_section)
    elsewhere = [f"{other}.{name}" for other, names in keys_by_section.items() for name in names if other != section]
    scored = [(_likeness(key, path.rpartition(".")[2]), 1, path) for path in here]
    scored += [(_likeness(key, path.rpartition(".")[2]), 0, path) for path in elsewhere if not path.endswith(".enable")]
    # flat names, as a command line has them, and dotted ones
    scored += [(_likeness(key, path.replace(".", "_")), 0, path) for path in [*here, *elsewhere] if "." in path]
    scored += [(_likeness(key, path), 0, path) for path in [*here, *elsewhere] if "." in path]
    if section:
        scored += [(_likeness(key, name), 0, name) for name in keys_by_section]
    likeness, nearness, _ = max(scored)
    if likeness <= _CUTOFF:
        return []
    return list(dict.fromkeys(path for score, near, path in scored if (score, near) == (likeness, nearness)))


def _listing(keys_by_section: Mapping[str, Sequence[str]], section: str) -> str:
    if section:
        return f"Keys of {section}: {', '.join(keys_by_section[section])}."
    return f"Sections: {', '.join(keys_by_section)}."
