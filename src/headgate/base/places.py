"""Where in a TOML file a setting is. tomllib keeps no positions; headers and keys are
easy to find again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headgate.errors import Fault

_PART = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")


def line_index(content: str) -> dict[str, int]:
    """Dotted place → its line, counted from 1; the third of `[[rules]]` is `rules.2`."""
    index: dict[str, int] = {}
    section, counts = "", dict[str, int]()
    for line_number, line in enumerate(content.splitlines(), start=1):
        if header := _HEADER.match(line):
            name = _dotted(header[1])
            if line.lstrip().startswith("[["):
                counts = {of: n for of, n in counts.items() if not of.startswith(f"{name}.")}
                counts[name] = counts.get(name, -1) + 1
                index.setdefault(_numbered(name, counts, within=True), line_number)
            section = _numbered(name, counts)
            index.setdefault(section, line_number)
        elif key := _KEY.match(line):
            place = f"{section}.{_dotted(key[1])}" if section else _dotted(key[1])
            index.setdefault(place, line_number)
    return index


def _numbered(name: str, counts: Mapping[str, int], *, within: bool = False) -> str:
    """With the number of each list's last table. `within`: but for that of the last part."""
    parts, found = name.split("."), list[str]()
    for end, part in enumerate(parts, start=1):
        count = counts.get(".".join(parts[:end]))
        found.append(part if count is None or (within and end == len(parts)) else f"{part}.{count}")
    return ".".join(found)


def with_lines(faults: Iterable[Fault], content: str) -> list[Fault]:
    """With the lines of the TOML text where they are. A fault that has one keeps it."""
    lines = line_index(content)
    dotted = ((fault, re.sub(r"\[(\d+)\]", r".\1", fault.place)) for fault in faults)
    return [
        fault if fault.line else fault._replace(line=nearest_line(place, lines))
        for fault, place in dotted
    ]


def nearest_line(place: str, lines: Mapping[str, int]) -> int | None:
    """The line of the place itself, of the first that lies in it ([a.b] is in a), or of the nearest
    table around it."""
    while place:
        within = (line for known, line in lines.items() if known.startswith(f"{place}."))
        if (line := lines.get(place) or min(within, default=None)) is not None:
            return line
        place = place.rpartition(".")[0]
    return None


def _dotted(raw: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in raw.split("."))
