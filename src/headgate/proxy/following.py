"""Which servers a proxy sends sessions to, from what agents report about their shard.

    `ShardReport` (one agent's view of the shard) ──elect──► Led (who is primary, since which term)
                                          └──standing_of──► each replica: takes sessions, or why not

An agent that is cut off together with an old primary still reports that it leads. Terms show which
of two reports is older. An engine without terms needs another proof: a server that claims to be
primary again must see the current primary as its own replica. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from headgate.pacing.model import is_delay

BACK_AFTER_S = 30.0
"""Without terms: an old primary is accepted if all agents that answer claim it for this long."""


class ToldReading(NamedTuple):
    metric: str
    unit: str
    state: str


class ToldMember(NamedTuple):
    name: str
    url: str
    role: str | None
    term: int | None
    reachable: bool
    problem: str
    skipped: bool
    upstream: str
    """host:port that it replicates from."""
    upstream_member: str | None
    labels: Mapping[str, str]
    readings: Sequence[ToldReading]
    skipped_metrics: Mapping[str, str]


class ShardReport(NamedTuple):
    """A shard, as one agent sees it."""

    agent: str
    shard: str
    standing: str
    primary: str | None
    detail: str
    members: tuple[ToldMember, ...]

    def member(self, name: str | None) -> ToldMember | None:
        return next((member for member in self.members if member.name == name), None)

    @property
    def term(self) -> int | None:
        """Of the primary, as its own server counts."""
        primary = self.member(self.primary)
        return primary.term if primary is not None else None


class Led(NamedTuple):
    """Who is primary, as far as we go along."""

    primary: str = ""
    term: int | None = None
    past: str = ""
    """The previous primary, for engines without terms; empty: none."""
    back_since: float | None = None
    """Since when all agents report that it is primary again."""


class PrimaryClaim(NamedTuple):
    primary: str
    term: int | None
    told: ShardReport


class Election(NamedTuple):
    led: Led
    by: ShardReport | None
    """The view of the shard that is used; None: nothing changes."""
    doubt: str = ""
    """Why a report is not believed."""


def elect(before: Led, tellings: Iterable[ShardReport], now: float) -> Election:
    """Which primary to follow: the one with the newest term. A lower term is an old report."""
    claims = [_claim(told) for told in tellings]
    # The primary's own agent first: it is the one that sees every member.
    known = sorted((c for c in claims if c is not None), key=lambda c: c.told.standing != "leading")
    if not known:
        return Election(before, None, "no agent reports a primary")
    newest = max(known, key=lambda claim: -1 if claim.term is None else claim.term)
    if newest.term is not None:
        return _by_term(before, newest, [c for c in known if c.term == newest.term])
    return _without_terms(before, known, now)


def _claim(told: ShardReport) -> PrimaryClaim | None:
    """What an agent says that may say it: a primary that it reaches, and that says so itself."""
    primary = told.member(told.primary)
    if told.standing not in ("leading", "following") or primary is None:
        return None
    if primary.role != "primary" or not primary.reachable:
        return None
    return PrimaryClaim(primary.name, primary.term, told)


def _by_term(before: Led, newest: PrimaryClaim, same: Sequence[PrimaryClaim]) -> Election:
    term = newest.term
    assert term is not None
    if before.term is not None and term < before.term:
        doubt = (
            f"{newest.told.agent} reports {newest.primary} as primary in term {term}, but term "
            f"{before.term} was seen already: this report is outdated"
        )
        return Election(before, None, doubt)
    others = {claim.primary for claim in same}
    if len(others) > 1:
        doubt = f"{' and '.join(sorted(others))} are both reported as primary in term {term}"
        return Election(before, None, doubt)
    if before.primary and term == before.term and newest.primary != before.primary:
        doubt = f"{newest.primary} is reported as primary in the term of {before.primary}, {term}"
        return Election(before, None, doubt)
    return Election(Led(newest.primary, term), newest.told)


def _without_terms(before: Led, known: Sequence[PrimaryClaim], now: float) -> Election:
    names = {claim.primary for claim in known}
    if before.term is not None:
        return Election(before, None, f"{names} are reported without a term, after {before.term}")
    if len(names) > 1:
        doubt = f"{' and '.join(sorted(names))} are both reported as primary"
        return Election(before, None, doubt)
    claim = known[0]
    if claim.primary == before.primary:
        return Election(before._replace(back_since=None), claim.told)
    if claim.primary != before.past or _yields(claim.told, before.primary):
        return Election(Led(claim.primary, None, past=before.primary), claim.told)
    since = before.back_since if before.back_since is not None else now
    if now - since >= BACK_AFTER_S:
        return Election(Led(claim.primary, None, past=before.primary), claim.told)
    doubt = (
        f"{claim.told.agent} reports {claim.primary} as primary again, but does not see "
        f"{before.primary}, which became primary after it"
    )
    return Election(before._replace(back_since=since), None, doubt)


def _yields(told: ShardReport, name: str) -> bool:
    """Whether the one that had it is seen to follow now."""
    member = told.member(name)
    return member is None or (member.reachable and member.role == "replica")


# --- replicas ------------------------------------------------------------------------------------


class ServerUse(Enum):
    TAKES = "takes sessions"
    RESTS = "takes no new sessions"
    """Lagging, or its agent does not answer: existing sessions may stay."""
    GONE = "is not to be used"
    """Skipped, or it follows another primary: its sessions are moved to other servers."""


class Fitness(NamedTuple):
    standing: ServerUse
    why: str = ""


FIT = Fitness(ServerUse.TAKES)


def fitness_of(member: ToldMember) -> Fitness:
    """Of a member that is no primary."""
    if member.skipped:
        return Fitness(ServerUse.GONE, "an operator skips it")
    if not member.reachable:
        return Fitness(ServerUse.RESTS, member.problem or "its agent does not answer")
    if member.problem:
        return Fitness(ServerUse.GONE, member.problem)
    if member.role != "replica":
        return Fitness(ServerUse.RESTS, "its server has not reported that it is a replica")
    for reading in member.readings:
        if reading.metric in member.skipped_metrics:
            return Fitness(
                ServerUse.RESTS, f"{reading.metric}: {member.skipped_metrics[reading.metric]}"
            )
        if reading.state == "breached":
            return Fitness(ServerUse.RESTS, f"{reading.metric} is above its threshold")
        if reading.state in ("unavailable", "idle") and is_delay(reading.metric, reading.unit):
            return Fitness(ServerUse.RESTS, f"its {reading.metric} is unavailable")
    return FIT


# --- addresses -----------------------------------------------------------------------------------

ADDRESS_LABEL = "address"
"""Label of a member in its agent's settings: the address of its database, `db2:5432`."""


