"""What is set for a fleet as a file, TOML or JSON, and back.

text ──read_document──► document ──parse_file──► FleetFile ──► ChangeBook.apply
Items ──written_file──► document ──to_toml / to_json──► text

    [[rules]]
    id = "etl-slow"
    reach = "shard:commerce/*"
    target = "etl"
    ratio = 0.9
    expires_at = "2026-11-16T18:00:00Z"

    [[budgets]]
    name = "etl-cap"
    reach = "fleet"
    mode = "warn"
    rate = 20

What was exported and is applied again changes nothing.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from headgate.core.fleet import Item, ItemKind
from headgate.core.fleet_change import BOOKKEEPING, budget_id
from headgate.core.reach import EVERYWHERE, Reach, parse_reach
from headgate.core.settings import unknown
from headgate.errors import Fault, InvalidSettings

MAX_ENTRIES = 20_000
MAX_FAULTS = 200
"""Then it stops looking: ten thousand rules with one typing error each are one mistake."""
SECTIONS = ("rules", "budgets")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One rule or budget of a file; whether its settings are any is not judged yet."""

    kind: ItemKind
    id: str
    reach: Reach
    raw: Mapping[str, Any]
    """Without `reach` and, of a rule, `pair`."""
    place: str
    """Such as `rules[2]`."""
    pair: str = ""


@dataclass(frozen=True, slots=True)
class FleetFile:
    rules: tuple[FileEntry, ...] = ()
    budgets: tuple[FileEntry, ...] = ()


# --- reading -------------------------------------------------------------------------------


def read_document(text: str, *, is_json: bool = False) -> Mapping[str, Any]:
    """As JSON can hold it, also where TOML's own dates stood in it."""
    try:
        document = json.loads(text) if is_json else tomllib.loads(text)
    except RecursionError:
        raise InvalidSettings([Fault("", "is nested too deeply to be read")]) from None
    except ValueError as error:  # Both libraries' own are such.
        raise InvalidSettings([Fault("", f"cannot be read: {error}")]) from None
    if not isinstance(document, Mapping):
        raise InvalidSettings([Fault("", _NO_FILE)])
    return {key: _plain(value) for key, value in document.items()}


_NO_FILE = "must be a table with `rules` and `budgets`"


@runtime_checkable
class _Dated(Protocol):
    """As tomllib gives dates; this ring knows none of its own."""

    def isoformat(self) -> str: ...


