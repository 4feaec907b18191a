"""Our sections in a PaddleDetection config, and the flat keys that it reads itself. Plain data, no ppdet."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from paddle_memcallbacks.config import (
    SECTIONS,
    Complaint,
    ConfigError,
    MemoryConfig,
    flat_names,
    load_config,
)

# PaddleDetection's own flat AMP keys -> the key of our section that says the same
NATIVE_AMP_KEYS = {
    "amp_level": "level",
    "init_loss_scaling": "init_loss_scaling",
    "custom_white_list": "custom_white_list",
    "custom_black_list": "custom_black_list",
    "master_grad": "master_grad",
}
# what PaddleDetection starts the loss scale from where no key says it
NATIVE_INIT_LOSS_SCALING = 1024.0
LARGEST_ADVISED_STEPS = 16

_ACCUMULATION = "gradient_accumulation: {steps: K}"
# what users and other toolkits call our keys; PaddleDetection knows none of these names
_OTHER_NAMES = {
    "accumulate_steps": _ACCUMULATION,
    "accum_steps": _ACCUMULATION,
    "accumulation_steps": _ACCUMULATION,
    "accumulate_grad_batches": _ACCUMULATION,
    "acc_steps": _ACCUMULATION,
    "grad_accum": _ACCUMULATION,
    "grad_accumulation": _ACCUMULATION,
    "gradient_accumulation_steps": _ACCUMULATION,
    "update_freq": _ACCUMULATION,
    "micro_batch_size": "gradient_accumulation: {micro_batch_size: m}",
    "micro_batch": "gradient_accumulation: {micro_batch_size: m}",
    "use_recompute": "recompute: true",
    "gradient_checkpointing": "recompute: true",
    "activation_checkpointing": "recompute: true",
    "use_amp": "amp: true",
    "fp16": "amp: {dtype: float16}",
    "bf16": "amp: {dtype: bfloat16}",
}
_TYPO_LIKENESS = 0.8
# a short foreign name is like too many keys of PaddleDetection (use_amp, use_warmup)
_SHORTEST_TYPO_OF_OTHER_NAME = 10
# keys of TrainReader are handed to the dataset unseen, so that a key of ours put there would do nothing in silence
_READER_WORDS = ("gradient_accumulation", "accumulate_steps", "accumulation_steps", "micro_batch_size", "recompute")


@dataclass(frozen=True)
class Translation:
    """What a PaddleDetection config asks of us, and what PaddleDetection is to read instead.

    Attributes:
        config: our keys; None where none of them is there.
        native: top-level keys to set before PaddleDetection reads its config.
        notes: what the user should know, one line each.
    """

    config: MemoryConfig | None
    native: dict[str, Any]
    notes: tuple[str, ...] = ()


def our_sections(cfg: Mapping[Any, Any]) -> dict[str, Any]:
    """The sections that are ours. A bare bool under ``amp`` alone is PaddleDetection's own key, as it always was."""
    return {
        name: _plain(cfg[name])
        for name in SECTIONS
        if name in cfg and not (name == "amp" and isinstance(cfg[name], bool))
    }


def translate(
    cfg: Mapping[Any, Any], registered: Collection[str] = (), beside: Mapping[str, Any] | None = None
) -> Translation:
    """Read our sections, check them against PaddleDetection's own keys, and translate them.

    Args:
        cfg: the whole config, as PaddleDetection has merged it.
        registered: names of PaddleDetection's registered modules, which are no typos of ours.
        beside: sections given in another place (`paddle-mem run --config`); a key that `cfg` has too is taken from
            `cfg`. Given, even empty, it turns us on where `cfg` has none of our keys.

    Raises:
        ConfigError: a key is wrong, is a typo of one of ours, or contradicts another; all faults at once.
    """
    complaints = misspelt(cfg, registered)
    sections = our_sections(cfg)
    if complaints:
        raise ConfigError(complaints)
    if not sections and beside is None:
        return Translation(None, {})
    sections = _merged(beside or {}, sections)
    amp, notes = _amp_section(cfg, sections.get("amp", cfg.get("amp", False)))
    if "amp" in sections or amp["enable"] is not False:
        sections["amp"] = amp
    config = load_config(sections)
    complaints = _not_with_to_static(cfg, config)
    if complaints:
        raise ConfigError(complaints)
    steps = config.gradient_accumulation.steps if config.gradient_accumulation.enable else None
    if steps is not None and steps > LARGEST_ADVISED_STEPS:
        notes.append(
            f"gradient_accumulation.steps is {steps}: the reader then holds {steps} micro-batches at once in host "
            "memory; gradient_accumulation.micro_batch_size slices a batch of the size you want instead"
        )
    return Translation(config, _native_keys(cfg, config), tuple(notes))


def reader_factor(config: MemoryConfig) -> int:
    """By how much the train reader's batch size is multiplied."""
    section = config.gradient_accumulation
    return section.steps if section.enable and section.steps is not None else 1


