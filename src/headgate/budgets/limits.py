"""Every setting of a budget, one row each: parsing, docs and the command line derive from it.

A row reads what is in a document into the model's own unit (policy.py), and writes it back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar, runtime_checkable

from headgate.base.declared import (
    Reader,
    Setting,
    Table,
    one_of,
    or_text,
    parse_date_time,
    reads,
    settings_schema,
    table,
    text,
)
from headgate.base.units import SECONDS_PATTERN, SHARE_PATTERN, parse_seconds, parse_share
from headgate.budgets.policy import (
    MAX_BUDGETS,
    MAX_CONDITIONS,
    MAX_EACHES,
    MAX_EXEMPT,
    MAX_RULES,
    InTransaction,
    Mode,
    UnknownHealth,
    When,
)

T = TypeVar("T")
MAX_SERVER_SECONDS = 6000
MAX_WORKERS = 65_535
MAX_DELAYED = 1000
MAX_EPOCH = 0xFFFF_FFFF
MAX_COMMENT_CHARS = 200
MAX_INSTANT_S = 10**12
DAY_MS = 86_400_000

AMOUNTS = {
    "percent": "a percentage such as 20%",
    "seconds": "a time such as 50ms or 2s",
    "server seconds": "time of the whole server such as 2s, or percent seconds such as 200",
}
"""Kinds of settings that may have a unit, and how."""
PLAIN_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,9})?")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class LimitSetting(Setting):
    """A setting with its unit and range, and the field of the model that holds it."""

    field: str = ""
    kind: str = ""
    """As docs and `--help` say it: percent, seconds, …"""
    low: int | None = None
    high: int | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    write: Callable[[Any], Any] = _same

    @property
    def range_text(self) -> str:
        """Or what else may stand there."""
        if self.choices:
            return ", ".join(f"`{choice}`" for choice in self.choices)
        if self.low is None or self.high is None:
            return self.kind
        return f"{self.low:,}–{self.high:,}{self.unit and f' {self.unit}'}"


# --- units ---------------------------------------------------------------------------------


def amount_of(kind: str, text: str) -> int | float:
    """A text with a unit, in the document's own: `20%` of a rate is 20, `2s` of a capacity is 200
    (two seconds of all CPUs), `50ms` of a delay is 0.05. ValueError otherwise."""
    try:
        amount = parse_share(text) if kind == "percent" else parse_seconds(text)
    except ValueError:
        raise ValueError(f"is {text!r}, must be {AMOUNTS[kind]}") from None
    amount = round(amount if kind == "seconds" else 100 * amount, 6)
    return int(amount) if amount.is_integer() else amount


def amount_told(name: str, value: Any) -> Any:
    """The setting of a budget as it is typed, with its unit; another value as it is."""
    row = BUDGET_SETTINGS.get(name)
    if row is None or row.kind not in AMOUNTS or not isinstance(value, int | float):
        return value
    amount = value if row.kind in ("percent", "seconds") else value / 100
    # All digits that a limit may have: what is typed again must be the same limit.
    return f"{amount:.5f}".rstrip("0").rstrip(".") + ("%" if row.kind == "percent" else "s")


# --- readers -------------------------------------------------------------------------------


def thousandths(low: int, high: int, kind: str) -> Reader[int]:
    """A number of at most three decimals, in thousandths; or a text with a unit."""

    pattern = SHARE_PATTERN if kind == "percent" else SECONDS_PATTERN

    @reads(or_text({"type": "number", "minimum": low, "maximum": high}, pattern))
    def read(value: object) -> int:
        if isinstance(value, str) and not PLAIN_NUMBER.fullmatch(value):
            value = amount_of(kind, value)
        number = _in_range(value, low, high)
        whole = round(number * 1000)
        if whole / 1000 != number:
            raise ValueError(f"{_shown(number)} is finer than a thousandth; round it")
        return whole

    return read


def whole(low: int, high: int) -> Reader[int]:
    @reads({"type": "integer", "minimum": low, "maximum": high})
    def read(value: object) -> int:
        number = _in_range(value, low, high)
        if not isinstance(number, int):
            raise ValueError(f"{_shown(number)} is no whole number")
        return number

    return read


def _in_range(value: object, low: int, high: int) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {_kind(value)}")
    if value != value:
        raise ValueError("is NaN, which is no number")
    if value > high:
        raise ValueError(f"{_shown(value)} is more than {high}")
    if value < low:
        raise ValueError(f"{_shown(value)} is less than {low}")
    return value


def _shown(number: int | float) -> str:
    """Whole numbers may be longer than any line."""
    if isinstance(number, int) and abs(number) >= 10**15:
        return "a number of more than 15 digits"
    return str(number)


def _kind(value: object) -> str:
    known = {str: "a string", bool: "a boolean", list: "a list", dict: "a table"}
    return "null" if value is None else known.get(type(value), type(value).__name__)


def _optional(read: Reader[T]) -> Reader[T | None]:
    """JSON's null is the same as leaving it out."""
    schema = {"anyOf": [read.schema, {"type": "null"}]}
    return Reader(lambda value: None if value is None else read(value), schema)


