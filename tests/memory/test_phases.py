"""Peaks by phase: exact bytes, in any order of phases, through failures, and where peaks cannot be reset."""

import gc

import paddle
import pytest

from paddle_memcallbacks.memory import GIB, MemoryReading, PhaseMeter, StepMemory, memory_metrics


@pytest.fixture
def allocator(fake):
    return fake("gpu:0")[1]


def test_one_step(allocator):
    meter = PhaseMeter()
    allocator.use(1000)
    meter.begin_step()
    with meter.phase("forward"):
        allocator.use(500)
        allocator.use(-200)
    allocator.use(50)
    allocator.use(-50)
    with meter.phase("backward"):
        allocator.use(400)
        allocator.use(-700)
    with meter.phase("step"):
        allocator.use(10)
        allocator.use(-10)
    assert meter.end_step() == StepMemory(
        peak_bytes=1700,
        base_bytes=1000,
        peak_forward_bytes=1500,
        peak_backward_bytes=1700,
        peak_step_bytes=1010,
        held_after_forward_bytes=300,
    )


def test_the_largest_micro_batch_counts(allocator):
    """A gradient that the first backward leaves is no activation of the second forward."""
    meter = PhaseMeter()
    meter.begin_step()
    for activations, gradient in ((300, 70), (500, 0), (200, 0)):
        with meter.phase("forward"):
            allocator.use(activations)
        with meter.phase("backward"):
            allocator.use(gradient)
            allocator.use(-activations)
    memory = meter.end_step()
    assert memory.held_after_forward_bytes == 500
    assert (memory.peak_forward_bytes, memory.peak_backward_bytes, memory.peak_bytes) == (570, 570, 570)


def test_a_peak_between_phases_is_the_steps(allocator):
    meter = PhaseMeter()
    meter.begin_step()
    with meter.phase("forward"):
        allocator.use(10)
    allocator.use(500)
    allocator.use(-500)
    with meter.phase("backward"):
        pass
    memory = meter.end_step()
    assert (memory.peak_bytes, memory.peak_forward_bytes, memory.peak_backward_bytes) == (510, 10, 10)


def test_a_step_knows_nothing_of_the_one_before(allocator):
    meter = PhaseMeter()
    meter.begin_step()
    with meter.phase("forward"):
        allocator.use(900)
    first = meter.end_step()
    allocator.use(-900)
    meter.begin_step()
    assert meter.end_step() == StepMemory(0, 0)
    assert first.peak_forward_bytes == 900


def test_a_forward_that_fails_counts_for_the_peak_alone(allocator):
    meter = PhaseMeter()
    meter.begin_step()
    with pytest.raises(MemoryError), meter.phase("forward"):
        allocator.use(800)
        raise MemoryError
    allocator.use(-800)
    with meter.phase("forward"):
        allocator.use(100)
    memory = meter.end_step()
    assert (memory.peak_forward_bytes, memory.peak_bytes) == (800, 800)
    assert memory.held_after_forward_bytes == 100


def test_phases_nest(allocator):
    """What an outer phase allocated before an inner one began is not forgotten."""
    meter = PhaseMeter()
    meter.begin_step()
    with meter.phase("forward"):
        allocator.use(900)
        allocator.use(-890)
        with meter.phase("forward"), meter.phase("backward"):
            allocator.use(50)
            allocator.use(-50)
        allocator.use(20)
    assert meter.end_step() == StepMemory(
        900, 0, peak_forward_bytes=900, peak_backward_bytes=60, held_after_forward_bytes=30
    )


def test_a_phase_that_a_failed_step_left_open_is_over(allocator):
    meter = PhaseMeter()
    meter.begin_step()
    left_open = meter.phase("backward")
    left_open.__enter__()
    meter.begin_step()
    with meter.phase("forward"):
        allocator.use(70)
        left_open.__exit__(None, None, None)
    assert meter.end_step() == StepMemory(70, 0, peak_forward_bytes=70, held_after_forward_bytes=70)


def test_measuring_within_a_phase(allocator):
    meter = PhaseMeter()
    meter.begin_step()
    with meter.phase("forward"):
        allocator.use(400)
        allocator.use(-400)
        with meter.measuring() as measured, meter.phase("backward"):
            allocator.use(30)
        allocator.use(-30)
    assert measured() == StepMemory(30, 0, peak_backward_bytes=30)
    assert meter.end_step() == StepMemory(400, 0, peak_forward_bytes=400, held_after_forward_bytes=0)


