"""What an agent keeps of the fleet on its own disk, to know its rules when nobody answers."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.core.keyvalue import Listing


@dataclass(frozen=True, slots=True)
class Origin:
    """Which store a copy is of, by the settings: what is another fleet's is nothing here, be it
    that a host has moved, or that its disk is a copy of another's."""

    prefix: str = ""
    places: tuple[str, ...] = ()
    """Addresses of members, or the file."""

    def differs_from(self, other: Origin) -> bool:
        """Members come and go, but never all at once."""
        known = bool(self.places) and bool(other.places)
        return known and (self.prefix != other.prefix or not set(self.places) & set(other.places))

    def __str__(self) -> str:
        return f"{', '.join(self.places)} {self.prefix}".strip()


@dataclass(frozen=True, slots=True)
class LogCopy:
    listing: Listing
    """Entries of revision 0 are none of that store's: they were kept when it had lost them."""
    prefixes: tuple[str, ...]
    """What was followed: there is nothing in it of others."""
    n: int
    """The fleet's revision that it had come to."""
    wall_s: float
    """When the store was last heard of, by this agent's clock."""
