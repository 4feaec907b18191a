"""Runs after the fact: their JSON lines as data, a table, a page with pictures. Needs no paddle."""

from paddle_memcallbacks.report.record import Run, Step, Text, read_run, read_runs

__all__ = ["Run", "Step", "Text", "read_run", "read_runs"]
