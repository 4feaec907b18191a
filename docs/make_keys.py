"""Write docs/keys.md anew from the keys' own descriptions."""

from pathlib import Path

from paddle_memcallbacks.config.table import keys_markdown

Path(__file__).with_name("keys.md").write_text(keys_markdown(), encoding="utf-8")
