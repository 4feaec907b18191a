"""Recompute over BatchNorm: the running statistics must move once a step."""

import numpy as np
import paddle
import pytest
from paddle.distributed.fleet.utils import recompute

from paddle_memcallbacks.recompute import recompute_units

X = (np.random.RandomState(0).randn(16, 4) + 5).astype("float32")


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.block = paddle.nn.Sequential(paddle.nn.BatchNorm1D(4), paddle.nn.Linear(4, 2))

    def forward(self, x, reentrant=None):
        return (
            self.block(x)
            if reentrant is None
            else recompute(self.block, x, use_reentrant=reentrant, preserve_rng_state=False)
        )


def step(units=(), reentrant=None):
    paddle.seed(0)
    net = Net()
    x = paddle.to_tensor(X)
    x.stop_gradient = False
    with recompute_units(net, units):
        (net(x, reentrant) ** 2).sum().backward()
    norm = net.block[0]
    return norm._mean.numpy(), norm._variance.numpy(), norm.weight.grad.numpy(), x.grad.numpy()


@pytest.mark.parametrize("reentrant", [True, False])
def test_paddles_own_recompute_moves_them_twice(reentrant):
    ratio = (step(reentrant=reentrant)[0] / step()[0]).mean()
    assert ratio == pytest.approx(1.9, abs=0.01)


def test_ours_moves_them_once_to_the_bit():
    for one, other in zip(step(units=["block"]), step(), strict=True):
        assert one.tobytes() == other.tobytes()
