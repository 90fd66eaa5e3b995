"""A settings file as it is read: text ──► TOML ──► structs, with everything that is wrong with it.

The agent and the proxy share this: every fault is reported with its line, nothing is half-applied.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from headgate.base.declared import read_struct, table_of, unknown
from headgate.base.places import with_lines
from headgate.budgets.parse import parse_policy
from headgate.budgets.policy import Policy
from headgate.errors import Fault, InvalidSettings

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_POLICY_FILE_BYTES = 16 * 1024 * 1024
T = TypeVar("T")


class EnvironmentOverride(NamedTuple):
    """What the environment says of a key."""

    variable: str
    value: object


NO_OVERRIDES: Mapping[str, EnvironmentOverride] = MappingProxyType({})


class Document:
    """One file's tables, and the faults that were found while they were read."""

    def __init__(self, tables: Mapping[str, Any], known: Collection[str]) -> None:
        self.tables = tables
        self.faults = [
            Fault(key, unknown(key, sorted(known))) for key in tables.keys() - set(known)
        ]

    def fault(self, place: str, message: str) -> None:
        self.faults.append(Fault(place, message))

    def is_broken(self, section: str) -> bool:
        return any(fault.place.partition(".")[0] == section for fault in self.faults)

    def section(
        self,
        name: str,
        struct: type[T],
        environment: Mapping[str, EnvironmentOverride] = NO_OVERRIDES,
    ) -> T | None:
        """[name], over which the environment goes; of one with faults, what is sound of it. None:
        nothing is. A fault of a value from the environment names the variable, and not a line of
        the file."""
        raw = self.tables.get(name, {})
        if environment and isinstance(raw, Mapping):
            raw = {**raw, **{key: one.value for key, one in environment.items()}}
        made, faults = read_struct(raw, struct, place=name)
        if made is None:
            made, _ = read_struct(without(raw, faults, name), struct, place=name)
        variables = {f"{name}.{key}": one.variable for key, one in environment.items()}
        self.faults += [
            fault._replace(place=variables.get(fault.place, fault.place)) for fault in faults
        ]
        return made

    def read(
        self,
        raw: object,
        struct: type[T],
        place: str,
        sections: frozenset[str] = frozenset(),
        **others: Any,
    ) -> T | None:
        made, faults = read_struct(raw, struct, place=place, sections=sections, **others)
        self.faults += faults
        return made

    def each(
        self, place: str, struct: type[T], most: int, *, raw: object = None
    ) -> Iterator[tuple[int, T]]:
        """Of [[place]], those that are sound, with their numbers."""
        entries = self.tables.get(place, []) if raw is None else raw
        if not isinstance(entries, list):
            self.fault(place, f"must be a list of tables: [[{place}]]")
        elif len(entries) > most:
            self.fault(place, f"has {len(entries)} entries, at most {most}")
        else:
            for index, entry in enumerate(entries):
                if (made := self.read(entry, struct, f"{place}.{index}")) is not None:
                    yield index, made

    def reject_faults(self) -> None:
        if self.faults:
            raise InvalidSettings(list(dict.fromkeys(self.faults)))


def without(raw: object, faults: Sequence[Fault], place: str) -> object:
    """A table without the keys that have faults: of what is left, the parts are built all the
    same, so that what only building them can tell is reported at the same time."""
    wrong = {fault.place.removeprefix(f"{place}.").partition(".")[0] for fault in faults}
    given = raw.items() if isinstance(raw, Mapping) else ()
    return {key: value for key, value in given if key not in wrong}


def environment_name(prefix: str, key: str) -> str:
    return prefix + key.upper()


def from_environment(
    struct: type, prefix: str, environment: Mapping[str, str]
) -> dict[str, EnvironmentOverride]:
    """HEADGATE_LISTEN=… for `listen`. Numbers and booleans are read as TOML would."""
    variables = {name: environment_name(prefix, name) for name in table_of(struct)}
    return {
        name: EnvironmentOverride(variable, _toml_value(environment[variable]))
        for name, variable in variables.items()
        if variable in environment
    }


def _toml_value(raw: str) -> object:
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw
    return value if isinstance(value, bool | int | float) else raw


# --- files ---------------------------------------------------------------------------------


def settings_text(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """What a file says, or InvalidSettings."""
    source = str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidSettings([Fault("", f"cannot be read: {error.strerror}")], source) from None
    if len(content) > most_bytes:
        fault = Fault("", f"has {len(content)} bytes, at most {most_bytes}")
        raise InvalidSettings([fault], source)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidSettings([Fault("", "is not UTF-8 here", line)], source) from None


def first_line(path: Path, place: str, what: str) -> str:
    """Of a file with a secret in it, or InvalidSettings."""
    try:
        return path.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError, UnicodeDecodeError):
        raise InvalidSettings([Fault(place, f"no {what} can be read from {path}")]) from None


def toml_tables(content: str, source: str) -> dict[str, Any]:
    tables: dict[str, Any] = _parsed(content, source, is_json=False)
    return tables


def _parsed(content: str, source: str, *, is_json: bool) -> Any:
    kind = "JSON" if is_json else "TOML"
    try:
        return json.loads(content) if is_json else tomllib.loads(content)
    except ValueError as error:  # Of either kind.
        raise InvalidSettings([Fault("", f"is not {kind}: {error}")], source) from None
    except RecursionError:
        raise InvalidSettings([Fault("", "is nested too deeply")], source) from None


def placed(error: InvalidSettings, content: str, source: str) -> InvalidSettings:
    """With the lines of the file that `content` is of. A fault that has one keeps it."""
    faults = sorted(with_lines(error.faults, content), key=lambda fault: fault.line or 0)
    return InvalidSettings(faults, source)


def load_policy(path: Path) -> Policy:
    """The policy of a file (TOML, or JSON if its name ends so), or InvalidSettings with every
    fault, and in TOML its line."""
    content = settings_text(path, MAX_POLICY_FILE_BYTES)
    return read_policy(content, is_json=path.suffix == ".json", source=str(path))


def read_policy(content: str, *, is_json: bool, source: str = "") -> Policy:
    document = _parsed(content, source, is_json=is_json)
    try:
        return parse_policy(document)
    except InvalidSettings as error:
        faults = error.faults if is_json else with_lines(error.faults, content)
        raise InvalidSettings(faults, source) from None
