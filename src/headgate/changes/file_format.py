"""What is set in a log as a file, TOML or JSON, and back.

text ──read_document──► document ──parse_file──► ChangeFile ──► ChangeBook.apply
items ──changes/files.py──► document ──to_toml, to_json──► text

    [[rules]]
    id = "etl-slow"
    reach = "shard:commerce/*"
    target = "etl"
    ratio = 0.9
    expires_at = "2026-11-16T18:00:00Z"

    [[metrics]]
    database = "main"
    metric = "lag"
    threshold = "10s"
    expires_at = "never"

An export that is applied again changes nothing.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from headgate.base.declared import unknown
from headgate.changes.model import ChangeKind
from headgate.changes.reach import EVERYWHERE, HERE, Level, Reach, parse_reach
from headgate.changes.state import budget_id
from headgate.errors import Fault, InvalidSettings

MAX_ENTRIES = 20_000
MAX_FAULTS = 200
"""Then it stops looking: ten thousand rules with the same typing error are one mistake."""
SECTIONS: Mapping[str, ChangeKind] = MappingProxyType(
    {
        "rules": ChangeKind.RULE,
        "budgets": ChangeKind.BUDGET,
        "policies": ChangeKind.POLICY,
        "metrics": ChangeKind.METRIC,
        "peers": ChangeKind.PEER,
        "skips": ChangeKind.SKIP,
        "handovers": ChangeKind.HANDOVER,
    }
)
"""In the order in which they are validated: a skip may be of a peer of the same file, and a policy
says which of its budgets lie on one that reaches further."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One change of a file. Its room has yet to validate the settings."""

    kind: ChangeKind
    id: str
    reach: Reach
    raw: Mapping[str, Any]
    """Without `reach` and, of a rule, `pair`."""
    place: str
    """Such as `rules[2]`."""
    pair: str = ""


@dataclass(frozen=True, slots=True)
class ChangeFile:
    entries: tuple[FileEntry, ...] = ()
    faults: tuple[Fault, ...] = ()
    """What is wrong with its shape: shown with what the rooms find in the entries."""

    def of(self, kind: ChangeKind) -> list[FileEntry]:
        return [entry for entry in self.entries if entry.kind is kind]


# --- reading -------------------------------------------------------------------------------


def read_document(text: str, *, is_json: bool = False) -> Mapping[str, Any]:
    """As JSON can hold it, also if it had TOML's own dates."""
    try:
        document = json.loads(text) if is_json else tomllib.loads(text)
    except RecursionError:
        raise InvalidSettings([Fault("", "is nested too deeply to be read")]) from None
    except ValueError as error:  # Both libraries' own are such.
        raise InvalidSettings([Fault("", f"cannot be read: {error}")]) from None
    if not isinstance(document, Mapping):
        raise InvalidSettings([Fault("", _NO_FILE)])
    return {key: _plain(value) for key, value in document.items()}


_NO_FILE = f"must be a table with some of {', '.join(SECTIONS)}"


@runtime_checkable
class _Dated(Protocol):
    """As tomllib gives dates; this ring knows none of its own."""

    def isoformat(self) -> str: ...