def refused_by_loop(trainer_name: str, config: MemoryConfig | None) -> ConfigError | None:
    """The error for a trainer with a training loop of its own, where our keys would do nothing."""
    if config is None:
        return None
    given = ", ".join(sorted(config.model_fields_set)) or "paddle_memcallbacks"
    return ConfigError(
        f"{given}: {trainer_name} trains in a loop of its own, where these keys would do nothing. They work with "
        "ppdet.engine.Trainer. Remove them from this config; the plain 'amp: true' stays PaddleDetection's own."
    )


def misspelt(cfg: Mapping[Any, Any], registered: Collection[str] = ()) -> list[Complaint]:
    """Top-level keys, and keys of TrainReader, that nobody reads and that are very like one of ours."""
    found = []
    known = {*SECTIONS, *NATIVE_AMP_KEYS, *registered}
    for key in cfg:
        if not isinstance(key, str) or key in known:
            continue
        meant = _meant(key)
        if meant:
            found.append(
                Complaint(key, f"{key}: PaddleDetection reads no such key, nor do we. Did you mean '{meant}'?")
            )
    reader = cfg.get("TrainReader")
    if isinstance(reader, Mapping):
        found += [
            Complaint(
                f"TrainReader.{key}",
                f"TrainReader.{key}: the reader does nothing with it. Did you mean '{_meant(key) or _ACCUMULATION}' at "
                "the top level?",
            )
            for key in reader
            if isinstance(key, str) and (key in _OTHER_NAMES or _nearest(key, _READER_WORDS))
        ]
    return found


def _meant(key: str) -> str | None:
    """What a key that nobody reads was probably meant to be, as it is written in YAML."""
    plain = key.lower().replace("-", "_").replace(".", "_")
    if plain in _OTHER_NAMES:
        return _OTHER_NAMES[plain]
    if plain in flat_names():
        section, inner = flat_names()[plain]
        return f"{section}: {{{inner}: ...}}"
    long_names = [name for name in _OTHER_NAMES if len(name) >= _SHORTEST_TYPO_OF_OTHER_NAME]
    near = _nearest(plain, (*SECTIONS, *NATIVE_AMP_KEYS, *long_names))
    return _OTHER_NAMES.get(near, near) if near else None


def _nearest(key: str, names: Collection[str]) -> str | None:
    likeness, name = max(
        (difflib.SequenceMatcher(None, key[:60], name, autojunk=False).ratio(), name) for name in names
    )
    return name if likeness >= _TYPO_LIKENESS else None


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(below.get(name), Mapping)
        merged[name] = {**below[name], **value} if both else value
    return merged


def _plain(value: Any) -> Any:
    """Mappings of PaddleDetection's own kinds as dicts, with the OrderedDicts and the like inside."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value


def _amp_section(cfg: Mapping[Any, Any], given: Any) -> tuple[Any, list[str]]:
    """The amp section with PaddleDetection's flat keys filled in, and notes; raises where the two contradict."""
    bare = isinstance(given, bool)
    if not bare and not isinstance(given, Mapping):
        return given, []
    section = {"enable": given} if bare else dict(given)
    if section.get("enable", True) is False:
        idle = [key for key in ("amp_level", "init_loss_scaling") if cfg.get(key) is not None]
        notes = [f"amp is off, so {' and '.join(idle)} have no effect"] if idle and not bare else []
        return section, notes
    complaints = []
    for flat, key in NATIVE_AMP_KEYS.items():
        value = cfg.get(flat)
        if value is None:
            continue
        if key in section and _comparable(section[key]) != _comparable(value):
            complaints.append(
                Complaint(flat, f"amp.{key} ({section[key]}) and {flat} ({value}) contradict each other. Remove one.")
            )
        section[key] = list(value) if isinstance(value, (list, tuple, set, frozenset)) else value
    if complaints:
        raise ConfigError(complaints)
    if bare:
        section.setdefault("init_loss_scaling", NATIVE_INIT_LOSS_SCALING)
    return section, []


def _comparable(value: Any) -> Any:
    if isinstance(value, (list, tuple, set, frozenset)):
        return sorted(str(item) for item in value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return value


def _native_keys(cfg: Mapping[Any, Any], config: MemoryConfig) -> dict[str, Any]:
    native: dict[str, Any] = {"amp": config.amp.enable}
    if config.amp.enable:
        native |= {
            "amp_level": config.amp.level,
            "init_loss_scaling": config.amp.init_loss_scaling,
            "custom_white_list": list(config.amp.custom_white_list) or None,
            "custom_black_list": list(config.amp.custom_black_list) or None,
        }
    if cfg.get("use_fused_allreduce_gradients"):
        # the slices' gradients are reduced once already, before the loop would do it again
        native["use_fused_allreduce_gradients"] = False
    return native


def _not_with_to_static(cfg: Mapping[Any, Any], config: MemoryConfig) -> list[Complaint]:
    if not cfg.get("to_static"):
        return []
    return [
        Complaint(
            name,
            f"{name} and to_static contradict each other: a model compiled to a static graph runs neither "
            "micro-batches nor recompute of single layers. Turn to_static off.",
        )
        for name in ("gradient_accumulation", "recompute")
        if getattr(config, name).enable
    ]
