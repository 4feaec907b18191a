"""A block whose input has stop_gradient=True: its own parameters must get their gradient."""

import paddle
from paddle.distributed.fleet.utils import recompute

from paddle_memcallbacks.recompute import recompute_units


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.a, self.b = paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 1)

    def forward(self, x, through=None):
        return self.b(paddle.tanh(self.a(x) if through is None else through(self.a, x)))


def gradient(units=(), through=None):
    paddle.seed(0)
    net = Net()
    with recompute_units(net, units):
        # stop_gradient, as any batch is
        net(paddle.ones([2, 4]), through).sum().backward()
    return None if net.a.weight.grad is None else net.a.weight.grad.numpy()


def test_paddles_own_recompute_loses_the_gradient():
    assert gradient() is not None
    assert gradient(through=recompute) is None


def test_ours_keeps_it_to_the_bit():
    assert gradient(units=["a"]).tobytes() == gradient().tobytes()
