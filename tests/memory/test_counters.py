"""Which counters belong to which device, on paddle 3.x and 2.6."""

import paddle
import pytest

from paddle_memcallbacks import memory
from paddle_memcallbacks.memory import MemoryReading, memory_reading


@pytest.mark.parametrize(
    ("name", "family", "index"),
    [
        ("cpu", "host", 0),
        ("gpu:0", "device", 0),
        ("gpu:3", "device", 3),
        ("xpu:1", "device", 1),
        ("npu:0", "device", 0),
        ("mlu:2", "device", 2),
        ("gcu", "device", 0),
    ],
)
def test_the_devices_own_counters(fake, name, family, index):
    host, device = fake(name)
    own, other = (host, device) if family == "host" else (device, host)
    other.use(999, index)
    own.use(999, index + 1)
    own.use(300, index)
    own.use(-100, index)
    own.use(512, index, "Reserved")
    assert memory_reading() == MemoryReading(200, 512, 300, 512)
    assert memory.allocated_bytes() == 200


def test_a_change_of_device_is_followed(fake, monkeypatch):
    _, device = fake("gpu:0")
    device.use(100, 0)
    device.use(200, 1)
    assert memory_reading().allocated_bytes == 100
    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:1")
    assert memory_reading().allocated_bytes == 200
    memory.reset_peak()
    assert memory_reading().peak_allocated_bytes == 200


@pytest.mark.parametrize("name", ["cpu", "gpu:0", "xpu:0", "npu:0"])
def test_the_peak_of_the_process_outlives_resets(fake, name):
    host, device = fake(name)
    own = host if name == "cpu" else device
    own.use(1000)
    own.use(-900)
    memory.reset_peak()
    assert memory.peak_since_reset_bytes() == 100
    assert memory_reading().peak_allocated_bytes == 1000
    own.use(500)
    memory.reset_peak()
    assert memory_reading().peak_allocated_bytes == 1000
    own.use(600)
    assert memory.peak_since_reset_bytes() == 1200
    assert memory_reading().peak_allocated_bytes == 1200


@pytest.mark.parametrize("name", ["cpu", "gpu:0"])
@pytest.mark.parametrize("can_reset", [True, False])
def test_paddle_26_cannot_reset(fake, name, can_reset):
    fake(name, can_reset)
    assert memory.can_reset_peak() is can_reset
    if not can_reset:
        with pytest.raises(RuntimeError, match="3.0"):
            memory.reset_peak()


def test_a_device_without_counters_is_told_once(fake, caplog):
    fake("ipu", families="host")
    with caplog.at_level("WARNING", logger="paddle_memcallbacks"):
        assert memory_reading() == memory_reading() == MemoryReading(0, 0, 0, 0)
    assert caplog.text.count("no memory counters for ipu") == 1
    assert memory.memory_metrics(memory_reading()) == {}


def test_this_paddles_own_counters():
    paddle.set_device("cpu")
    before = memory_reading()
    kept = paddle.zeros([1000, 1000])
    after = memory_reading()
    assert after.allocated_bytes - before.allocated_bytes == 4_000_000
    assert after.peak_allocated_bytes >= after.allocated_bytes
    assert after.reserved_bytes >= after.allocated_bytes
    del kept
    assert memory.allocated_bytes() == before.allocated_bytes
    assert memory_reading().peak_allocated_bytes >= after.allocated_bytes


def test_a_cpu_has_no_device_memory(monkeypatch):
    monkeypatch.setattr(paddle, "get_device", lambda: "cpu")
    assert memory.device_total_bytes() is None
    monkeypatch.setattr(paddle, "get_device", lambda: "npu:0")
    assert memory.device_total_bytes() is None


def test_a_gpus_memory(monkeypatch):
    class Properties:
        total_memory = 80 * 2**30

    monkeypatch.setattr(paddle, "get_device", lambda: "gpu:1")
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(paddle.device.cuda, "get_device_properties", lambda index: {1: Properties}[index])
    assert memory.device_total_bytes() == 80 * 2**30
    # a GPU wheel on a machine without one: asking for properties would raise
    monkeypatch.setattr(paddle.device.cuda, "device_count", lambda: 0)
    assert memory.device_total_bytes() is None


def test_host_memory():
    before = memory.host_rss_bytes()
    kept = bytearray(b"x") * (64 * 2**20)
    assert memory.host_rss_bytes() - before > 32 * 2**20
    del kept
