from __future__ import annotations

import pytest

from paddle_memcallbacks.recompute.savings import savings_report

MIB = 2**20


def test_a_good_saving():
    text, is_poor = savings_report(200 * MIB, 20 * MIB, 300 * MIB, 150 * MIB, 1.0, 1.25)
    assert not is_poor
    assert "200.0 -> 20.0 MiB (-90.0 %)" in text
    assert "300.0 -> 150.0 MiB (-50.0 %)" in text
    assert "1 -> 1.25 s" in text
    assert "under 5 %" not in text


@pytest.mark.parametrize(("after", "is_poor"), [(96, True), (95, False), (100, True), (110, True), (0, False)])
def test_poor_is_under_five_percent_of_the_peak(after, is_poor):
    text, poor = savings_report(100, 1, 100, after, 1.0, 1.0)
    assert poor is is_poor
    assert ("under 5 %" in text) is is_poor


def test_a_peak_that_rose_and_an_unknown_time():
    text, is_poor = savings_report(100 * MIB, 100 * MIB, 100 * MIB, 110 * MIB, 0.0, 0.0)
    assert is_poor
    assert "(+10.0 %)" in text
    assert " s" not in text.split(". It saved")[0].replace(" step", "")


def test_nothing_measured():
    assert savings_report(0, 0, 0, 0, 0, 0)[1]
