"""A file of changes: read for `apply` and `diff`, its faults told by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.cli.api import Refused
from headgate.core.change_files import SECTIONS, read_document
from headgate.core.places import with_lines
from headgate.errors import Fault, InvalidSettings

MAX_FILE_BYTES = 16 * 1024 * 1024
"""As much as an agent may be set to take (`max_body_bytes`)."""


TOO_LARGE = 413
_LARGER = "set a larger max_body_bytes in [agent] of that agent's settings, and restart it"


@dataclass(frozen=True, slots=True)
class File:
    path: Path
    text: str
    document: Mapping[str, Any]
    fleet: bool = False
    """For the fleet's log."""

    @property
    def entries(self) -> int:
        listed = (self.document.get(section) for section in SECTIONS)
        return sum(len(some) for some in listed if isinstance(some, list))

    @property
    def is_json(self) -> bool:
        return self.path.suffix == ".json"

    @contextmanager
    def validated(self) -> Iterator[None]:
        """What an agent finds wrong with it is told with the file's name and lines."""
        try:
            yield
        except Refused as error:
            if error.status == TOO_LARGE:
                raise Refused(f"{error}; {_LARGER}", status=error.status) from None
            if not error.faults:
                raise
            faults = [_fault(told) for told in error.faults]
            raise InvalidSettings(self.located(faults), str(self.path)) from None

    def located(self, faults: Sequence[Fault]) -> list[Fault]:
        return list(faults) if self.is_json else with_lines(faults, self.text)


def load(path: Path, *, fleet: bool, database: str | None = None) -> File:
    """InvalidSettings for what is no document; the agent validates what it says. `database`: the
    file is a policy, of that one."""
    try:
        text = _text(path)
        document = read_document(text, is_json=path.suffix == ".json")
        if database is not None:
            document = _of_policy(path, database)
        return File(path, text, document, fleet)
    except InvalidSettings as error:
        raise InvalidSettings(error.faults, str(path)) from None


def _of_policy(path: Path, database: str) -> dict[str, Any]:
    """A policy file as changes: each budget whole."""
    from headgate.settings.document import load_policy
    from headgate.traffic.parse import written

    policy = written(load_policy(path))
    budgets = [{"database": database, "whole": True, **one} for one in policy["budgets"]]
    general = policy.get("policy")
    return {
        "budgets": budgets,
        **({"policies": [{"database": database, **general}]} if general else {}),
    }


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidSettings([Fault("", f"cannot be read: {error.strerror}")]) from None
    if len(content) > MAX_FILE_BYTES:
        message = f"has {len(content):,} bytes, at most {MAX_FILE_BYTES:,} are taken"
        raise InvalidSettings([Fault("", message)])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidSettings([Fault("", "is not UTF-8 here", line)]) from None


def _fault(told: str) -> Fault:
    place, colon, message = told.partition(": ")
    return Fault(place, message) if colon else Fault("", told)
