"""Recognising out-of-memory errors, and the report."""

from __future__ import annotations

import gc
import weakref

import pytest

from paddle_memcallbacks.oom import OomFacts, classify, drop_traceback, error_line, is_oom, oom_report, remedies_for


class EnforceNotMet(Exception):
    """Paddle's own class of 1.x, by its name."""


MEMORY = [
    (MemoryError, "(ResourceExhausted) Fail to alloc memory of 70368744177664 size, error code is 12."),
    (OSError, "(External) Error in GradNodePyLayer_x: MemoryError: (ResourceExhausted) Fail to alloc memory"),
    (MemoryError, "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 2.0GB memory on GPU 0"),
    (SystemError, "(Fatal) Operator relu raises an paddle::memory::allocation::BadAlloc exception."),
    (RuntimeError, "Out of memory error on GPU"),
    (EnforceNotMet, "Cannot malloc 512 MB GPU memory"),
    (MemoryError, "cuMemCreate failed: out of GPU memory"),
    (MemoryError, "Cannot allocate 1 KB CUDA managed memory on GPU 0"),
    (OSError, "(External) CUDA error(2), out of memory. \n [Hint: 'cudaErrorMemoryAllocation'. ]"),
    (OSError, "(External) CUBLAS error(3). [Hint: 'CUBLAS_STATUS_ALLOC_FAILED'.]"),
]
OTHER = [
    (OSError, "(External) CUDA error(700), an illegal memory access was encountered."),
    (OSError, "(External) CUDA error(719), unspecified launch failure. Out of memory error on GPU may be the cause."),
    (OSError, "(External) CUDNN error(8), CUDNN_STATUS_EXECUTION_FAILED."),
    (ValueError, "Out of memory error on GPU 0"),
    (RuntimeError, "Unable to allocate a licence"),
    (OSError, "[Errno 28] No space left on device"),
    (KeyError, "memory"),
]


@pytest.mark.parametrize(("kind", "text"), MEMORY)
def test_every_known_error_is_device_memory(kind: type[Exception], text: str) -> None:
    assert classify(kind(text)) == "device"


@pytest.mark.parametrize(("kind", "text"), OTHER)
def test_other_errors_are_not_memory(kind: type[Exception], text: str) -> None:
    assert not is_oom(kind(text))


@pytest.mark.parametrize("text", ["Unable to allocate 128. TiB for an array", ""])
def test_numpy_and_python_run_out_of_host_memory(text: str) -> None:
    assert classify(MemoryError(text)) == "host"
    assert classify(OSError("[Errno 12] Cannot allocate memory")) == "host"


def test_a_cause_counts_and_what_was_merely_being_handled_does_not() -> None:
    cause = MemoryError("(ResourceExhausted) no")
    raised = ValueError("forward failed")
    raised.__cause__ = cause
    assert is_oom(raised)
    handling = KeyError("clean-up failed")
    handling.__context__ = cause
    assert not is_oom(handling)
    broken = OSError("CUDA error(700), an illegal memory access")
    broken.__cause__ = cause
    assert not is_oom(broken)
    raised.__cause__ = raised
    assert not is_oom(raised)


class Activation:
    pass


def test_dropping_the_traceback_frees_what_its_frames_hold() -> None:
    kept: list[weakref.ref[Activation]] = []

    def forward() -> None:
        activation = Activation()
        kept.append(weakref.ref(activation))
        raise MemoryError("(ResourceExhausted) no")

    def layer() -> None:
        try:
            forward()
        except MemoryError as error:
            raise OSError("(External) MemoryError: (ResourceExhausted) no") from error

    held = None
    try:
        layer()
    except OSError as error:
        held = error
    gc.collect()
    assert kept[0]() is not None
    assert held is not None
    drop_traceback(held)
    assert kept[0]() is None
    assert held.__traceback__ is not None


def test_the_telling_line_is_found_in_a_long_message() -> None:
    text = "\nC++ Traceback\n0 foo\nResourceExhaustedError: \n\nOut of memory error on GPU 0.  Cannot allocate\n\nSee"
    assert error_line(MemoryError(text)) == "Out of memory error on GPU 0. Cannot allocate"
    assert error_line(MemoryError()) == "MemoryError"


def test_the_report_ends_in_config_lines() -> None:
    text = oom_report(
        OomFacts(
            error="Out of memory error on GPU 0.",
            rows=32,
            micro_batch_sizes=(8, 4),
            allocated_bytes=3 * 2**30,
            peak_bytes=5 * 2**30,
            why_stopped="memory.on_oom is raise",
            notes=("weights + gradients + moments = 3.00 GiB",),
            remedies=remedies_for(4, can_slice=True, on_oom="raise"),
        )
    )
    assert text.splitlines() == [
        "out of memory: Out of memory error on GPU 0.",
        "the batch has 32 rows; micro-batch sizes tried: 8, 4",
        "allocated after letting go of the failed try: 3.00 GiB, peak 5.00 GiB",
        "memory.on_oom is raise",
        "weights + gradients + moments = 3.00 GiB",
        "what may help, most useful first:",
        "  gradient_accumulation: {micro_batch_size: 2}",
        "  memory: {on_oom: replay}   # halve the micro-batch and repeat the batch by itself",
        "  recompute: {layers: auto}   # the same gradients, bit for bit, for about a third more time",
        "  amp: {level: O1, dtype: bfloat16}   # halves most activations; changes the arithmetic",
        "  if weights, gradients and moments alone exceed the memory: LoRA, sharding or another optimizer",
    ]


def test_smaller_micro_batches_are_offered_only_where_they_are_open() -> None:
    assert not any("micro_batch_size" in line for line in remedies_for(1, can_slice=True))
    assert not any("micro_batch_size" in line for line in remedies_for(8, can_slice=False))
    assert not any("replay" in line for line in remedies_for(8, can_slice=True))
