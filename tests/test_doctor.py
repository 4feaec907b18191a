"""Known breakages are found among installed versions."""

import pytest

from paddle_memcallbacks.doctor import BREAKAGES, find_breakages, version_numbers


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("0.36.2", (0, 36, 2)), ("7.36.2", (7, 36, 2)), ("3.0.0b4", (3, 0, 4)), ("82.0.dev1", (82, 0))],
)
def test_versions_as_numbers(version, numbers):
    assert version_numbers(version)[:2] == numbers[:2]


def test_each_breakage_is_found_at_its_version_and_not_before():
    for item in BREAKAGES:
        at = ".".join(map(str, item.least))
        before = f"{item.least[0] - 1}.99" if len(item.least) == 1 else f"{item.least[0]}.{item.least[1] - 1}.99"
        assert item in find_breakages({item.package: at, item.affects: "1.0"})
        assert item not in find_breakages({item.package: before, item.affects: "1.0"})
        assert item not in find_breakages({item.package: at})


def test_this_environment_has_none():
    from paddle_memcallbacks.doctor import installed_versions

    assert find_breakages(installed_versions()) == []
