"""Settings are tables: one row a key, from which parsing, `--help` and the reference derive.

A row reads one value or says what is wrong with it. An unknown key is a fault that names
the nearest known one; every fault of a table is reported, not only the first.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from headgate.errors import Fault, InvalidName

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    about: str
    read: Callable[[object], Any]
    """Returns the value, or raises ValueError with what it should have been."""
    default: Any = None
    shown_default: str | None = None

    @property
    def default_text(self) -> str:
        if self.shown_default is not None:
            return self.shown_default
        if self.default in (None, ()):
            return ""
        if isinstance(self.default, Enum):
            return str(self.default.value)
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)

    @property
    def schema(self) -> dict[str, Any]:
        """As JSON Schema has it, as far as the reader says."""
        read = self.read
        return {**(read.schema if isinstance(read, Reader) else {}), "description": self.about}


Table = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Reader(Generic[T]):
    """Reads a value, and says what it takes as JSON Schema has it."""

    read: Callable[[object], T]
    schema: Mapping[str, Any]

    def __call__(self, value: object) -> T:
        return self.read(value)


def reads(schema: Mapping[str, Any]) -> Callable[[Callable[[object], T]], Reader[T]]:
    return lambda read: Reader(read, schema)


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
        except (ValueError, InvalidName) as error:
            faults.append(Fault(f"{place}.{key}", str(error)))
    return values, faults


def unknown(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
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


@reads({"type": "boolean"})
def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_kind(value)}")
    return value


def number(low: float, high: float, *, above_low: bool = False) -> Reader[float]:
    @reads({"type": "number", "exclusiveMinimum" if above_low else "minimum": low, "maximum": high})
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"must be a number, not {_kind(value)}")
        if math.isnan(value):
            raise ValueError("is NaN, which is no number to compare with")
        if not low <= value <= high or (above_low and value == low):
            span = f"{'more than' if above_low else 'at least'} {low:g} and at most {high:g}"
            raise ValueError(f"is {value:g}, must be {span}")
        return float(value)

    return read


def whole(low: int, high: int) -> Reader[int]:
    @reads({"type": "integer", "minimum": low, "maximum": high})
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number, not {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"is {value}, must be from {low} to {high}")
        return value

    return read


def one_of(kind: type[E]) -> Reader[E]:
    choices = {member.value: member for member in kind}

    @reads({"enum": list(choices)})
    def read(value: object) -> E:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise ValueError(f"is {value!r}, must be one of {', '.join(map(repr, choices))}")

    return read


def names(max_items: int = 64) -> Reader[tuple[str, ...]]:
    @reads({"type": "array", "items": {"type": "string"}, "maxItems": max_items})
    def read(value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise ValueError("must be a list of strings")
        if len(value) > max_items:
            raise ValueError(f"has {len(value)} entries, at most {max_items}")
        return tuple(value)

    return read


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
