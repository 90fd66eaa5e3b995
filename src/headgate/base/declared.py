"""Settings are declared once; parsing, lint, `--help`, environment names and the reference derive.

    class PageSettings:
        session_s: Annotated[float, Key("How long a sign-in lasts.", seconds(60, DAY))] = 43200.0

A struct's field is a row of its table (`table_of`); what has no struct of its own writes the rows
down (`table`). A row reads one value or says what is wrong with it. An unknown key is a fault that
names the nearest known one; every fault of a table is reported, not only the first.
"""

from __future__ import annotations

import calendar
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from datetime import UTC, datetime
from enum import Enum
from typing import (
    Any,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
    get_args,
    get_type_hints,
    runtime_checkable,
)

from headgate.base.units import (
    SECONDS_PATTERN,
    SHARE_PATTERN,
    SIZE_PATTERN,
    Amount,
    duration_text,
    parse_amount,
    parse_bytes,
    parse_seconds,
    parse_share,
)
from headgate.errors import Fault

T = TypeVar("T")
Read = Callable[[object], Any]


@dataclass(frozen=True, slots=True)
class Reader(Generic[T]):
    """Reads a value, or raises ValueError with what it should have been."""

    read: Callable[[object], T]
    schema: Mapping[str, Any]
    """What it takes, as JSON Schema has it."""
    takes: str = ""
    """The same in a few words."""

    def __call__(self, value: object) -> T:
        return self.read(value)


def reads(schema: Mapping[str, Any]) -> Callable[[Callable[[object], T]], Reader[T]]:
    return lambda read: Reader(read, schema)


@dataclass(frozen=True, slots=True)
class Key:
    """What a field of a struct says of itself: `Annotated[TYPE, Key(…)]`."""

    about: str
    read: Read | None = None
    """None: as the type says (a flag, one of an enumeration, a text)."""
    shown_default: str | None = None
    name: str = ""
    """In the file, where it is not the field's."""
    missing: str = ""
    """What to do about a key that is required and not there."""


class Flat:
    """Of a field that is a struct itself: `Annotated[TlsTerms, Flat()]` has its keys here."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A row: one key of a table."""

    name: str
    about: str
    read: Read
    """Returns the value, or raises ValueError with what it should have been."""
    default: Any = None
    shown_default: str | None = None
    attribute: str = ""
    """Of the struct that it is a field of; `tls.mode` is one of a struct within."""
    missing: str | None = None
    """None: it may be left out."""

    @property
    def takes(self) -> str:
        """What may be given, for people; empty where the meaning says it."""
        if self.read is flag:
            return "true or false"
        return self.read.takes if isinstance(self.read, Reader) else ""

    @property
    def default_text(self) -> str:
        if self.shown_default is not None:
            return self.shown_default
        if self.default is None or self.default in ((), {}):
            return ""
        if isinstance(self.default, Enum):
            return str(self.default.value)
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if not isinstance(self.default, float):
            return str(self.default)
        in_seconds = self.default and self.name.endswith("_s") and not self.name.endswith("per_s")
        return duration_text(self.default) if in_seconds else f"{self.default:.10g}"

    @property
    def schema(self) -> dict[str, Any]:
        """As JSON Schema has it, as far as the reader says."""
        read = self.read
        return {**(read.schema if isinstance(read, Reader) else {}), "description": self.about}


Table = Mapping[str, Setting]


def settings_schema(
    rows: Table, *, nullable: bool = False, required: Iterable[str] = ()
) -> dict[str, Any]:
    """Of an object of settings. `nullable`: null is the same as leaving one out."""
    needed = [*required]
    properties = {
        name: {"anyOf": [row.schema, {"type": "null"}]}
        if nullable and name not in needed
        else row.schema
        for name, row in rows.items()
    }
    found = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": needed} if needed else found


def table(rows: Iterable[Setting]) -> Table:
    return {row.name: row for row in rows}


def table_of(struct: type) -> Table:
    """The rows of a struct, in the order of its fields."""
    rows: list[Setting] = []
    for name, kind, note, default in _noted_fields(struct):
        if isinstance(note, Flat):
            rows += [
                replace(row, attribute=f"{name}.{row.attribute}") for row in table_of(kind).values()
            ]
            continue
        is_required = default is MISSING
        row = Setting(
            note.name or name,
            note.about,
            note.read or _reader_of(kind),
            None if is_required else default,
            "required" if is_required else note.shown_default,
            attribute=name,
            missing=note.missing if is_required else None,
        )
        rows.append(row)
    return table(rows)


