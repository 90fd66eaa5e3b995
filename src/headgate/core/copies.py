"""Who has a change of a shard, besides the agent that made it: what an acknowledgment says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class CopyState(NamedTuple):
    """What another agent has of a shard's changes, as it last reported."""

    has_all: bool
    exchanged_at: float | None
    """Monotonic seconds of its last answer; None: never."""
    fault: str
    """Why the last try failed; empty: it succeeded."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Who has a change, besides the agent that made it."""

    have: int
    of: int
    """Agents of replicas."""
    missing: tuple[str, ...] = ()
    """Replicas without a copy, and why: `db-b does not answer`."""
    standby: bool | None = None
    """Whether the standby agent has a copy; None: there is no standby."""

    @property
    def words(self) -> str:
        told = ["in force here"]
        if self.of:
            missing = f": {', '.join(self.missing)}" if self.missing else ""
            told.append(f"{self.have} of {self.of} replicas have a copy{missing}")
        if self.standby is not None:
            told.append(f"the standby has {'a copy' if self.standby else 'no copy yet'}")
        if len(told) == 1:
            told.append("no other agent of the shard is known")
        return "; ".join(told)


def both(one: Copies | None, other: Copies | None) -> Copies | None:
    """The copies of a change that applies to two shards."""
    if one is None or other is None:
        return one or other
    told = [copies.standby for copies in (one, other) if copies.standby is not None]
    return Copies(
        one.have + other.have,
        one.of + other.of,
        (*one.missing, *other.missing),
        all(told) if told else None,
    )
