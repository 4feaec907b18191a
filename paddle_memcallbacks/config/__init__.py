"""The config keys: the same words in every toolkit, checked, with errors that say how to mend them."""

from paddle_memcallbacks.config.errors import Complaint, ConfigError
from paddle_memcallbacks.config.files import read_mapping
from paddle_memcallbacks.config.flat import expand_dotted, flat_names, from_flat, merged
from paddle_memcallbacks.config.load import load_config
from paddle_memcallbacks.config.names import nearest_key
from paddle_memcallbacks.config.root import MemoryConfig
from paddle_memcallbacks.config.schema import json_schema
from paddle_memcallbacks.config.sections import (
    SECTIONS,
    AccumulationConfig,
    AmpConfig,
    LossScaleConfig,
    MemorySection,
    RecomputeConfig,
    VisualDLConfig,
)
from paddle_memcallbacks.config.sizes import parse_size

__all__ = [
    "SECTIONS",
    "AccumulationConfig",
    "AmpConfig",
    "Complaint",
    "ConfigError",
    "LossScaleConfig",
    "MemoryConfig",
    "MemorySection",
    "RecomputeConfig",
    "VisualDLConfig",
    "expand_dotted",
    "flat_names",
    "from_flat",
    "json_schema",
    "load_config",
    "merged",
    "nearest_key",
    "parse_size",
    "read_mapping",
]
