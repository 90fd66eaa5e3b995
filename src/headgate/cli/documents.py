"""The agent's documents as the structs of wire/.   JSON ──read──► StatusDoc, RuleDoc, … ──► pages

A field that this version does not know is ignored; one that it needs and does not find, or
that is of another kind, is named. Nothing missing is shown as 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from headgate.errors import BadDocument

T = TypeVar("T")


def plain(text: str) -> str:
    """Without control characters: a server's message may not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text).strip()


def read(kind: type[T], document: object, place: str = "") -> T:
    """`place`: where the document is in the answer; empty: it is the whole of it."""
    import msgspec

    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _bad(str(error), place) from None


def read_list(kind: type[T], document: Mapping[str, Any], name: str) -> list[T]:
    """The documents under `name`, as the agent's lists have them."""
    if name not in document:
        raise BadDocument(name, "is missing")
    return read(list[kind], document[name], name)  # type: ignore[valid-type]


_MISSING = re.compile(r"Object missing required field `(.*)`")


def _bad(said: str, place: str) -> BadDocument:
    """Of "Expected `float`, got `str` - at `$.databases[0].uptime_s`"."""
    what, _, where = said.partition(" - at `$")
    steps = [place, *re.findall(r"[^.\[\]]+", where.removesuffix("`"))]
    if missing := _MISSING.fullmatch(what):
        return BadDocument(".".join(filter(None, (*steps, missing[1]))), "is missing")
    at = ".".join(filter(None, steps)) or "it"
    return BadDocument(at, f"is not as expected: {what[:1].lower()}{what[1:]}")
