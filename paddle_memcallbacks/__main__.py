"""``python -m paddle_memcallbacks`` is ``paddle-mem``; paddle.distributed.launch needs a module."""

from paddle_memcallbacks.cli import main

main()