def _plain(value: Any) -> Any:
    """A date without its zone becomes a text that is rejected where it is read."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, _Dated) else value


def parse_file(
    document: object, *, default_reach: Reach | None = None, host: str = ""
) -> ChangeFile:
    """`default_reach`: of an entry that says none; None: each has to say it. `host`: the agent's
    name, by which HERE is meant."""
    if not isinstance(document, Mapping):
        return ChangeFile(faults=(Fault("", _NO_FILE),))
    faults = [
        Fault(str(key), unknown(str(key), SECTIONS)) for key in document if key not in SECTIONS
    ]
    reading = _FileContext(default_reach, Reach(Level.HOST, host) if host else HERE, faults)
    entries: list[FileEntry] = []
    for section, kind in SECTIONS.items():
        found = list(reading.entries(document.get(section, ()), section, kind))
        faults += _repeated(found, by_reach=default_reach is not None)
        entries += found
    faults += _half_pairs(entry for entry in entries if entry.kind is ChangeKind.RULE)
    return ChangeFile(tuple(entries), tuple(faults[:MAX_FAULTS]))


@dataclass(frozen=True, slots=True)
class _FileContext:
    default_reach: Reach | None
    host: Reach
    """What HERE is called by its name."""
    faults: list[Fault]

    def entries(self, raw: object, section: str, kind: ChangeKind) -> Iterator[FileEntry]:
        if not isinstance(raw, list | tuple):
            self.faults.append(Fault(section, f"must be a list of tables: [[{section}]]"))
            return
        if len(raw) > MAX_ENTRIES:
            message = f"has {len(raw):,} entries, at most {MAX_ENTRIES:,}"
            self.faults.append(Fault(section, message))
            return
        for index, one in enumerate(raw):
            try:
                yield self._entry(one, kind, f"{section}[{index}]")
            except InvalidSettings as error:
                self.faults.extend(error.faults)
            if len(self.faults) > MAX_FAULTS:
                return

    def _entry(self, raw: object, kind: ChangeKind, place: str) -> FileEntry:
        if not isinstance(raw, Mapping):
            raise InvalidSettings([Fault(place, "must be a table of settings")])
        reach, faults = self._reach(raw, place)
        given = {key: value for key, value in raw.items() if key != "reach"}
        pair = given.pop("pair", "") if kind is ChangeKind.RULE else ""
        names = known_by(kind, reach)
        for name in names:
            if not isinstance(given.get(name), str) or not given[name]:
                faults.append(Fault(f"{place}.{name}", _UNNAMED[kind, name]))
        if not isinstance(pair, str):
            message = "must be the id of the rule it was set together with"
            faults.append(Fault(f"{place}.pair", message))
        if faults:
            raise InvalidSettings(faults)
        item_id = _id(kind, reach, [given[name] for name in names])
        return FileEntry(kind, item_id, reach, given, place, pair)

    def _reach(self, raw: Mapping[str, Any], place: str) -> tuple[Reach, list[Fault]]:
        if "reach" not in raw:
            if self.default_reach is not None:
                return self.default_reach, []
            message = 'is missing: give its reach, such as "fleet" or "shard:commerce/*"'
            return EVERYWHERE, [Fault(f"{place}.reach", message)]
        try:
            reach = parse_reach(raw["reach"])
        except ValueError as error:
            return EVERYWHERE, [Fault(f"{place}.reach", str(error))]
        return (HERE if reach == self.host else reach), []


def known_by(kind: str, reach: Reach) -> Sequence[str]:
    """The settings that name one: to apply a file once more changes nothing."""
    if kind == ChangeKind.BUDGET:
        return ("database", "name") if reach == HERE else ("name",)
    return _KNOWN_BY[kind]


_KNOWN_BY: Mapping[str, Sequence[str]] = {
    ChangeKind.RULE: ("id",),
    ChangeKind.METRIC: ("database", "metric"),
    ChangeKind.PEER: ("shard", "member"),
    ChangeKind.SKIP: ("shard", "member"),
    ChangeKind.POLICY: ("database",),
    ChangeKind.HANDOVER: ("shard",),
}
_UNNAMED = {
    (
        ChangeKind.RULE,
        "id",
    ): "is missing: rules of a file have ids, so that applying it "
    'again changes nothing; any name will do, such as "nightly-etl"',
    (ChangeKind.BUDGET, "name"): "is missing: a budget needs a name",
    (ChangeKind.BUDGET, "database"): "is missing: a budget of one agent belongs to a database",
    (ChangeKind.METRIC, "database"): "is missing: a metric belongs to a database",
    (ChangeKind.METRIC, "metric"): "is missing: give the metric, such as lag",
    (ChangeKind.PEER, "shard"): "is missing: a peer is a member of a shard",
    (ChangeKind.PEER, "member"): "is missing: a peer needs its member's name",
    (ChangeKind.SKIP, "shard"): "is missing: a skip is of a member of a shard",
    (ChangeKind.SKIP, "member"): "is missing: give the member to skip",
    (ChangeKind.POLICY, "database"): "is missing: a policy is one database's",
    (ChangeKind.HANDOVER, "shard"): "is missing: a handover is of a shard",
}


def _id(kind: ChangeKind, reach: Reach, names: Sequence[str]) -> str:
    """As its room calls it; what reaches beyond one agent is known by its reach as well."""
    if kind is ChangeKind.BUDGET and reach != HERE:
        return budget_id(names[0], reach)
    if kind in (ChangeKind.METRIC, ChangeKind.POLICY) and reach != HERE:
        return f"{'/'.join(names)}@{reach}"
    return (" " if kind in (ChangeKind.PEER, ChangeKind.SKIP) else "/").join(names)


def _repeated(entries: Iterable[FileEntry], *, by_reach: bool) -> Iterator[Fault]:
    """`by_reach`: an agent and its shard may each have one of the same id."""
    first: dict[tuple[str, str], str] = {}
    for entry in entries:
        reach = str(entry.reach) if by_reach else ""
        other = first.setdefault((entry.id, reach), entry.place)
        if other != entry.place:
            yield Fault(entry.place, f"{entry.id!r} is {other} as well: give it once")


def _half_pairs(rules: Iterable[FileEntry]) -> Iterator[Fault]:
    """Both rules of a pair are set, or none."""
    known = {(rule.id, rule.reach): rule for rule in rules}
    for rule in known.values():
        other = known.get((rule.pair, rule.reach))
        if rule.pair and (other is None or other.pair != rule.id):
            message = (
                f"is {rule.pair!r}, but no rule of the file with that id and the same reach has "
                f"pair = {rule.id!r}: both rules of a pair are set and removed together"
            )
            yield Fault(f"{rule.place}.pair", message)


# --- writing -------------------------------------------------------------------------------


def to_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def to_toml(document: Mapping[str, Any], head: Iterable[str] = ()) -> str:
    """`head` is written as comments."""
    lines = [f"# {line}" for line in head]
    for section, kind in SECTIONS.items():
        for entry in document.get(section, ()):
            below = entry.get("rules", ()) if kind is ChangeKind.BUDGET else ()
            own = {key: value for key, value in entry.items() if not below or key != "rules"}
            lines += ["", f"[[{section}]]", *_settings(own)]
            for rule in below:
                lines += ["", f"[[{section}.rules]]", *_settings(rule)]
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
    # which JSON escapes in a way that TOML rejects: they are written as they are.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else _toml(key)
