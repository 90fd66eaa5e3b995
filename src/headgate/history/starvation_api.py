"""Starved clients and rogue clients, as documents and as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headgate.check.reasons import duration, share_of
from headgate.history.sessions import Suspect
from headgate.history.starvation import LOOK, Culprit, Starved

STARVED = "starved: "
ROGUE_SHARE = 0.05
"""Share of a database's activity from which on status mentions a rogue client."""


class StarvationDoc(msgspec.Struct, frozen=True):
    window_s: float
    """A client may be starved once metrics rejected it without a break for so long."""
    waterline: float
    """Share of its runtime from which on starvation is alarming."""
    starved: Sequence[Starved]
    """The longest first."""


class SuspectDoc(msgspec.Struct, frozen=True):
    """A rogue client: it works in the database and never checks."""

    database: str
    user: str
    """Database user."""
    application: str
    """Its application_name; empty: it has none."""
    host: str
    """Where it connects from."""
    sessions: int
    """Sessions that it has now."""
    active_mean: float
    """Sessions at work, on average over about eight minutes."""
    share: float
    """Share of the database's activity, over about eight minutes."""


class RogueFaultDoc(msgspec.Struct, frozen=True):
    database: str
    detail: str
    """Why its sessions cannot be listed."""


class RoguesDoc(msgspec.Struct, frozen=True):
    suspects: Sequence[SuspectDoc]
    faults: Sequence[RogueFaultDoc]
    """Databases whose sessions could not be listed."""


def suspect_doc(database: str, suspect: Suspect) -> SuspectDoc:
    who = suspect.who
    return SuspectDoc(
        database,
        who.user,
        who.application,
        who.host,
        suspect.sessions,
        suspect.active_mean,
        suspect.share,
    )


# --- sentences -----------------------------------------------------------------------------


def starvation_advice(found: Iterable[Starved]) -> list[str]:
    """Of those above the waterline."""
    return [
        f"{STARVED}{starved_says(one)}: {starved_why(one)}; {_remedy(one)}"
        for one in found
        if one.alarming
    ]


def starved_says(one: Starved) -> str:
    """`etl (2 clients) on main: rejected by lag for 15 min, 25% of its runtime`."""
    who = f"{one.client} ({len(one.members)} clients)" if one.is_level else one.client
    lasted = f"{duration(one.starved_s)}, {share_of(one.share)} of its runtime"
    return f"{who} on {one.database} is rejected by {one.metric} for {lasted}"


def starved_why(one: Starved) -> str:
    return f"{one.why} ({', '.join(one.blamed)})" if one.blamed else one.why


def _remedy(one: Starved) -> str:
    if one.cause is Culprit.UNEXPLAINED_LOAD or one.proposal == LOOK:
        return f"see `{one.proposal}`"
    return f"`{one.proposal}` would end it"


def rogue_advice(database: str, found: Sequence[Suspect], *, rejecting: bool) -> list[str]:
    """While the database rejects checks, a rogue client is worth a line."""
    loud = [suspect for suspect in found if suspect.share >= ROGUE_SHARE]
    if not loud or not rejecting:
        return []
    first = loud[0]
    name = first.who.application or first.who.user
    more = f" and {len(loud) - 1} more" if len(loud) > 1 else ""
    return [
        f"{database}: rogue client {name} (user {first.who.user}, from {first.who.host}){more} "
        f"never checks and has {first.share:.0%} of the activity; see `headgate clients --rogue`"
    ]
