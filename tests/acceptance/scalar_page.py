"""VisualDL's page of curves, as a reader uses it."""

from __future__ import annotations

import json
import urllib.parse

from tests.acceptance.browser import Page
from tests.acceptance.visualdl_server import Server

# charts are fetched when they come into view; a tall window shows them all
_HEIGHT = 4000

_GROUPS = "[...document.querySelectorAll('h3')]"
# the list of runs: a label with the run's name as its title, and a dot in its colour
_DOTS = """
(() => {
  const colours = {};
  for (const dot of document.querySelectorAll('label[title] i'))
    colours[dot.closest('label').title] = getComputedStyle(dot).backgroundColor.match(/[0-9]+/g).map(Number);
  return colours;
})()
"""
_PIXELS = """
(() => {
  const wanted = %s, counts = {};
  for (const canvas of document.querySelectorAll('canvas')) {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    for (const [run, rgb] of Object.entries(wanted)) {
      const off = i => Math.abs(data[i] - rgb[0]) + Math.abs(data[i + 1] - rgb[1]) + Math.abs(data[i + 2] - rgb[2]);
      let seen = 0;
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200 && off(i) < 24) seen++;
      counts[run] = Math.max(counts[run] || 0, seen);
    }
  }
  return counts;
})()
"""


def open_scalars(page: Page, server: Server, group: str = "memory") -> None:
    """Open the page and leave ``group`` (the part of a tag before its slash) as the only one unfolded."""
    page.open(server.url("app/scalar"), height=_HEIGHT)
    page.wait_for(f"{_GROUPS}.some(e => e.textContent === '{group}') && document.querySelector('label[title] i')")
    page.ask(f"{_GROUPS}.forEach((e, i) => {{ if ((i === 0) !== (e.textContent === '{group}')) e.click(); }})")


def fetched_curves(page: Page, server: Server) -> set[tuple[str, str]]:
    """(run, tag) of every curve that the page has asked the server for."""
    names = page.ask("performance.getEntriesByType('resource').map(e => e.name)")
    asked = [urllib.parse.parse_qs(urllib.parse.urlsplit(name).query) for name in names if "scalar/list" in name]
    return {(query["run"][0].removeprefix(f"{server.name}/"), query["tag"][0]) for query in asked}


def run_colours(page: Page, server: Server) -> dict[str, tuple[int, int, int]]:
    """The colour that the page's list gives each run, as red, green, blue."""
    found = page.ask(_DOTS)
    return {run.removeprefix(f"{server.name}/"): (red, green, blue) for run, (red, green, blue) in found.items()}


def wait_for_curves(page: Page, colours: dict[str, tuple[int, int, int]], pixels: int = 100) -> None:
    """Wait until the charts hold a line in every run's colour."""
    page.wait_for(f"Object.values({_PIXELS.strip() % json.dumps(colours)}).every(count => count >= {pixels})")
