"""Prometheus text of an agent, by subject; `SERIES` has all of it."""

from headgate.http.exposition.render import SECTIONS, SERIES, render_in_turns, render_metrics
from headgate.http.exposition.series import LABELS, Series, Works

__all__ = ["LABELS", "SECTIONS", "SERIES", "Series", "Works", "render_in_turns", "render_metrics"]