@reads({"type": "string", "pattern": f"^{_NAME.pattern}$"})
def _name(value: object) -> str:
    given = text()(value)
    if not _NAME.fullmatch(given):
        raise ValueError(
            f"is {given!r}, must be 1–63 of a–z, 0–9, ., _ and -, and begin with a–z, 0–9"
        )
    return given


@reads(
    {
        "type": "string",
        "maxLength": MAX_COMMENT_CHARS,
        "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$",
    }
)
def _comment(value: object) -> str:
    given = text(MAX_COMMENT_CHARS)(value)
    if not given.isprintable():
        raise ValueError("holds a line break or another control character; write one line")
    return given


@runtime_checkable
class _DateTime(Protocol):
    """As tomllib gives them; this ring knows no dates of its own."""

    def timestamp(self) -> float: ...
    def utcoffset(self) -> object: ...


@reads(parse_date_time.schema)
def parse_instant_ms(value: object) -> int:
    """Unix time in ms: of RFC 3339 text, a TOML date and time, or Unix seconds."""
    ms = round(_instant_s(value) * 1000)
    if ms < 1:
        raise ValueError("is before 1970; leave it out for a budget without an end")
    return ms


def _instant_s(value: object) -> float:
    if isinstance(value, _DateTime):
        if value.utcoffset() is None:
            raise ValueError("has no time zone: end it with Z, or an offset such as +02:00")
        return value.timestamp()
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a date and time such as 2026-11-16T09:00:00Z, or Unix seconds")
    if not isinstance(value, str):
        return _in_range(value, 0, MAX_INSTANT_S)
    return parse_date_time(value)


# --- writers -------------------------------------------------------------------------------


def in_thousands(amount: int | None) -> int | float | None:
    """The inverse of thousandths: 20000 → 20, 500 → 0.5."""
    if amount is None:
        return None
    return amount // 1000 if amount % 1000 == 0 else amount / 1000