def place_of(member: ToldMember, told: ShardReport, port: int | None) -> tuple[str, int] | None:
    """host and port of a member's database: its label, else its agent's host and the port of all,
    else where its replicas say that they replicate from. None: nobody says."""
    label = host_port(member.labels.get(ADDRESS_LABEL, ""), port)
    if label is not None:
        return label
    host = _url_host(member.url)
    if host and port is not None:
        return host, port
    below = (m.upstream for m in told.members if m.upstream_member == member.name)
    return next((place for one in below if (place := host_port(one, port)) is not None), None)


def host_port(text: str, default: int | None) -> tuple[str, int] | None:
    """`db:5432`, `[::1]:5432`, `db` with a default; None for what is none of them."""
    if not text:
        return None
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        digits = rest.removeprefix(":")
    elif text.count(":") > 1:
        host, digits = text, ""
    else:
        host, _, digits = text.partition(":")
    if not digits:
        return (host, default) if host and default is not None else None
    if not digits.isascii() or not digits.isdigit() or not 0 < int(digits) < 65536:
        return None
    return (host, int(digits)) if host else None


def _url_host(url: str) -> str:
    _, slashes, rest = url.partition("://")
    if not slashes or url.startswith("unix:"):
        return ""
    found = host_port(rest.partition("/")[0], 0)
    return found[0] if found is not None else ""