class _Noted(NamedTuple):
    name: str
    kind: Any
    note: Key | Flat
    default: Any


def _noted_fields(struct: Any) -> tuple[_Noted, ...]:
    """The rest of a struct is not for the file to say."""
    if struct not in _NOTED:
        _NOTED[struct] = tuple(_noted(struct))
    return _NOTED[struct]


_NOTED: dict[Any, tuple[_Noted, ...]] = {}


def _noted(struct: Any) -> Iterator[_Noted]:
    hints = get_type_hints(struct, include_extras=True)
    for field in fields(struct):
        kind, *notes = get_args(hints[field.name]) or (None,)
        for note in notes:
            if isinstance(note, Key | Flat):
                factory = field.default_factory
                default = field.default if factory is MISSING else factory()
                yield _Noted(field.name, kind, note, default)


def _reader_of(kind: Any) -> Read:
    """Of a type that says it all; `X | None` is left out or an X."""
    kinds = [one for one in get_args(kind) or (kind,) if one is not type(None)]
    if kinds == [bool]:
        return flag
    if kinds == [str]:
        return text()
    if len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], Enum):
        return one_of(kinds[0])
    raise TypeError(f"{kind} does not say how it is read: give its Key a reader")


@runtime_checkable
class SelfValidating(Protocol):
    """A struct that knows what only several of its fields together tell."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """Key and message."""
        ...


def read_struct(
    raw: object,
    struct: type[T],
    *,
    place: str,
    sections: frozenset[str] = frozenset(),
    **others: Any,
) -> tuple[T | None, list[Fault]]:
    """A table of the file as its struct, and everything wrong with it; None if a value is wrong. A
    key that nobody knows leaves the others readable.

    `sections` are keys that other readers take, `others` fields that are no settings.
    """
    rows = table_of(struct)
    values, faults = read_table(raw, rows, place=place, sections=sections)
    given = raw if isinstance(raw, Mapping) else {}
    strangers = given.keys() - rows.keys() - sections
    absent = [row for row in rows.values() if row.missing is not None and row.name not in given]
    if not strangers and isinstance(raw, Mapping):
        # Else the one that is missing is probably the one that is misspelled.
        faults += [
            Fault(f"{place}.{row.name}", f"is missing{row.missing and f': {row.missing}'}")
            for row in absent
        ]
    if absent or len(faults) > len(strangers):
        return None, faults
    read = {row.attribute: values[name] for name, row in rows.items() if name in given}
    made = _built(struct, read, others)
    if not strangers:
        faults += [Fault(f"{place}.{key}", message) for key, message in _judged(made)]
    return made, faults


def _built(struct: type[T], read: Mapping[str, Any], others: Mapping[str, Any]) -> T:
    given = {**others, **{name: value for name, value in read.items() if "." not in name}}
    for name, kind, note, _ in _noted_fields(struct):
        if isinstance(note, Flat):
            inner = f"{name}."
            of_it = {n.removeprefix(inner): v for n, v in read.items() if n.startswith(inner)}
            given[name] = _built(kind, of_it, {})
    return struct(**given)


def _judged(made: object) -> Iterator[tuple[str, str]]:
    if isinstance(made, SelfValidating):
        yield from made.faults()
    for name, _, note, _ in _noted_fields(type(made)):
        if isinstance(note, Flat):
            yield from _judged(getattr(made, name))


def read_table(
    raw: object, rows: Table, *, place: str, sections: frozenset[str] = frozenset()
) -> tuple[dict[str, Any], list[Fault]]:
    """The values of `raw` by `rows` (defaults filled in), and everything wrong with it."""
    if not isinstance(raw, Mapping):
        return {}, [Fault(place, f"must be a table of settings, not {_kind(raw)}")]
    values: dict[str, Any] = {name: row.default for name, row in rows.items()}
    faults: list[Fault] = []
    for key, value in raw.items():
        if key in sections:
            continue
        row = rows.get(key)
        if row is None:
            faults.append(Fault(f"{place}.{key}", unknown(key, [*rows, *sections])))
            continue
        try:
            values[key] = row.read(value)
        except ValueError as error:
            faults.append(Fault(f"{place}.{key}", str(error)))
    return values, faults


def unknown(key: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(key, known, n=1)
    near = near or [name for name in known if name in key.split("_")]
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"
    return f"unknown setting {key!r}{hint}"


# --- readers -------------------------------------------------------------------------------


def text(max_chars: int = 1024) -> Reader[str]:
    @reads({"type": "string", "maxLength": max_chars})
    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be a string, not {_kind(value)}")
        if len(value) > max_chars:
            raise ValueError(f"has {len(value)} characters, at most {max_chars}")
        return value

    return read


_LINK = r"https?://[!-~]+"


def link(max_chars: int = 500) -> Reader[str]:
    """Of a page for people; or empty."""

    @reads({"type": "string", "maxLength": max_chars, "pattern": f"^({_LINK})?$"})
    def read(value: object) -> str:
        given = text(max_chars)(value).strip()
        if given and not re.fullmatch(_LINK, given):
            raise ValueError(f"is {given!r}, must be a link: https://…")
        return given

    return read


@reads({"type": "boolean"})
def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_kind(value)}")
    return value


def number(low: float, high: float, *, above_low: bool = False) -> Reader[float]:
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"must be a number, not {_kind(value)}")
        if math.isnan(value):
            raise ValueError("is NaN, which is no number to compare with")
        if not low <= value <= high or (above_low and value == low):
            span = f"{'more than' if above_low else 'at least'} {low:g} and at most {high:g}"
            raise ValueError(f"is {value:g}, must be {span}")
        return float(value)

    least = "exclusiveMinimum" if above_low else "minimum"
    schema = {"type": "number", least: low, "maximum": high}
    return Reader(read, schema, _span(low, high))


def or_text(schema: Mapping[str, Any], *patterns: str) -> dict[str, Any]:
    """Also as a text with a unit."""
    return {"anyOf": [schema, *({"type": "string", "pattern": one} for one in patterns)]}


def _span(low: float, high: float) -> str:
    return f"{low:g}–{high:g}" if high < 1e9 else f"{low:g} or more"


def seconds(low: float, high: float, *, above_low: bool = False) -> Reader[float]:
    """A number, where the key ends in `_s`, or a text with its unit: `250ms`, `1h30m`."""
    within = number(low, high, above_low=above_low)

    def read(value: object) -> float:
        given = parse_seconds(value) if isinstance(value, str) else value
        try:
            return within(given)
        except ValueError:
            if isinstance(given, bool) or not isinstance(given, int | float) or given != given:
                raise
            least = f"{'more than' if above_low else 'at least'} {duration_text(low)}"
            span = f"{least} and at most {duration_text(high)}"
            written = repr(value) if isinstance(value, str) else f"{given:g} s"
            raise ValueError(f"is {written}, must be {span}") from None

    span = f"{duration_text(low) if low else 0}–{duration_text(high)}"
    return Reader(read, or_text(within.schema, SECONDS_PATTERN), span if high < 1e9 else "a time")


def share(low: float, high: float) -> Reader[float]:
    """A part of 1, or a text in percent: 0.05, `5%`."""
    within = number(low, high)

    def read(value: Any) -> float:
        if isinstance(value, str):
            return _of_text(within, parse_share(value), value)
        too_much = isinstance(value, int | float) and value > max(1.9, high)
        if too_much and low <= value / 100 <= high:
            meant = f'1 is all of it; did you mean "{value:g}%"?'
            raise ValueError(f"is {value:g}, must be at most {high:g}: {meant}")
        return within(value)

    return Reader(read, or_text(within.schema, SHARE_PATTERN), _span(low, high))


def _of_text(within: Reader[float], given: float, written: str) -> float:
    """A fault shows what was written."""
    try:
        return within(given)
    except ValueError as error:
        raise ValueError(str(error).replace(f"is {given:g}", f"is {written!r}", 1)) from None


def amount(low: float, high: float, *, above_low: bool = False) -> Reader[Any]:
    """A number, or a text with a unit; `in_unit` makes it one of the metric's unit."""
    within = number(low, high, above_low=above_low)

    def read(value: object) -> float | Amount:
        if not isinstance(value, str):
            return within(value)
        given = parse_amount(value)
        _of_text(within, given.value, value)
        return given

    schema = or_text(within.schema, SECONDS_PATTERN, SHARE_PATTERN, SIZE_PATTERN)
    return Reader(read, schema, "a number, or a text with a unit")


