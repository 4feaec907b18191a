"""Where the library meets the toolkits: one folder a toolkit. Installed as ``paddle_memcallbacks.integrations``.

The entry-point group of that name holds one `Plugin` a toolkit; importing this costs nothing.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from paddle_memcallbacks.config import MemoryConfig


@dataclass(frozen=True)
class Plugin:
    """A toolkit that the command line can serve without a change to the user's script.

    Attributes:
        name: the toolkit's distribution on PyPI.
        trigger: the module after whose import the plugin is switched on.
        module: our folder for it.
    """

    name: str
    trigger: str
    module: str

    def activate(self, config: MemoryConfig) -> None:
        """Give every training of this toolkit in this process the config."""
        importlib.import_module(self.module).activate(config)


PADDLENLP = Plugin("paddlenlp", "paddlenlp.trainer", "paddle_memcallbacks.integrations.paddlenlp")
PADDLEDET = Plugin("paddledet", "ppdet.engine", "paddle_memcallbacks.integrations.paddledet")
