"""The whole config: its sections, and what they say about each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from paddle_memcallbacks.config.advice import advice
from paddle_memcallbacks.config.contradictions import cross_contradictions
from paddle_memcallbacks.config.errors import Complaint, ConfigError
from paddle_memcallbacks.config.names import unknown_key
from paddle_memcallbacks.config.section import SECTION_TYPES, checked_section, keys_by_section, unrelated
from paddle_memcallbacks.config.sections import (
    AccumulationConfig,
    AmpConfig,
    LossScaleConfig,
    MemorySection,
    RecomputeConfig,
    VisualDLConfig,
)


class MemoryConfig(BaseModel):
    """All keys. Immutable; built with faulty values it raises ConfigError with every fault."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    amp: AmpConfig = Field(default_factory=lambda: AmpConfig(enable=AmpConfig.ON_WHEN_ABSENT))
    gradient_accumulation: AccumulationConfig = Field(
        default_factory=lambda: AccumulationConfig(enable=AccumulationConfig.ON_WHEN_ABSENT)
    )
    recompute: RecomputeConfig = Field(default_factory=lambda: RecomputeConfig(enable=RecomputeConfig.ON_WHEN_ABSENT))
    memory: MemorySection = Field(default_factory=MemorySection)
    loss_scale: LossScaleConfig = Field(default_factory=LossScaleConfig)
    visualdl: VisualDLConfig = Field(default_factory=VisualDLConfig)

    def __init__(self, **data: Any) -> None:
        sections, complaints = checked_sections(data)
        if complaints:
            raise ConfigError(complaints)
        super().__init__(**sections)

    def as_dict(self, *, only_given: bool = False) -> dict[str, Any]:
        """Plain values (JSON), which `load_config` reads back into an equal config.

        Args:
            only_given: leave out the sections and keys that the user did not write.
        """
        return self.model_dump(mode="json", exclude_unset=only_given)

    def notes(self) -> tuple[str, ...]:
        """Advice on keys that are allowed, but do nothing or are seldom wise; one sentence each."""
        return tuple(advice(self))


def checked_sections(given: Mapping[Any, Any]) -> tuple[dict[str, Any], list[Complaint]]:
    """The sections, and every fault in them and between them."""
    sections: dict[str, Any] = {}
    complaints: list[Complaint] = []
    for name, value in given.items():
        if not isinstance(name, str) or name not in SECTION_TYPES:
            complaints.append(unknown_key(name, keys_by_section()))
            continue
        section, found = checked_section(name, value)
        complaints += found
        if section is not None:
            sections[name] = section
    complaints += unrelated(cross_contradictions(MemoryConfig.model_construct(None, **sections)), complaints)
    return sections, complaints
