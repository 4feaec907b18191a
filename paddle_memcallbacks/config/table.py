"""The keys as Markdown: docs/keys.md is this text, and a test holds it to it."""

from __future__ import annotations

from paddle_memcallbacks.config.section import SECTION_TYPES, Section, as_written, kind_of

_HEAD = """# Config keys

The same keys in every toolkit: as sections of a YAML or JSON file or of a Python mapping, dotted on a command line
(`amp.level=O2`), or flat (`amp_level`). This file is written by `python docs/make_keys.py` from the code.

- A section may be a bare `true` or `false`. A section with keys under it is on unless it says `enable: false`; with
  nothing under it (`amp:`) it is refused. A section that is not written is on or off as its heading says.
- A key that does not exist, a value that is not allowed and keys that contradict each other are errors, all told at
  once. The keys of a section that is off are checked too.
- Sizes: `GiB`, `MiB` are powers of 1024; `GB`, `MB` powers of 1000; a bare number is bytes.
"""


def keys_markdown() -> str:
    """Every key with its default, what is allowed and what it means, one table a section."""
    return "\n".join([_HEAD, *(_section_table(section) for section in SECTION_TYPES.values())])


def _section_table(section: type[Section]) -> str:
    state = "on" if section.ON_WHEN_ABSENT else "off"
    lines = [
        f"## {section.NAME} ({state} when not written)",
        "",
        (section.__doc__ or "").strip(),
        "",
        "| key | default | allowed | meaning |",
        "|---|---|---|---|",
    ]
    for key, field in section.model_fields.items():
        cells = (f"`{key}`", f"`{as_written(field.default)}`", kind_of(section, key).allowed, field.description or "")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join([*lines, ""])
