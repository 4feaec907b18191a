"""PaddleDetection: the keys of its YAML files alone. Importing this registers the plugin (see install.py).

    plugins: !!python/module:paddle_memcallbacks.integrations.paddledet     # in a config, under its own tools/train.py
    paddle-mem run tools/train.py -c cfg.yml -o recompute=true               # or so
    trainer.register_callbacks([MemoryCallback(trainer)])                    # or in code

`keys`, `flags` and `shims` need no ppdet; where it is not installed, importing this registers nothing.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from .shims import describe_shims

if TYPE_CHECKING or importlib.util.find_spec("ppdet") is not None:
    from .callback import MemoryCallback
    from .install import activate, register, unregister

    register()
else:

    def __getattr__(name: str) -> Any:
        if name in ("MemoryCallback", "activate", "register", "unregister"):
            raise ModuleNotFoundError(
                f"paddle_memcallbacks.integrations.paddledet.{name} needs PaddleDetection: pip install "
                "'paddle_memcallbacks[det]', or put the root of your PaddleDetection clone on PYTHONPATH",
                name="ppdet",
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["MemoryCallback", "activate", "describe_shims", "register", "unregister"]
