"""A disk that fills up in the middle of a real training: a warning for each writer, and the training goes on."""

import subprocess
import sys

RUN = """
import resource, sys
import numpy as np, paddle
import paddle_memcallbacks as pm

folder, limit = sys.argv[1], int(sys.argv[2])
paddle.seed(0)
net = paddle.nn.Linear(4, 1)
optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
session = pm.Session(
    {"memory": {"interval": 5}, "visualdl": {"interval": 1}}, model=net, optimizer=optimizer, logdir=folder
)
rows = paddle.to_tensor(np.arange(32, dtype="float32").reshape(8, 4) / 32)
# a file may not grow beyond this: writes fail as they do on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for step in range(40):
    session.step(rows, lambda model, part: (model(part) ** 2).mean())
session.close()
print("weights", float(net.weight.sum()))
"""


def train(folder, limit):
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), str(limit)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1], done.stderr


def test_the_training_goes_on(tmp_path):
    plain, told = train(tmp_path / "plain", 10**8)
    assert "left out" not in told
    weights, told = train(tmp_path / "full", 4096)
    assert weights == plain
    assert told.count("JsonLinesWriter failed and is left out") == 1
    assert told.count("VisualDLWriter failed and is left out") == 1
    assert told.count("File too large") == 2
    assert "Exception ignored" not in told
    assert "Traceback" not in told
