"""What an agent keeps of the fleet on its own disk, to know its rules when nobody answers."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.base.keyvalue import Listing


@dataclass(frozen=True, slots=True)
class CopyOrigin:
    """Which store a copy is of, by the settings: what is another fleet's is nothing here, be it
    that a host has moved, or that its disk is a copy of another's."""

    prefix: str = ""
    places: tuple[str, ...] = ()
    """Addresses of the store's members, or its file."""

    def differs_from(self, other: CopyOrigin) -> bool:
        """Members come and go, but never all at once."""
        known = bool(self.places) and bool(other.places)
        return known and (self.prefix != other.prefix or not set(self.places) & set(other.places))

    def __str__(self) -> str:
        return f"{', '.join(self.places)} {self.prefix}".strip()


@dataclass(frozen=True, slots=True)
class LogCopy:
    listing: Listing
    """Entries of revision 0 are not in that store: this agent kept them when the store lost
    them."""
    prefixes: tuple[str, ...]
    """The prefixes that were followed: the copy has nothing else."""
    n: int
    """The fleet's revision at the time of the copy."""
    wall_s: float
    """When the store was last seen, by this agent's clock."""
