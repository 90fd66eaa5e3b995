"""The lag of each variant over time, as plain SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.herd_model import Outcome, Variant

WIDTH, HEIGHT = 430, 120
LEFT, TOP, GAP_X, GAP_Y = 56, 56, 34, 46
POINTS = 300
COLOURS = {Variant.BARE: "#c0392b", Variant.JITTER: "#d68910", Variant.PACED: "#1e8449"}
Pictures = Mapping[str, Mapping[Variant, Outcome]]


def draw(pictures: Pictures, path: Path) -> None:
    width = LEFT + len(pictures) * (WIDTH + GAP_X)
    height = TOP + len(Variant) * (HEIGHT + GAP_Y)
    body = "\n".join(_panels(pictures))
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" role="img" '
        f'aria-label="Replication lag over time: bare gate, gate with jitter, paced">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _panels(pictures: Pictures) -> Iterator[str]:
    for column, (title, outcomes) in enumerate(pictures.items()):
        x = LEFT + column * (WIDTH + GAP_X)
        yield _text(x, 22, f"Replication lag {title}", "font-size='14' font-weight='bold'")
        for row, (variant, outcome) in enumerate(outcomes.items()):
            yield from _panel(x, TOP + row * (HEIGHT + GAP_Y), variant, outcome)


def _panel(x: float, y: float, variant: Variant, outcome: Outcome) -> Iterator[str]:
    """Each with its own scale: the same one would flatten what pacing does."""
    top = max(1.25 * outcome.threshold_s, *outcome.lags)
    seconds = len(outcome.lags) * outcome.step_s
    limit_y = y + HEIGHT * (1 - outcome.threshold_s / top)
    over = f"{_percent(outcome.over)} of the time over, p99 {outcome.p99_s:.1f} s"
    yield f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="#f7f7f7"/>'
    yield _text(x, y - 6, f"{variant.value}: {over}", f"fill='{COLOURS[variant]}'")
    for number in range(1, outcome.rounds):
        begun_x = x + WIDTH * number / outcome.rounds
        yield _line(begun_x, y, begun_x, y + HEIGHT, "stroke='#ccc'")
    yield _line(x, limit_y, x + WIDTH, limit_y, "stroke='#555' stroke-dasharray='4 3'")
    yield _text(x - 6, limit_y + 4, f"{outcome.threshold_s:g} s", "text-anchor='end'")
    yield _text(x - 6, y + 10, f"{top:.1f} s", "text-anchor='end' fill='#999'")
    yield _text(x, y + HEIGHT + 14, "0 s", "fill='#999'")
    each = f"{outcome.rounds} × " if outcome.rounds > 1 else ""
    ends = f"{each}{seconds / outcome.rounds:.0f} s"
    yield _text(x + WIDTH, y + HEIGHT + 14, ends, "text-anchor='end' fill='#999'")
    points = " ".join(_points(x, y, outcome.lags, top))
    colour = COLOURS[variant]
    yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>'


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"


def _points(x: float, y: float, lags: list[float], top: float) -> Iterator[str]:
    """The worst of each span: a peak between two points must not vanish."""
    span = max(1, len(lags) // POINTS)
    for start in range(0, len(lags), span):
        lag = max(lags[start : start + span])
        at = x + WIDTH * start / len(lags)
        yield f"{at:.1f},{y + HEIGHT * (1 - lag / top):.1f}"


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text x="{x}" y="{y:.1f}" {style}>{words}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1}" y1="{y1:.1f}" x2="{x2}" y2="{y2:.1f}" {style}/>'
