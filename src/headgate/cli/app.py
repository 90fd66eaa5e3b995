"""The commands, put together. Bodies import what they need: `headgate --help` stays quick."""

from __future__ import annotations

from headgate.cli import ask, change, lint, look, small, top
from headgate.cli.options import app, metrics_app

__all__ = ["app", "ask", "change", "lint", "look", "metrics_app", "small", "top"]