def size(low: int, high: int, unit: int = 1) -> Reader[int]:
    """In bytes: of a number in the unit that the key's name says, or of a text such as `4 GiB`."""
    within, anything = whole(low, high), whole(0, 1 << 60)

    def read(value: object) -> int:
        is_text = isinstance(value, str)
        given = parse_bytes(value) if isinstance(value, str) else anything(value) * unit
        if low * unit <= given <= high * unit:
            return given
        span = f"from {size_text(low * unit)} to {size_text(high * unit)}"
        said = repr(value) if is_text else size_text(given)
        readings = {f'"{value} {name}"': given // unit * 1024**n for n, name in _BINARY.items()}
        fitting = [text for text, one in readings.items() if low * unit <= one <= high * unit]
        meant = f": did you mean {' or '.join(fitting)}?" if fitting and not is_text else ""
        raise ValueError(f"is {said}, must be {span}{meant}")

    schema = or_text(within.schema, SIZE_PATTERN)
    return Reader(read, schema, f"{size_text(low * unit)}–{size_text(high * unit)}")


_BINARY = {4: "TiB", 3: "GiB", 2: "MiB", 1: "KiB"}


def size_text(amount: int) -> str:
    for power, unit in _BINARY.items():
        if amount and amount % 1024**power == 0:
            return f"{amount // 1024**power} {unit}"
    return f"{amount} B"


def whole(low: int, high: int) -> Reader[int]:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"is {value}, must be from {low} to {high}")
        return value

    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Reader(read, schema, f"{low:,}–{high:,}")


