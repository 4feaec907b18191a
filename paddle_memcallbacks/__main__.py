"""``python -m paddle_memcallbacks`` is ``paddle-mem``."""

from paddle_memcallbacks.cli import main

main()
