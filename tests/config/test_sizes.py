"""Sizes in bytes, as people write them."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_memcallbacks.config import ConfigError, parse_size
from paddle_memcallbacks.config.sizes import LARGEST_BYTES, SMALLEST_BYTES


@pytest.mark.parametrize(
    "text, size_bytes",
    [
        ("8GiB", 8 * 2**30),
        ("8gib", 8 * 2**30),
        ("14gib", 14 * 2**30),
        (" 14 GiB ", 14 * 2**30),
        ("512MiB", 512 * 2**20),
        ("512 KiB", 512 * 2**10),
        ("1TiB", 2**40),
        ("8 GB", 8 * 10**9),
        ("8gb", 8 * 10**9),
        ("500MB", 500 * 10**6),
        ("0.5GiB", 2**29),
        (".5GiB", 2**29),
        ("14.7GiB", round(14.7 * 2**30)),
        ("1e3MB", 10**9),
        ("8e9", 8 * 10**9),
        ("8E+9 bytes", 8 * 10**9),
        ("8_000_000_000", 8 * 10**9),
        ("300000B", 300_000),
        (8e9, 8 * 10**9),
        (2**30, 2**30),
        (np.int64(2**30), 2**30),
        (np.float32(2.0**30), 2**30),
    ],
)
def test_sizes(text, size_bytes):
    assert parse_size(text) == size_bytes and type(parse_size(text)) is int


@pytest.mark.parametrize(
    "value, hint",
    [
        (14, "Did you mean 14GiB?"),
        ("14", "Did you mean 14GiB?"),
        (14.5, "Did you mean 14.5GiB?"),
        (16384, "Did you mean 16384MiB?"),
        (141_000, "Did you mean 141000MiB?"),
        ("14B", "Did you mean 14GiB?"),
        ("14KiB", "That is too small for any training."),
        ("8G", "Did you mean 8GiB (binary) or 8GB (decimal)?"),
        ("8gi", "Did you mean 8GiB (binary) or 8GB (decimal)?"),
        ("8GiBs", "The unit 'GiBs' is unknown"),
        ("8,5GiB", "8.5GiB"),
        ("1,000,000,000", "without commas"),
        (0, "above 0"),
        (-1, "above 0"),
        ("-8GiB", "above 0"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        ("inf", "finite"),
        ("-inf", "finite"),
        ("1e400", "finite"),
        (10**400, "more than any machine has"),
        (-(10**400), "more than any machine has"),
        ("1e300GiB", "more than any machine has"),
        ("9000TiB", "more than any machine has"),
        (True, "true and false are not numbers"),
        (np.bool_(False), "true and false are not numbers"),
    ],
)
def test_refused_with_a_hint(value, hint):
    with pytest.raises(ConfigError, match="cannot be used as a size") as caught:
        parse_size(value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    "value", ["", "GiB", "x", "8 8GiB", "1.2.3GiB", "8GiB!", None, [1], {}, b"8GiB", 1j, "8" * 500, "8" * 5000]
)
def test_refused(value):
    with pytest.raises(ConfigError, match="Allowed: a size as 14GiB, 512MiB"):
        parse_size(value)


@given(st.integers(SMALLEST_BYTES, LARGEST_BYTES))
def test_a_number_of_bytes_is_itself(size_bytes):
    assert parse_size(size_bytes) == parse_size(str(size_bytes)) == parse_size(f"{size_bytes}B") == size_bytes


@given(st.one_of(st.text(), st.floats(), st.integers(), st.from_regex(r"[0-9.eE+_-]{1,8} ?[kmgtKMGT]?i?[bB]?")))
def test_any_input_is_a_size_or_a_config_error(value):
    with contextlib.suppress(ConfigError):
        assert SMALLEST_BYTES <= parse_size(value) <= LARGEST_BYTES


def test_the_bounds():
    assert parse_size("256KiB") == SMALLEST_BYTES and parse_size("1024TiB") == LARGEST_BYTES
    for beyond in (SMALLEST_BYTES - 1, LARGEST_BYTES + 1):
        with pytest.raises(ConfigError):
            parse_size(beyond)
