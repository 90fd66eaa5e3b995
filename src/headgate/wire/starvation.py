"""Starved clients and rogue clients, as documents and as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from headgate.core.sessions import Suspect
from headgate.core.starvation import CULPRIT_MEANINGS, LOOK, Culprit, Starved
from headgate.wire.reasons import duration

STARVED = "starved: "
ROGUE_SHARE = 0.05
"""Share of a database's activity from which a rogue client is shown in the status."""


class StarvedDoc(msgspec.Struct, frozen=True):
    database: str
    client: str
    """A client, or a level if all its running clients are starved."""
    is_level: bool
    members: Sequence[str]
    metric: str
    cause: str
    """`exempt_client`, `differential_metrics`, `admitted_work` or `unexplained_load`."""
    why: str
    starved_s: float
    runtime_s: float
    share: float
    """Starved share of its runtime."""
    alarming: bool
    """The share is above the waterline."""
    refusals: int
    breached_share: float
    mean_utilization: float
    """The metric, as a share of its threshold, on average."""
    dice_s: float
    """Time rejected by ratio rules, which is not starvation."""
    blamed: Sequence[str]
    rule: str
    proposal: str
    """A proposed command; the agent does not run it."""


class StarvationDoc(msgspec.Struct, frozen=True):
    window_s: float
    waterline: float
    starved: Sequence[StarvedDoc]


class SuspectDoc(msgspec.Struct, frozen=True):
    database: str
    user: str
    application: str
    host: str
    sessions: int
    active_mean: float
    share: float
    """Share of the database's activity, over about eight minutes."""


class RogueFaultDoc(msgspec.Struct, frozen=True):
    database: str
    detail: str


class RoguesDoc(msgspec.Struct, frozen=True):
    suspects: Sequence[SuspectDoc]
    faults: Sequence[RogueFaultDoc]
    """Databases whose sessions could not be listed."""


def starved_doc(finding: Starved) -> StarvedDoc:
    return StarvedDoc(
        database=finding.database,
        client=finding.client,
        is_level=finding.is_level,
        members=finding.members,
        metric=finding.metric,
        cause=finding.culprit.value,
        why=CULPRIT_MEANINGS[finding.culprit],
        starved_s=finding.for_s,
        runtime_s=finding.runtime_s,
        share=finding.share,
        alarming=finding.alarming,
        refusals=finding.refusals,
        breached_share=finding.breached_share,
        mean_utilization=finding.mean_utilization,
        dice_s=finding.dice_s,
        blamed=finding.blamed,
        rule=finding.rule,
        proposal=finding.proposal,
    )


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


def starvation_advice(findings: Iterable[Starved]) -> list[str]:
    """Of those above the waterline."""
    return [_starved(finding) for finding in findings if finding.alarming]


def _starved(f: Starved) -> str:
    who = f"{f.client} ({len(f.members)} clients)" if f.is_level else f.client
    blamed = f" ({', '.join(f.blamed)})" if f.blamed else ""
    return (
        f"{STARVED}{who} on {f.database} has been rejected by {f.metric} for {duration(f.for_s)}, "
        f"{f.share:.0%} of its runtime: {CULPRIT_MEANINGS[f.culprit]}{blamed}; {_remedy(f)}"
    )


def _remedy(finding: Starved) -> str:
    if finding.culprit is Culprit.UNEXPLAINED_LOAD or finding.proposal == LOOK:
        return f"see `{finding.proposal}`"
    return f"`{finding.proposal}` would end it"


def rogue_advice(database: str, found: Sequence[Suspect], *, refusing: bool) -> list[str]:
    """While clients are rejected, a rogue client is worth a line."""
    loud = [suspect for suspect in found if suspect.share >= ROGUE_SHARE]
    if not loud or not refusing:
        return []
    first = loud[0]
    name = first.who.application or first.who.user
    more = f" and {len(loud) - 1} more" if len(loud) > 1 else ""
    return [
        f"{database}: {name} (user {first.who.user}, from {first.who.host}){more} works there and "
        f"never checks, with {first.share:.0%} of the activity; see `headgate clients --rogue`"
    ]
