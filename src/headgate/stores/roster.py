"""The shards that a view of the fleet has seen, on its disk.   FleetView ──► RosterFile ──► file

A shard whose agents all died is in no store any more: only an agent that remembers it can miss it.
One small file, replaced as a whole. Faults are logged, and nothing waits for the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

log = structlog.get_logger()

MAX_ROSTER_BYTES = 8 * 1024 * 1024
MAX_SHARDS = 40_000
_decode = msgspec.json.Decoder(dict[str, float]).decode


class RosterFile:
    """Called in a thread, one call at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told = ""

    def recall(self) -> Mapping[str, float]:
        try:
            with self._path.open("rb") as file:
                found = _decode(file.read(MAX_ROSTER_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._tell("cannot be read; shards that vanished before this start are unknown", error)
            return {}
        return dict(sorted(found.items(), key=lambda one: -one[1])[:MAX_SHARDS])

    def keep(self, roster: Mapping[str, float]) -> None:
        staged = self._path.with_name(f"{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(msgspec.json.encode(dict(roster)))
            staged.replace(self._path)
        except (OSError, ValueError) as error:
            self._tell("cannot be written", error)
        else:
            self._told = ""

    def _tell(self, what: str, error: Exception) -> None:
        if what != self._told:
            log.warning("fleet.roster", path=str(self._path), detail=f"{what}: {error}")
        self._told = what
