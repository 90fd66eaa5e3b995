"""The tiers' latencies over time, and what best-effort got done, as plain SVG."""

from __future__ import annotations

from collections.abc import Iterator
from math import log10
from pathlib import Path

from bench.pg_load import Seen
from bench.pg_tiers import FLOOD, HELD, Timeline
from bench.report import percentile

WIDTH, HEIGHT, DONE_HEIGHT = 720, 190, 60
LEFT, TOP, GAP, BOTTOM = 64, 62, 30, 32
DONE_TOP = TOP + HEIGHT + GAP
BIN_S = 0.25
LINES = (("critical", "#1e8449"), ("important", "#2e6da4"), ("best_effort", "#c0392b"))
LOW_MS, HIGH_MS = 0.05, 2000.0


def draw(run: Timeline, path: Path) -> None:
    width, height = LEFT + WIDTH + 24, DONE_TOP + DONE_HEIGHT + BOTTOM
    body = "\n".join(_picture(run))
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="Latency by tier before a flood, during it, and with a policy">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _picture(run: Timeline) -> Iterator[str]:
    ends_s = run.spans[-1].end_s
    yield _text(LEFT, 20, "p99 latency of each tier, in ms", "font-size='14' font-weight='bold'")
    yield _panel(TOP, HEIGHT)
    yield from _scale()
    yield from _done(run.best_effort, ends_s)
    for span in run.spans:
        if span.name in (FLOOD, HELD):
            x = _x(span.begin_s, ends_s)
            yield _line(x, TOP, x, DONE_TOP + DONE_HEIGHT, "stroke='#555' stroke-dasharray='4 3'")
            words = "best-effort floods" if span.name == FLOOD else "policy published"
            yield _text(x + 4, TOP - 6, words, "fill='#555'")
    for number, (tier, colour) in enumerate(LINES):
        label = tier.replace("_", "-")
        yield _text(LEFT + 110 * number, 40, label, f"fill='{colour}' font-weight='bold'")
        points = " ".join(_points(getattr(run, tier), ends_s))
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    below = DONE_TOP + DONE_HEIGHT + 18
    yield _text(LEFT, below, "0 s", "fill='#999'")
    yield _text(LEFT + WIDTH, below, f"{ends_s:.0f} s", "text-anchor='end' fill='#999'")


def _panel(top: float, height: float) -> str:
    return f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{height}" fill="#f7f7f7"/>'


def _done(seen: list[Seen], ends_s: float) -> Iterator[str]:
    counts = [0] * int(ends_s / BIN_S)
    for one in seen:
        number = int(one.done_s / BIN_S)
        if one.outcome == "ok" and 0 <= number < len(counts):
            counts[number] += 1
    most = max(counts, default=0) or 1
    title = "best-effort statements done per second"
    yield _panel(DONE_TOP, DONE_HEIGHT)
    yield _text(LEFT, DONE_TOP - 6, title, "fill='#c0392b'")
    yield _text(LEFT - 6, DONE_TOP + 10, f"{most / BIN_S:.0f}", "text-anchor='end' fill='#999'")
    for number, count in enumerate(counts):
        height = DONE_HEIGHT * count / most
        x, wide = _x(number * BIN_S, ends_s), WIDTH * BIN_S / ends_s
        yield (
            f'<rect x="{x:.1f}" y="{DONE_TOP + DONE_HEIGHT - height:.1f}" width="{wide - 1:.1f}" '
            f'height="{height:.1f}" fill="#c0392b" fill-opacity="0.6"/>'
        )


def _scale() -> Iterator[str]:
    """Logarithmic: what is held and what is not lie three orders apart."""
    for ms in (0.1, 1, 10, 100, 1000):
        y = _y(ms)
        yield _line(LEFT, y, LEFT + WIDTH, y, "stroke='#ddd'")
        yield _text(LEFT - 6, y + 4, f"{ms:g}", "text-anchor='end' fill='#999'")


def _points(seen: list[Seen], ends_s: float) -> Iterator[str]:
    bins: dict[int, list[float]] = {}
    for one in seen:
        if one.outcome == "ok":
            bins.setdefault(int(one.done_s / BIN_S), []).append(one.took_s * 1000)
    for number, took in sorted(bins.items()):
        at_s = (number + 0.5) * BIN_S
        if at_s <= ends_s:
            yield f"{_x(at_s, ends_s):.1f},{_y(percentile(took, 0.99)):.1f}"


def _x(at_s: float, ends_s: float) -> float:
    return LEFT + WIDTH * at_s / ends_s


def _y(ms: float) -> float:
    held = min(HIGH_MS, max(LOW_MS, ms))
    return TOP + HEIGHT * (1 - (log10(held / LOW_MS) / log10(HIGH_MS / LOW_MS)))


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{words}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'
