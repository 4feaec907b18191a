"""The valid key nearest to a mistyped one: in its own section, in another, or on another level."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from paddle_memcallbacks.config.errors import Complaint, describe

_CUTOFF = 0.6
_FLAT_CUTOFF = 0.8
_LONGEST_NAME = 60

# what other tools call it -> the key here
FOREIGN_NAMES = {
    "accumulate_steps": "gradient_accumulation.steps",
    "accumulation_steps": "gradient_accumulation.steps",
    "grad_accum": "gradient_accumulation",
    "batch_size": "gradient_accumulation.micro_batch_size",
    "per_device_train_batch_size": "gradient_accumulation.micro_batch_size",
    "checkpointing": "recompute",
    "gradient_checkpointing": "recompute",
    "use_checkpoint": "recompute",
    "use_recompute": "recompute",
    "fp16": "amp",
    "bf16": "amp.dtype",
    "fp16_opt_level": "amp.level",
    "scale_loss": "amp.init_loss_scaling",
    "gpu_memory": "memory.budget",
    "logging_dir": "visualdl.logdir",
    "output_dir": "visualdl.logdir",
    "use_vdl": "visualdl",
    "vdl": "visualdl",
    "vdl_log_dir": "visualdl.logdir",
}


def nearest_key(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most like `name`, or None where nothing is alike; case and ``-`` for ``_`` cost nothing."""
    best, best_likeness = None, _CUTOFF
    for candidate in valid:
        likeness = _likeness(name, candidate)
        if likeness > best_likeness:
            best, best_likeness = candidate, likeness
    return best


def nearest_paths(key: str, keys_by_section: Mapping[str, Sequence[str]], section: str = "") -> list[str]:
    """Full paths of the valid keys most like `key`, which was written in `section` (empty: at the top level).

    Also found are keys of other sections, sections, flat names (`amp_level`), dotted ones and other tools' names. Of
    equally like ones those of the place where it was written count; several are returned only where these tie.
    """
    here = [f"{section}.{name}" for name in keys_by_section[section]] if section else list(keys_by_section)
    everything = [*keys_by_section, *(f"{other}.{name}" for other, names in keys_by_section.items() for name in names)]
    spellings = [(_last(path), path, 1) for path in here]
    # every section has `enable`: elsewhere it says nothing
    spellings += [(_last(path), path, 0) for path in everything if path not in here and _last(path) != "enable"]
    spellings += [(name, path, 0) for name, path in FOREIGN_NAMES.items()]
    scored = [(_likeness(key, spelt), is_here, path) for spelt, path, is_here in spellings]
    # the section's part of a flat name is long: `enable` alone is no misspelt `amp_enable`
    flat = ((_likeness(key, spelt), path) for path in everything if "." in path for spelt in (path, _flat(path)))
    scored += [(likeness, 0, path) for likeness, path in flat if likeness > _FLAT_CUTOFF]
    best, nearness, _ = max(scored)
    if best <= _CUTOFF:
        return []
    return list(dict.fromkeys(path for likeness, is_here, path in scored if (likeness, is_here) == (best, nearness)))


def unknown_key(key: object, keys_by_section: Mapping[str, Sequence[str]], section: str = "") -> Complaint:
    """The complaint about a key that does not exist in `section` (empty: at the top level)."""
    place = f"{section}." if section else ""
    listing = f"Keys of {section}: {', '.join(keys_by_section[section])}." if section else _sections(keys_by_section)
    if not isinstance(key, str):
        shown = describe(key)
        trap = " YAML reads the words on, off, yes and no as booleans." if isinstance(key, bool) else ""
        return Complaint(f"{place}{shown}", f"{place}{shown}: a key must be a word.{trap} {listing}")
    shown = key if key.isidentifier() and len(key) < _LONGEST_NAME else describe(key)
    paths = nearest_paths(key, keys_by_section, section)
    where = f"in the section {section}" if section else "at the top level"
    hint = f"{_question(key, paths)}{_level_hint(paths, section)}" if paths else listing
    return Complaint(f"{place}{shown}", f"{place}{shown}: there is no such key {where}. {hint}", tuple(paths))


def _question(key: str, paths: Sequence[str]) -> str:
    return (
        "Dotted names are for command lines."
        if "." in key and [key] == paths
        else f"Did you mean {' or '.join(paths)}?"
    )


def _level_hint(paths: Sequence[str], section: str) -> str:
    other, _, key = paths[0].rpartition(".")
    if other == section:
        return ""
    return f" It stands under {other}: '{other}: {{{key}: ...}}'." if other else f" {key} is a section of its own."


def _sections(keys_by_section: Mapping[str, Sequence[str]]) -> str:
    return f"Sections: {', '.join(keys_by_section)}."


def _flat(path: str) -> str:
    return path.replace(".", "_")


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _likeness(name: str, candidate: str) -> float:
    if name == candidate:
        return 2.0
    # a name of a thousand letters is like nothing, and difflib's cost grows with its square
    name, candidate = name[:100].lower().replace("-", "_"), candidate.lower().replace("-", "_")
    return difflib.SequenceMatcher(None, name, candidate, autojunk=False).ratio()
