"""The record as the resumed curve takes it, against the record as the report reads it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_memcallbacks.report.record import parse_run
from paddle_memcallbacks.writers.restore import is_due, recorded_lines


@pytest.mark.parametrize(("interval", "due"), [(1, [1, 2, 3, 4, 5, 6]), (3, [1, 3, 6]), (100, [1])])
def test_due_steps(interval, due):
    assert [step for step in range(1, 7) if is_due(step, interval)] == due


def test_nothing_to_restore(tmp_path):
    assert recorded_lines(None, 5) == []
    assert recorded_lines(tmp_path / "nothing.jsonl", 5) == []
    assert recorded_lines(tmp_path, 5) == []


steps = st.integers(1, 12)
lines = st.lists(
    st.one_of(
        st.builds(lambda step, value: {"step": step, "time": 1.0, "metrics": {"a": value}}, steps, st.integers(0, 99)),
        st.builds(
            lambda step, text: {"step": step, "time": 1.0, "text": {"tag": "t", "text": text}},
            steps,
            st.text(max_size=2),
        ),
        st.builds(lambda step: {"resume": {"step": step, "time": 1.0}}, steps),
        st.just({"run": {"name": "x"}}),
        st.sampled_from([{"run": 3}, {"resume": None}, {"active": {}}, {"step": None, "metrics": {}}, [1], "x", None]),
    ),
    max_size=40,
)


@given(lines=lines, up_to=st.integers(0, 14))
def test_restored_is_what_the_report_shows(tmp_path_factory, lines, up_to):
    path = tmp_path_factory.mktemp("record") / "memcallbacks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"resume": {"step": up_to}}]))
    run = parse_run(path.read_text().splitlines())
    restored = recorded_lines(path, up_to)
    assert [(each.step, each.metrics["a"]) for each in restored if each.text is None] == run.points("a")
    texts = [(each.step, each.text[1]) for each in restored if each.text is not None]
    assert sorted(texts) == sorted((text.step, text.text) for text in run.texts)