def one_of(kind: type[Enum], *allowed: Enum) -> Reader[Any]:
    """A member by its value; where some are `allowed`, of these."""
    choices = {member.value: member for member in allowed or kind}

    def read(value: object) -> Enum:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise ValueError(f"is {value!r}, must be one of {', '.join(map(repr, choices))}")

    return Reader(read, {"enum": [*choices]}, ", ".join(f"`{choice}`" for choice in choices))


def names(max_items: int = 64) -> Reader[tuple[str, ...]]:
    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise ValueError("must be a list of strings")
        if len(value) > max_items:
            raise ValueError(f"has {len(value)} entries, at most {max_items}")
        return tuple(value)

    schema = {"type": "array", "items": {"type": "string"}, "maxItems": max_items}
    return Reader(read, schema, "a list of texts")


@reads({"type": "object"})
def mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"must be a table, not {_kind(value)}")
    return dict(value)


def _kind(value: object) -> str:
    known: dict[type, str] = {
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a table",
        type(None): "null",
    }
    return known.get(type(value), type(value).__name__)


# --- how long, and until when ----------------------------------------------------------------

_DATE_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(\.\d{1,9})?)?(Z|z|[+-]\d\d:\d\d)",
    re.ASCII,
)
_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?"
_ZONE = "([Zz]|[+-][0-9]{2}:[0-9]{2})"
_SECONDS = {"type": "number", "exclusiveMinimum": 0, "maximum": 1e12}


@reads({"type": "string", "pattern": SECONDS_PATTERN})
def parse_for(value: object) -> float:
    """`90s`, `30m`, `1h30m`, `7d`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"is {value:g}, which has no unit: {value:g}s or {value:g}m?")
    return seconds(0, 1e12, above_low=True)(text()(value))


@reads(
    {
        "anyOf": [
            {
                "type": "string",
                "pattern": f"^{_DATE}[Tt ]{_CLOCK}([Zz]|[+-][0-9]{{2}}:[0-9]{{2}})$",
            },
            _SECONDS,
        ]
    }
)
def parse_date_time(value: object) -> float:
    """RFC 3339 text, or wall-clock seconds; a time without a zone could be anybody's."""
    if not isinstance(value, str):
        return number(0, 1e12, above_low=True)(value)
    match = _DATE_TIME.fullmatch(value)
    if match is None:
        raise ValueError(f"is {value!r}, must read like 2024-05-17T16:00:00Z or …+02:00")
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    valid = year and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]
    if not valid or hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"is {value!r}, which is not a valid date and time")
    utc_s = calendar.timegm((year, month, day, hour, minute, second))
    zone, east_s = match[8], 0.0
    if zone not in "Zz":
        east_s = float(f"{zone[0]}1") * 60 * (int(zone[1:3]) * 60 + int(zone[4:6]))
    return utc_s + float(match[7] or 0) - east_s


FAR_WALL_S = 253_402_300_799.0
"""The last second of the year 9999; there are no later dates."""


def iso(wall_s: float) -> str:
    """As `parse_date_time` reads it."""
    at = datetime.fromtimestamp(max(0.0, min(wall_s, FAR_WALL_S)), tz=UTC)
    return at.isoformat().replace("+00:00", "Z")