def _plain(value: Any) -> Any:
    """A date without its zone becomes a text that is refused where it is read."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, _Dated) else value


def parse_file(document: object) -> FleetFile:
    """InvalidSettings with all that is wrong with its shape."""
    if not isinstance(document, Mapping):
        raise InvalidSettings([Fault("", _NO_FILE)])
    faults = [
        Fault(str(key), unknown(str(key), SECTIONS)) for key in document if key not in SECTIONS
    ]
    rules = list(_entries(document.get("rules", ()), ItemKind.RULE, faults))
    budgets = list(_entries(document.get("budgets", ()), ItemKind.BUDGET, faults))
    faults += [*_repeated(rules), *_repeated(budgets), *_half_pairs(rules)]
    if faults:
        raise InvalidSettings(faults[:MAX_FAULTS])
    return FleetFile(tuple(rules), tuple(budgets))


def _entries(raw: object, kind: ItemKind, faults: list[Fault]) -> Iterator[FileEntry]:
    section = f"{kind}s"
    if not isinstance(raw, list | tuple):
        faults.append(Fault(section, f"must be a list of tables: [[{section}]]"))
        return
    if len(raw) > MAX_ENTRIES:
        faults.append(Fault(section, f"has {len(raw):,} entries, at most {MAX_ENTRIES:,}"))
        return
    for index, one in enumerate(raw):
        try:
            yield _entry(one, kind, f"{section}[{index}]")
        except InvalidSettings as error:
            faults += error.faults
        if len(faults) > MAX_FAULTS:
            return


def _entry(raw: object, kind: ItemKind, place: str) -> FileEntry:
    if not isinstance(raw, Mapping):
        raise InvalidSettings([Fault(place, "must be a table of settings")])
    reach, faults = _reach(raw, place)
    given, known_by = dict(raw), "id" if kind is ItemKind.RULE else "name"
    given.pop("reach", None)
    pair = given.pop("pair", "") if kind is ItemKind.RULE else ""
    if not isinstance(given.get(known_by), str):
        faults.append(Fault(f"{place}.{known_by}", _UNNAMED[kind]))
    if not isinstance(pair, str):
        faults.append(Fault(f"{place}.pair", "must be the id of the rule it was set together with"))
    if faults:
        raise InvalidSettings(faults)
    name = given[known_by]
    return FileEntry(kind, name if kind is ItemKind.RULE else budget_id(name, reach), reach, given,
                     place, pair)  # fmt: skip


_UNNAMED = {
    ItemKind.RULE: "is missing: a file's rules are known by their ids, so that to apply it once "
    'more changes nothing; any name will do, such as "nightly-etl"',
    ItemKind.BUDGET: "is missing: a budget is known by its name",
}


def _reach(raw: Mapping[str, Any], place: str) -> tuple[Reach, list[Fault]]:
    if "reach" not in raw:
        message = 'is missing: say how far it reaches, such as "fleet" or "shard:commerce/*"'
        return EVERYWHERE, [Fault(f"{place}.reach", message)]
    try:
        return parse_reach(raw["reach"]), []
    except ValueError as error:
        return EVERYWHERE, [Fault(f"{place}.reach", str(error))]


def _repeated(entries: Iterable[FileEntry]) -> Iterator[Fault]:
    first: dict[str, str] = {}
    for entry in entries:
        other = first.setdefault(entry.id, entry.place)
        if other != entry.place:
            yield Fault(entry.place, f"{entry.id!r} is {other} as well: say it once")


def _half_pairs(rules: Iterable[FileEntry]) -> Iterator[Fault]:
    """Set together or not at all (R76)."""
    by_id = {rule.id: rule for rule in rules}
    for rule in by_id.values():
        other = by_id.get(rule.pair)
        if rule.pair and (other is None or other.pair != rule.id or other.reach != rule.reach):
            message = (
                f"is {rule.pair!r}, and no rule of the file with that id and the same reach says "
                f"pair = {rule.id!r}: two that were set together stand and go together"
            )
            yield Fault(f"{rule.place}.pair", message)


# --- writing -------------------------------------------------------------------------------


def written_file(items: Iterable[Item]) -> dict[str, Any]:
    """What stands, as parse_file takes it; by kind, then by id."""
    found = sorted((item for item in items if item.value is not None), key=lambda item: item.id)
    return {
        "rules": [written_entry(item) for item in found if item.kind is ItemKind.RULE],
        "budgets": [written_entry(item) for item in found if item.kind is ItemKind.BUDGET],
    }


def written_entry(item: Item) -> dict[str, Any]:
    """As a file has it: who set it when is for the history."""
    said = {key: one for key, one in (item.value or {}).items() if key not in BOOKKEEPING}
    if item.kind is ItemKind.BUDGET:
        return {"name": said.pop("name", ""), "reach": str(item.reach), **said}
    return {"id": item.id, "reach": str(item.reach), **said}


def to_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def to_toml(document: Mapping[str, Any], head: Iterable[str] = ()) -> str:
    """`head` is written as comments."""
    lines = [f"# {line}" for line in head]
    for rule in document.get("rules", ()):
        lines += ["", "[[rules]]", *_settings(rule)]
    for budget in document.get("budgets", ()):
        own = {key: value for key, value in budget.items() if key != "rules"}
        lines += ["", "[[budgets]]", *_settings(own)]
        for rule in budget.get("rules", ()):
            lines += ["", "[[budgets.rules]]", *_settings(rule)]
    return "\n".join(lines).lstrip("\n") + "\n"


def _settings(table: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_toml(value)}" for key, value in table.items())


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_toml(one)}" for key, one in value.items())
        return "{ " + inner + " }" if inner else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # JSON's numbers, booleans and strings are TOML's, but for DEL and characters beyond 16 bits,
    # which JSON escapes in a way that TOML refuses: they are written as they are.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else _toml(key)
