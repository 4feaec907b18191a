"""A run that is killed without warning: every step that was written is there, in the record and in the curves."""

import json
import os
import signal
import subprocess
import sys

from paddle_memcallbacks.report import read_run
from tests.writers.curves import curves

RUN = """
import itertools, sys
from paddle_memcallbacks.writers import JsonLinesWriter, VisualDLWriter, WriterGroup

folder = sys.argv[1]
record = folder + "/memcallbacks.jsonl"
writers = WriterGroup([JsonLinesWriter(record), VisualDLWriter(folder, record_path=record)])
writers.start(0, {"name": "killed"})
for step in itertools.count(1):
    writers.write(step, {"a": step, "b": 0.5})
    print(step, flush=True)
"""


def test_sigkill_in_mid_run(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 200:
            break
    os.kill(process.pid, signal.SIGKILL)
    told = [int(line) for line in process.stdout.read().splitlines() if line]
    assert process.wait(30) == -signal.SIGKILL
    last = max([200, *told])
    run = read_run(tmp_path)
    assert run.end is None
    assert [step.index for step in run.steps][:last] == list(range(1, last + 1))
    for tag in ("a", "b"):
        assert [step for step, _ in curves(tmp_path)[tag]][:last] == list(range(1, last + 1))
    # the line that the kill may have torn is the only one that does not parse
    lines = (tmp_path / "memcallbacks.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in lines[: last + 1])
