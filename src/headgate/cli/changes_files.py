"""A file of changes: read for `apply` and `diff`, its faults told by line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.cli.api import Refused
from headgate.core.change_files import SECTIONS, parse_file, read_document
from headgate.core.reach import HERE
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
    fleet: bool = False
    """For the fleet's log."""

    @property
    def entries(self) -> int:
        return sum(len(self.document.get(section) or ()) for section in SECTIONS)

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
        return list(faults) if self.is_json else with_lines(list(faults), _numbered(self.text))


def load(path: Path, *, fleet: bool) -> File:
    """InvalidSettings with every fault of its shape; the agent validates its settings."""
    try:
        text = _text(path)
        file = File(path, text, read_document(text, is_json=path.suffix == ".json"), fleet)
    except InvalidSettings as error:
        raise InvalidSettings(error.faults, str(path)) from None
    try:
        parse_file(file.document, default_reach=None if fleet else HERE)
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
    """With `[rules.2]` for the headers of entries, line by line; those of budgets are known."""
    at, numbered = dict.fromkeys(SECTIONS, -1), []
    for line in toml.splitlines():
        header = re.sub(r"[\s\"']", "", line.partition("#")[0])
        match = _HEADER.fullmatch(header)
        if match is None:
            numbered.append(line)
        elif header.startswith("[["):
            at[match[1]] += 1
            numbered.append(f"[{match[1]}.{at[match[1]]}]")
        else:
            numbered.append(f"[{match[2]}.{at[match[2]]}.{match[3]}]")
    return "\n".join(numbered)


_OTHERS = "|".join(section for section in SECTIONS if section != "budgets")
_HEADER = re.compile(rf"\[(?:\[({_OTHERS})\]|({_OTHERS})\.(.+))\]")
