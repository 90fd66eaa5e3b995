"""One finite number, or a ProbeFailed that says what came instead.

It gives kind and length, never the text: everybody may look at a metric, and what answered may
have answered with a secret.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn, Protocol

from headgate.errors import ProbeFailed
from headgate.metrics.samples import Cause, Measured, Number


def value_of(number: Number) -> float:
    """What was measured, without what is said about it."""
    return number.value if isinstance(number, Measured) else number


def number_of(value: object) -> float:
    """`value` as a float. Text is no number here, not even "12": a query may cast."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        _reject(f"answered {kind_of(value)} and no number")
    if not math.isfinite(value):
        _reject(f"answered {value}, which is not a finite number")
    return float(value)


def number_in_text(text: str) -> float:
    """The one number that `text` consists of."""
    try:
        value = float(text.strip())
    except ValueError:
        _reject(f"answered {kind_of(text.strip())} and no number")
    return number_of(value)


def one_number(rows: Sequence[Sequence[object]]) -> float:
    """The number in the only column of the only row."""
    if not rows:
        _reject("answered no row; it must answer exactly one")
    if len(rows) > 1:
        _reject("answered more than one row; it must answer exactly one (aggregate, or LIMIT 1)")
    [row] = rows
    if len(row) != 1:
        _reject(f"answered {len(row)} columns; it must answer exactly one")
    return number_of(row[0])


def one_shown(rows: Sequence[Sequence[object]]) -> float:
    """The number in the last column of the only row: what SHOW answers is name, value as text."""
    if len(rows) != 1:
        _reject(f"answered {'more than one row' if rows else 'no row'}; it must answer exactly one")
    value = rows[0][-1]
    return number_in_text(value) if isinstance(value, str) else number_of(value)


def kind_of(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str | bytes):
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"text of {len(value)} {unit}"
    return f"a value of type {type(value).__name__}"


def _reject(what: str) -> NoReturn:
    raise ProbeFailed(Cause.INVALID, what)


# --- what a server said, fit for one line of a report ------------------------------------------


MAX_MESSAGE_CHARS = 500


def one_line(said: object, secret: str = "") -> str:
    """Without line breaks, bounded, and without `secret` should it stand in there."""
    text = "; ".join(line.strip() for line in str(said).splitlines() if line.strip())
    if secret:
        text = text.replace(secret, "***")
    return text[:MAX_MESSAGE_CHARS] or type(said).__name__


# --- calibration ---------------------------------------------------------------------------
# Propose a threshold for commit_delay from what a commit takes here, when all is well.

# Five times the slowest one in a hundred: noise stays below it, a stalled disk does not.
HEADROOM = 5.0
# Below this, what is measured is the scheduler of the agent's host.
LEAST_S = 0.010


class Readable(Protocol):
    async def read(self) -> Number: ...


@dataclass(frozen=True, slots=True)
class Baseline:
    count: int
    p50_s: float
    p99_s: float
    suggested_s: float


async def commit_baseline(probe: Readable, count: int = 200) -> Baseline:
    """Reads `count` times, one after the other; raises what the probe raises."""
    values_s = sorted([value_of(await probe.read()) for _ in range(count)])
    p99_s = percentile(values_s, 0.99)
    return Baseline(count, percentile(values_s, 0.5), p99_s, suggested_threshold(p99_s))


def percentile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def suggested_threshold(p99_s: float) -> float:
    return round_up(max(HEADROOM * p99_s, LEAST_S))


def round_up(value: float) -> float:
    """Up to two digits: 0.0234 → 0.024."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.ceil(round(value / step, 6)) * step, 10)
