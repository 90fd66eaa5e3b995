"""What every store does alike with the values it is given: text form, checks, messages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.base.keyvalue import Compare, Put
from headgate.changes.model import LOG
from headgate.changes.state import MAX_OWN_ITEM_BYTES
from headgate.errors import Fault, InvalidSettings, StoreUnavailable
from headgate.history.records import BudgetMinute, Report, Tally

MAX_ENTRIES = 100_000
"""Per first word of a key in the local log: `items/`, `notes/`, `log/`."""
MAX_LOG_KEY_CHARS = 4096
MAX_REVISION_BYTES = 32 * 1024 * 1024
"""For a value under `log/`; other values have MAX_OWN_ITEM_BYTES."""
MAX_COMMIT_BYTES = 64 * 1024 * 1024

MAX_KEY_CHARS = 512
MAX_VALUE_BYTES = 64 * 1024
"""For a report, as JSON in ASCII."""
SHOWN_CHARS = 32


def to_json(value: Any) -> str:
    """ASCII, so that every store's encoding accepts it."""
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")


# --- the local log -------------------------------------------------------------------------


def check_commit(compares: Sequence[Compare], puts: Sequence[Put]) -> int:
    """How many bytes it puts. InvalidSettings for what is too long, or is no text that a file can
    hold; ValueError for what no caller should ask for."""
    keys = [*(compare.key for compare in compares), *(put.key for put in puts)]
    if not all(keys):
        raise ValueError("a commit names an empty key")
    if len({put.key for put in puts}) < len(puts):
        raise ValueError("a commit puts the same key twice")
    for key in keys:
        _check_text("key", key, MAX_LOG_KEY_CHARS)
    sizes = [len(put.value or b"") for put in puts]
    for put, size_bytes in zip(puts, sizes, strict=True):
        most = MAX_REVISION_BYTES if put.key.startswith(LOG) else MAX_OWN_ITEM_BYTES
        if size_bytes > most:
            raise _too_long(put.key, size_bytes, most)
    if sum(sizes) > MAX_COMMIT_BYTES:
        raise _too_long("the whole change", sum(sizes), MAX_COMMIT_BYTES)
    return sum(sizes)


def _too_long(what: str, size_bytes: int, most: int) -> InvalidSettings:
    message = f"has {size_bytes:,} bytes, at most {most:,} are allowed"
    return InvalidSettings([Fault(what, message)])


def check_room(
    puts: Sequence[Put], before: Mapping[str, object | None], count: Callable[[str], int]
) -> None:
    """StoreUnavailable for an entry too many. `before`: what is under the keys of `puts` now."""
    more: Counter[str] = Counter()
    for put in puts:
        top, slash, _ = put.key.partition("/")
        is_there, will_be = before[put.key] is not None, put.value is not None
        more[top + slash] += will_be - is_there
    for under, added in more.items():
        if added > 0 and (kept := count(under)) + added > MAX_ENTRIES:
            raise StoreUnavailable(
                f"{under} has {kept:,} entries and would have {kept + added:,}; at most "
                f"{MAX_ENTRIES:,} are allowed: remove some that are no longer needed"
            )


# --- history and reports -------------------------------------------------------------------


def check_report(report: Report) -> None:
    """Raise InvalidSettings for what is too long, or is no text that a file can hold."""
    _check_text("client", report.client, MAX_KEY_CHARS)
    _check_text("origin", report.origin, MAX_KEY_CHARS)
    size_bytes = len(to_json(report.value))
    if size_bytes > MAX_VALUE_BYTES:
        message = f"takes {size_bytes} bytes as JSON, at most {MAX_VALUE_BYTES} are allowed"
        raise InvalidSettings([Fault(f"report of {report.client}", message)])


def _check_text(place: str, text: str, max_chars: int) -> None:
    if len(text) > max_chars:
        beginning = f"{text[:SHOWN_CHARS]}…"
        message = f"{beginning!a} has {len(text)} characters, at most {max_chars} are allowed"
        raise InvalidSettings([Fault(place, message)])
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{text!a} has half of a surrogate pair, which is not a character"
        raise InvalidSettings([Fault(place, message)]) from None


def check_budget_minutes(minutes: Sequence[BudgetMinute]) -> None:
    for one in minutes:
        if one.count < 1:
            message = f"a minute of budget {one.budget!r} counts {one.count}, must be 1 or more"
            raise ValueError(message)


def check_tallies(tallies: Sequence[Tally]) -> None:
    for tally in tallies:
        if tally.count < 1:
            raise ValueError(f"a tally of {tally.client!r} counts {tally.count}, must be 1 or more")


def check_step(step_minutes: int | None) -> None:
    if step_minutes is not None and step_minutes < 1:
        raise ValueError(f"a step has {step_minutes} minutes, must have 1 or more")
