"""JSON read strictly, on the standard library alone: the SDK reads it, too.

What is missing, or of another kind, is an error that names its place: a guess would have to
be a yes or a no.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class Malformed(ValueError):
    """Says which field, and what is wrong with it."""


def loads(text: str | bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{len(text)} characters that are not JSON: {error}") from None
    return obj(document, "it")


def _no_number(name: str) -> NoReturn:
    raise Malformed(f"{name} is not a number")


def obj(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{place} is not an object")
    return value


def items(value: Any, place: str, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{place} is not a list")
    if len(value) > most:
        raise Malformed(f"{place} has {len(value)} entries, at most {most}")
    return value


def given(document: Mapping[str, Any], name: str) -> Any:
    try:
        return document[name]
    except KeyError:
        raise Malformed(f"{name!r} is missing") from None


def text(document: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = given(document, name) if default is None else document.get(name, default)
    if not isinstance(value, str):
        raise Malformed(f"{name!r} is not text")
    return value


def flag(document: Mapping[str, Any], name: str, default: bool | None = None) -> bool:
    value = given(document, name) if default is None else document.get(name, default)
    if not isinstance(value, bool):
        raise Malformed(f"{name!r} is neither true nor false")
    return value


def number(document: Mapping[str, Any], name: str, default: float | None = None) -> float:
    return as_number(
        given(document, name) if default is None else document.get(name, default), name
    )


def number_or_none(document: Mapping[str, Any], name: str) -> float | None:
    value = document.get(name)
    return None if value is None else as_number(value, name)


def as_number(value: Any, place: str) -> float:
    # To Python true is a number; to us it is not.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"{place!r} is not a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise Malformed(f"{place!r} is not a finite number")
    return found


def whole(document: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = given(document, name) if default is None else document.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Malformed(f"{name!r} is not a whole number")
    return value


def texts(value: Any, place: str, most: int) -> tuple[str, ...]:
    found = items(value, place, most)
    if not all(isinstance(one, str) for one in found):
        raise Malformed(f"{place} has an entry that is not text")
    return tuple(found)


def one_of(kinds: Callable[[str], T], word: str, place: str) -> T:
    """A word of a closed set; a new one needs a new version."""
    try:
        return kinds(word)
    except ValueError:
        raise Malformed(f"{place} is {word!r}, which this version does not know") from None
