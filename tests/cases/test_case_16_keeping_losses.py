"""Losses kept with their graph: memory grows every step until it runs out. Growth is told, what is flat is not."""

import gc

import paddle
import pytest

from paddle_memcallbacks.memory import GrowthWatch, allocated_bytes

STEPS = 40
MIB = 2**20


def aux_loss_kept(net, optimizer, rows, kept):
    """A loss for a metric, never backpropagated, appended to a list."""
    loss, metric = net(rows).mean(), (net(rows) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    kept.append(metric)


def evaluation_sum_with_graph(net, optimizer, rows, kept):
    """A validation loop without no_grad that adds its losses up."""
    kept[:] = [sum(kept, paddle.zeros([])) + net(rows).mean()]


def loss_kept_after_backward(net, optimizer, rows, kept):
    """Backward has freed the graph's buffers; four bytes stay."""
    loss = net(rows).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    kept.append(loss)


def output_kept_without_graph(net, optimizer, rows, kept):
    """Under no_grad there is no graph to keep."""
    with paddle.no_grad():
        kept.append(net(rows).mean())


def alerts_of(loop):
    paddle.seed(0)
    net = paddle.nn.Sequential(*[paddle.nn.Linear(256, 256), paddle.nn.GELU()] * 4, paddle.nn.Linear(256, 1))
    optimizer = paddle.optimizer.SGD(1e-3, parameters=net.parameters())
    rows, kept, watch = paddle.randn([256, 256]), [], GrowthWatch()
    sizes, alerts = [], []
    for step in range(1, STEPS + 1):
        loop(net, optimizer, rows, kept)
        gc.collect()
        sizes.append(allocated_bytes())
        alerts.append(watch.observe(step, sizes[-1]))
    return sizes, [alert for alert in alerts if alert is not None]


@pytest.mark.parametrize("loop", [aux_loss_kept, evaluation_sum_with_graph])
def test_a_graph_that_is_kept_is_told_with_its_size(loop):
    sizes, (alert,) = alerts_of(loop)
    assert sizes[-1] - sizes[0] > (STEPS - 1) * MIB
    assert alert.kind == "memory_growth"
    assert alert.data["bytes_per_step"] == pytest.approx(2 * MIB, rel=0.01)
    assert "float(loss)" in alert.remedy


@pytest.mark.parametrize("loop", [loss_kept_after_backward, output_kept_without_graph])
def test_what_holds_no_graph_is_not_told(loop):
    sizes, alerts = alerts_of(loop)
    assert alerts == []
    assert sizes[-1] - sizes[3] < 4096
