"""What is set for a fleet, in a file: read for `apply` and `diff`, its faults told by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.cli.api import Refused
from headgate.cli.documents import BadDocument
from headgate.core.fleet_files import parse_file, read_document
from headgate.errors import Fault, InvalidSettings
from headgate.traffic.parse import with_lines

MAX_FILE_BYTES = 16 * 1024 * 1024
"""As much as an agent may be set to take (`max_body_bytes`)."""


TOO_LARGE = 413
_LARGER = "set a larger max_body_bytes in [agent] of that agent's settings, and restart it"


@dataclass(frozen=True, slots=True)
class File:
    path: Path
    text: str
    document: Mapping[str, Any]

    @property
    def entries(self) -> int:
        """Rules and budgets."""
        return sum(len(self.document.get(kind) or ()) for kind in ("rules", "budgets"))

    @property
    def is_json(self) -> bool:
        return self.path.suffix == ".json"

    @contextmanager
    def judged(self) -> Iterator[None]:
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
        return list(faults) if self.is_json else with_lines(list(faults), _numbered(self.text))


def load(path: Path) -> File:
    """InvalidSettings with every fault of its shape; its settings are the agent's to judge."""
    try:
        text = _text(path)
        file = File(path, text, read_document(text, is_json=path.suffix == ".json"))
    except InvalidSettings as error:
        raise InvalidSettings(error.faults, str(path)) from None
    try:
        parse_file(file.document)
    except InvalidSettings as error:
        raise InvalidSettings(file.located(error.faults), str(path)) from None
    return file


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


def _numbered(toml: str) -> str:
    """With `[rules.2]` for the headers of rules, line by line; those of budgets are known."""
    rule, numbered = -1, []
    for line in toml.splitlines():
        header = re.sub(r"[\s\"']", "", line.partition("#")[0])
        if header == "[[rules]]":
            rule += 1
            numbered.append(f"[rules.{rule}]")
        elif header.startswith("[rules."):
            numbered.append(f"[rules.{rule}.{header.removeprefix('[rules.')}")
        else:
            numbered.append(line)
    return "\n".join(numbered)


def exported(answer: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    n, document = answer.get("n"), answer.get("document")
    if not isinstance(n, int):
        raise BadDocument("n", "is no whole number")
    if not isinstance(document, Mapping):
        raise BadDocument("document", "is no object")
    return n, document
