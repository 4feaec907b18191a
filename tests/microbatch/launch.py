"""Starting two gloo processes on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def two_ranks(worker: Path, *arguments: str, timeout: float = 240) -> list[str]:
    """The output of the two processes; one that hangs raises subprocess.TimeoutExpired."""
    endpoints = [f"127.0.0.1:{port}" for port in _free_ports(2)]
    children = [_start(worker, arguments, rank, endpoints) for rank in range(2)]
    try:
        return [child.communicate(timeout=timeout)[0] for child in children]
    finally:
        for child in children:
            child.kill()


def _start(worker: Path, arguments: tuple[str, ...], rank: int, endpoints: list[str]) -> subprocess.Popen[str]:
    environment = dict(
        os.environ,
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM="2",
        PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
        PADDLE_CURRENT_ENDPOINT=endpoints[rank],
        PADDLE_DISTRI_BACKEND="gloo",
        PADDLE_MASTER=endpoints[0],
    )
    command = [sys.executable, str(worker), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
