"""Our keys against the Trainer's own: taken over, or a contradiction that names both. No toolkit, no paddle."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_memcallbacks.config import AccumulationConfig, ConfigError, RecomputeConfig

_FOLDER = Path(__file__).resolve().parents[3] / "integrations" / "paddlenlp"


def load(name):
    """The module by its file: the package's own import needs paddlenlp."""
    spec = importlib.util.spec_from_file_location(f"paddlenlp_{name}", _FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


takeover, layout = load("takeover"), load("layout")
OFF = AccumulationConfig(enable=False)


def steps(count):
    return AccumulationConfig(enable=True, steps=count)


def rows(size):
    return AccumulationConfig(enable=True, micro_batch_size=size)


@pytest.mark.parametrize(
    ("section", "native", "factor", "micro"),
    [
        (OFF, 1, 1, None),
        (OFF, 4, 4, 8),
        (steps(4), 1, 4, 8),
        (steps(4), 4, 4, 8),
        (rows(2), 1, 1, 2),
        (rows(2), 4, 4, 2),
        (rows(99), 1, 1, 8),
    ],
)
def test_the_reader_grows_and_slices_follow(section, native, factor, micro):
    decided = takeover.decide_accumulation(section, False, native, 8)
    assert (decided.factor, decided.micro_batch_size) == (factor, micro)
    assert bool(decided.notes) == (native > 1 or micro == 8 and section.micro_batch_size == 99)


def test_two_numbers_contradict():
    with pytest.raises(ConfigError, match="steps: 4 contradicts gradient_accumulation_steps=2"):
        takeover.decide_accumulation(steps(4), True, 2, 8)


def test_off_by_name_contradicts_the_native_key():
    with pytest.raises(ConfigError, match="enable: false contradicts gradient_accumulation_steps=4"):
        takeover.decide_accumulation(OFF, True, 4, 8)


def test_many_steps_draw_advice():
    assert not any("is a lot" in note for note in takeover.decide_accumulation(steps(16), True, 1, 8).notes)
    assert any("is a lot" in note for note in takeover.decide_accumulation(steps(17), True, 1, 8).notes)


def test_recompute_is_taken_over():
    section, notes = takeover.decide_recompute(RecomputeConfig(enable=False), False, True)
    assert section.enable
    assert section.layers == "auto"
    assert "recompute=True is taken over" in notes[0]
    own = RecomputeConfig(enable=True, layers=("a.*",))
    assert takeover.decide_recompute(own, True, True)[0] is own
    assert takeover.decide_recompute(own, True, False) == (own, ())
    with pytest.raises(ConfigError, match="recompute.enable: false contradicts recompute=True"):
        takeover.decide_recompute(RecomputeConfig(enable=False), True, True)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 300))
def test_a_step_resumes_where_both_layouts_stand_at_the_same_row(there, here, step):
    saved, now = layout.Layout(32, there), layout.Layout(32, here)
    same_place = there == here or step <= min(there, here)
    if same_place:
        assert f"step {step}" in layout.check_resume(step, saved, now, "a test")
    else:
        with pytest.raises(ConfigError, match=f"counts {there} steps an epoch"):
            layout.check_resume(step, saved, now, "a test")


def test_another_batch_size_is_refused():
    with pytest.raises(ConfigError, match="32 rows a step .a test., this run has 16"):
        layout.check_resume(3, layout.Layout(32, 5), layout.Layout(16, 10), "a test")