def test_paused(allocator):
    meter = PhaseMeter()
    meter.begin_step()
    with meter.phase("forward"):
        allocator.use(10)
    with meter.paused():
        with meter.paused(), meter.phase("forward"):
            allocator.use(900)
        with meter.phase("backward"):
            allocator.use(-900)
    memory = meter.end_step()
    assert memory == StepMemory(10, 0, peak_forward_bytes=10, held_after_forward_bytes=10)


def test_measuring_within_a_pause(allocator):
    meter = PhaseMeter()
    meter.begin_step()
    with meter.paused():
        with meter.measuring() as measured, meter.phase("forward"):
            allocator.use(700)
        allocator.use(-700)
        with meter.phase("forward"):
            allocator.use(300)
            allocator.use(-300)
    assert measured() == StepMemory(700, 0, peak_forward_bytes=700, held_after_forward_bytes=700)
    assert meter.end_step() == StepMemory(0, 0)


def test_without_a_reset_peaks_by_phase_are_left_out(fake):
    _, device = fake("gpu:0", can_reset=False)
    meter = PhaseMeter()
    device.use(5000)
    device.use(-4900)
    meter.begin_step()
    with meter.phase("forward"):
        device.use(300)
    with meter.paused(), meter.phase("backward"):
        device.use(-300)
    memory = meter.end_step()
    assert memory == StepMemory(5000, 100, held_after_forward_bytes=300, peaks_measured=False)
    metrics = memory_metrics(MemoryReading(100, 0, 5000, 0), memory)
    assert set(metrics) == {
        "memory/allocated_gib",
        "memory/reserved_gib",
        "memory/peak_allocated_gib",
        "memory/peak_reserved_gib",
        "memory/base_gib",
        "memory/held_after_forward_gib",
    }


def test_metrics():
    reading = MemoryReading(1 * GIB, 4 * GIB, 2 * GIB, 5 * GIB)
    step = StepMemory(3 * GIB, GIB // 2, 2 * GIB, 3 * GIB, GIB, GIB // 4)
    assert memory_metrics(reading, step, host_bytes=6 * GIB) == {
        "memory/allocated_gib": 1.0,
        "memory/reserved_gib": 4.0,
        "memory/peak_allocated_gib": 2.0,
        "memory/peak_reserved_gib": 5.0,
        "memory/fragmentation_pct": 60.0,
        "memory/step_peak_gib": 3.0,
        "memory/base_gib": 0.5,
        "memory/held_after_forward_gib": 0.25,
        "memory/peak_forward_gib": 2.0,
        "memory/peak_backward_gib": 3.0,
        "memory/peak_step_gib": 1.0,
        "memory/host_rss_gib": 6.0,
    }
    assert set(memory_metrics(reading)) < set(memory_metrics(reading, StepMemory(1, 1)))


def train(steps):
    gc.collect()  # an optimizer of a test before this one must not be freed in the middle of a step
    paddle.seed(0)
    net = paddle.nn.Sequential(
        paddle.nn.Linear(256, 256, bias_attr=False), paddle.nn.ReLU(), paddle.nn.Linear(256, 256, bias_attr=False)
    )
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    rows = paddle.randn([512, 256])
    meter = PhaseMeter()
    for _ in range(steps):
        meter.begin_step()
        with meter.phase("forward"):
            loss = net(rows).sum()
        with meter.phase("backward"):
            loss.backward()
        with meter.phase("step"):
            optimizer.step()
        optimizer.clear_grad()
        del loss
        yield meter.end_step()


def above_base(memory):
    base = memory.base_bytes
    peaks = (memory.peak_forward_bytes, memory.peak_backward_bytes, memory.peak_step_bytes)
    return memory.held_after_forward_bytes, *(peak - base for peak in peaks)


@pytest.fixture
def on_cpu():
    before = paddle.get_device()
    paddle.set_device("cpu")
    yield
    paddle.set_device(before)


def test_a_real_net_byte_for_byte(on_cpu):
    activation, weight, scalar = 512 * 256 * 4, 256 * 256 * 4, 4
    first, *later = [above_base(memory) for memory in train(4)]
    held = activation + scalar  # what ReLU keeps, and the loss
    forward = 2 * activation + scalar
    backward = 3 * activation + weight + scalar
    assert first == (held, forward, backward, 2 * weight + 2 * scalar)  # the gradients, the loss, the learning rate
    assert later == [(held, forward, backward, scalar)] * 3  # gradients stay, as zeros, and belong to the base


def test_a_real_net_again_is_equal_byte_for_byte(on_cpu):
    assert [above_base(memory) for memory in train(4)] == [above_base(memory) for memory in train(4)]
