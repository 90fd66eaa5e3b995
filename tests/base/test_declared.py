"""A struct is the one declaration of its keys: table, faults and values derive from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from headgate.base.declared import Flat, Key, read_struct, seconds, table_of, text


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Tls:
    mode: Annotated[str, Key("Mode.", text(8), name="tls")] = "off"
    ca: Annotated[str, Key("Authority.", name="tls_ca")] = ""

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.mode == "on" and not self.ca:
            yield "tls_ca", "is missing: tls needs it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    name: str
    url: Annotated[str, Key("Where.", missing="say where it is")]
    color: Annotated[Color | None, Key("Which.")] = None
    wait_s: Annotated[float, Key("How long.", seconds(0, 60))] = 0.25
    deep: Annotated[bool, Key("Whether.")] = False
    tls: Annotated[Tls, Flat()]


def told(raw: object) -> list[str]:
    return [str(fault) for fault in read_struct(raw, Thing, place="thing", name="x")[1]]


def test_the_table_of_a_struct() -> None:
    rows = table_of(Thing)
    assert list(rows) == ["url", "color", "wait_s", "deep", "tls", "tls_ca"]
    assert [row.default_text for row in rows.values()] == [
        "required",
        "",
        "250ms",
        "false",
        "off",
        "",
    ]


def test_values_are_read_by_their_types_into_the_struct_and_those_within() -> None:
    raw = {"url": "u", "color": "blue", "wait_s": "2s", "tls": "on", "tls_ca": "c"}
    made, faults = read_struct(raw, Thing, place="thing", name="x")
    assert faults == []
    assert made == Thing(
        name="x", url="u", color=Color.BLUE, wait_s=2.0, deep=False, tls=Tls("on", "c")
    )


def test_every_fault_is_reported_at_once() -> None:
    assert told({"color": "green", "wait_s": "30", "deep": "yes"}) == [
        "thing.color: is 'green', must be one of 'red', 'blue'",
        "thing.wait_s: is 30, which has no unit: 30s or 30m?",
        "thing.deep: must be true or false, not a string",
        "thing.url: is missing: say where it is",
    ]


def test_a_misspelled_key_is_not_reported_as_missing_as_well() -> None:
    assert told({"ulr": "u"}) == ["thing.ulr: unknown setting 'ulr'; did you mean 'url'?"]


def test_faults_of_several_keys_together_are_reported_structs_within_as_well() -> None:
    assert told({"url": "u", "tls": "on"}) == ["thing.tls_ca: is missing: tls needs it"]


def test_no_table() -> None:
    assert told(5) == ["thing: must be a table of settings, not a number"]
