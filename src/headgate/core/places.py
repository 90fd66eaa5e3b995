"""Where in a TOML file a setting stands. tomllib keeps no positions; headers and keys are
easy to find again."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PART = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")


def line_index(content: str) -> dict[str, int]:
    """Dotted place → its line, counted from 1."""
    index: dict[str, int] = {}
    section, counts = "", dict[str, int]()
    for line_number, line in enumerate(content.splitlines(), start=1):
        if header := _HEADER.match(line):
            section = _dotted(header[1])
            if line.lstrip().startswith("[["):
                counts[section] = counts.get(section, -1) + 1
                section = f"{section}.{counts[section]}"
            index.setdefault(section, line_number)
        elif key := _KEY.match(line):
            place = f"{section}.{_dotted(key[1])}" if section else _dotted(key[1])
            index.setdefault(place, line_number)
    return index


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