def instant_text(ms: int) -> str | int | float:
    """RFC 3339 in UTC; beyond the year 9999, which that cannot say, Unix seconds."""
    days, in_day_ms = divmod(ms, DAY_MS)
    year, month, day = _civil(days)
    if year > 9999:
        return in_thousands(ms) or 0
    seconds, millis = divmod(in_day_ms, 1000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{year:04d}-{month:02d}-{day:02d}T{clock}{f'.{millis:03d}' if millis else ''}Z"


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day of a day counted from 1970-01-01 (H. Hinnant, civil_from_days)."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + year_of_era + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


def _value(member: Enum) -> str:
    return str(member.value)


def _choices(kind: type[Enum]) -> tuple[str, ...]:
    return tuple(str(member.value) for member in kind)


# --- the tables ----------------------------------------------------------------------------


def _thousandths(name: str, field: str, about: str, **row: Any) -> LimitSetting:
    """Of a percentage or of seconds, which are kept in thousandths."""
    low, high, default = row.pop("low", 0), row["high"], row.pop("default", None)
    read = thousandths(low, high, row["kind"])
    return LimitSetting(
        name, about, _optional(read) if default is None else read, default,
        row.pop("unset", "unlimited") if default is None else f"{in_thousands(default)}",
        field=field, low=low, write=in_thousands, **row,
    )  # fmt: skip


def _whole(name: str, about: str, high: int, **row: Any) -> LimitSetting:
    return LimitSetting(
        name, about, row.pop("read", whole(0, high)), field=name, kind="whole number", low=0,
        high=high, **row,
    )  # fmt: skip


_PERCENT: dict[str, Any] = {"kind": "percent", "high": 100, "unit": "%"}
_SERVER_SECONDS: dict[str, Any] = {
    "kind": "server seconds", "high": MAX_SERVER_SECONDS, "unit": "% s",
}  # fmt: skip

BUDGET_SETTINGS: dict[str, LimitSetting] = {
    row.name: row
    for row in (
        LimitSetting(
            "name", "Name of the budget, which never changes: 1–63 of a–z, 0–9, `.`, "
            "`_`, `-`.", _name, field="name", kind="name", shown_default="required",
        ),
        LimitSetting(
            "mode", "`off`: matches and counts nothing. `warn`: warns of what it would block. "
            "`enforce`: blocks.",
            one_of(Mode), Mode.WARN, field="mode", kind="choice", choices=_choices(Mode),
            write=_value,
        ),
        _thousandths(
            "rate", "rate_mpct", "Server share: the part of the server's CPUs that it may use "
            "over time. 0 blocks everything.", **_PERCENT,
        ),
        _thousandths(
            "capacity", "capacity_mpcts", "Burst limit: how much it may use at once, as debt "
            "that drains at `rate`. `2s` is two seconds of all CPUs. 0 blocks everything.",
            **_SERVER_SECONDS,
        ),
        _thousandths(
            "burst", "burst_mpcts", "Per-query limit: the estimated cost of one statement, as p90, "
            "in the unit of `capacity`. 0 blocks everything.", **_SERVER_SECONDS,
        ),
        _thousandths(
            "concurrency", "concurrency_mpct", "Concurrency limit: share of the server's "
            "worker processes (Postgres: `max_connections`), rounded up. 0 blocks everything.",
            **_PERCENT,
        ),
        _whole(
            "max_workers", "Instead of `concurrency`: how many processes. 0 blocks everything.",
            MAX_WORKERS, read=_optional(whole(0, MAX_WORKERS)), unit="workers",
            shown_default="unlimited",
        ),
        _thousandths(
            "warning_threshold", "warning_mpct", "In `enforce` mode: warn from this share of "
            "`capacity`, `burst` or `concurrency` on.", unset="none", **_PERCENT,
        ),
        LimitSetting(
            "when", "`always`, or `unhealthy`: only while the health gate is shut.",
            one_of(When), When.ALWAYS, field="when", kind="choice", choices=_choices(When),
            write=_value,
        ),
        LimitSetting(
            "in_transaction", "What happens to a statement over a limit, inside a transaction "
            "that its client has begun: `charge` (it is charged and runs), or `block` (blocked or "
            "delayed as outside). Every statement is charged; a limit of 0 always blocks.",
            one_of(InTransaction), InTransaction.CHARGE, field="in_transaction", kind="choice",
            choices=_choices(InTransaction), write=_value,
        ),
        _thousandths(
            "max_delay_s", "max_delay_ms", "A statement that will fit within this time waits for "
            "it instead of being blocked.", kind="seconds", high=10, unit="s", default=0,
        ),
        _thousandths(
            "penalty_s", "penalty_ms", "A blocked session gets its error after this time, so "
            "that one that tries again at once costs little. Never inside a transaction.",
            kind="seconds", high=1, unit="s", default=50,
        ),
        _whole(
            "max_delayed", "How many sessions it may delay at once, by delay or penalty; the next "
            "one gets its error at once.", MAX_DELAYED, default=100, unit="sessions",
        ),
        _whole("epoch", "Raise it to clear the budget's debt.", MAX_EPOCH, default=0),
        LimitSetting(
            "expires_at", "When it ends automatically: a date and time with zone (RFC 3339), "
            "or Unix seconds.", _optional(parse_instant_ms), field="expires_at_ms", kind="time",
            shown_default="never", write=instant_text,
        ),
        LimitSetting(
            "comment", f"Why it is there, for those who find it: up to {MAX_COMMENT_CHARS} "
            "characters.", _comment, "", field="comment", kind="text",
        ),
    )
}  # fmt: skip
"""In the order in which they are written."""

_STRINGS = {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True}
BUDGET_RULE_SETTINGS = table(
    (
        Setting(
            "match",
            f"Up to {MAX_CONDITIONS} keys and their values, all of which must be so.",
            Reader(_same, {"type": "object", "maxProperties": MAX_CONDITIONS}),
            shown_default="everything",
        ),
        Setting(
            "each",
            f"Up to {MAX_EACHES} keys: a bucket for each combination of their values.",
            Reader(_same, {**_STRINGS, "maxItems": MAX_EACHES}),
            shown_default="one bucket",
        ),
    )
)

POLICY_SETTINGS = table(
    (
        Setting(
            "health_unknown",
            'What a budget with `when = "unhealthy"` takes an unknown health for: `healthy` (it '
            "does not apply) or `unhealthy` (it applies).",
            one_of(UnknownHealth),
            UnknownHealth.HEALTHY,
        ),
        Setting(
            "exempt_usernames",
            f"Users that no rule matches, up to {MAX_EXEMPT}.",
            Reader(_same, {**_STRINGS, "maxItems": MAX_EXEMPT}),
            default=(),
            shown_default="nobody",
        ),
    )
)


def budget_schema(more: Table | None = None, required: Iterable[str] = ()) -> dict[str, Any]:
    """Of one budget, as a document has it."""
    schema = settings_schema({**BUDGET_SETTINGS, **(more or {})}, required=required)
    rules = {"type": "array", "items": settings_schema(BUDGET_RULE_SETTINGS), "maxItems": MAX_RULES}
    schema["properties"]["rules"] = rules
    return {**schema, "not": {"required": ["concurrency", "max_workers"]}}


def policy_schema() -> dict[str, Any]:
    """Of a whole policy, as a file has it."""
    budgets = {"type": "array", "items": budget_schema(required=["name"]), "maxItems": MAX_BUDGETS}
    return {
        "type": "object",
        "properties": {"policy": settings_schema(POLICY_SETTINGS), "budgets": budgets},
        "additionalProperties": False,
    }


KEY_MEANINGS = {
    "username": "The user that the session runs as.",
    "database": "The database it is connected to.",
    "application_name": "As the client has set it; anybody may claim any name.",
    "remote_address": "The client's address, as a CIDR prefix such as `10.0.0.0/8`; of the rules "
    "that match, those with the longest prefix apply. A Unix socket has none.",
    "query": "The server's own query id, as a number or a string. It differs between servers "
    "and versions.",
    "fingerprint": "Of the statement's text without its literals, 16 hexadecimal digits: the "
    "same on every server. For accidents; another text does the same work. To enforce a limit, "
    "name a user or an address.",
    "tag.NAME": "A SQLCommenter tag of the statement, such as `tag.controller`.",
}
