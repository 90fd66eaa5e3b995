"""A shard as a document.   ShardView ──shard_doc──► ShardDoc, for status, the CLI and programs

With each replica's upstream (upstream_members), and advice to its operator (shard_advice).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from urllib.parse import urlsplit

import msgspec

from headgate.changes.exchange_api import CopiesDoc
from headgate.changes.state import CopyState
from headgate.check.answer_api import MetricDoc
from headgate.check.answers import metric_doc
from headgate.check.decide import judge
from headgate.check.health import Window, stand
from headgate.check.model import Activity
from headgate.check.reasons import duration, quantity
from headgate.fleet.api import ReachedDoc
from headgate.metrics.model import Debounce, MetricSpec
from headgate.metrics.samples import Absent, Instant, Reading
from headgate.shard.model import MemberView, ShardView, Skip
from headgate.shard.topology import Downstream, Following, Leading, RoleSeen, Unled

Specs = Mapping[str, MetricSpec]


class SkipDoc(msgspec.Struct, frozen=True):
    """A member that an operator skips."""

    member: str
    who: str
    reason: str
    until_s: float
    """Seconds from now until it counts again."""


class CopyDoc(msgspec.Struct, frozen=True):
    """What a member's agent has of what operators changed for the shard."""

    has_all: bool
    exchanged_s_ago: float | None
    """Seconds since it last answered; null: never."""
    fault: str
    """Why the copy is missing or different; empty: it is not."""


class MemberDoc(msgspec.Struct, frozen=True):
    member: str
    url: str
    """Its agent's address; empty for a database of this agent that advertises none."""
    here: bool
    """Whether it is a database of this agent."""
    role: str | None
    """`primary` or `replica`, as its server reports; null if unknown."""
    role_detail: str
    """Why there is no role, if there is none."""
    term: int | None
    """Grows with each promotion: Postgres's timeline; null if the engine has none."""
    upstream: str
    """host:port that it replicates from; empty on a primary."""
    upstream_member: str | None
    """The member that it replicates from, if it is known."""
    bytes_behind: int | None
    """Bytes of log that it has not replayed yet, as its upstream's server counts them."""
    labels: Mapping[str, str]
    activity: str | None
    """`awake`, `idle` or `hibernating`; null if it has not reported."""
    reachable: bool
    problem: str
    """Why it cannot be counted now: unreachable, or follows another primary; empty: it can."""
    unreachable_for_s: float | None
    reported_s_ago: float | None
    joined_s_ago: float | None
    """Seconds since it joined or came back; null if it always was a member."""
    checked_s_ago: float | None
    """Seconds since a client last checked at its agent; null: not recently."""
    clock_ahead_s: float | None
    """Its database's clock minus the primary's; null if not measured."""
    skip: SkipDoc | None
    readings: Sequence[MetricDoc]
    skipped_metrics: Mapping[str, str]
    """Metric → why this member is skipped in it."""
    skip_kinds: Mapping[str, str]
    """The same as one of `skipped`, `missing`, `hopeless`, `grace`, `unsupported`, `ignored`."""
    hopeless: Sequence[str]
    """Those of `skipped_metrics` in which the agent skips it, as throttling does not help it."""
    copy: CopyDoc | None = None
    """Its agent's copy of the shard's changes; null: this agent sends it none."""


class CostDoc(msgspec.Struct, frozen=True):
    """What watching this database has cost in one state of activity."""

    state: str
    probes: int
    messages: int
    """Messages to agents of other members."""
    beats: int
    """Heartbeats written."""


class ShardDoc(msgspec.Struct, frozen=True):
    """A shard as one agent sees it, for one of its own databases."""

    shard: str
    database: str
    member: str
    """This database's own name in the shard."""
    state: str
    """`leading`: this agent answers for it; `following`: another one does; `unled`: none may."""
    primary: str | None
    primary_url: str | None
    """Where to check with scope shard; null if that is here, or unknown."""
    term: int | None
    cause: str | None
    """Why no agent may roll it up; null: one does."""
    detail: str
    warming_up: str | None
    """Leading, but not all members have reported: what is still missing."""
    members: Sequence[MemberDoc]
    unwatched: Sequence[Downstream]
    """Replicas that the primary's server lists, and no member answers for."""
    collect_interval_s: float
    messages_total: int
    costs: Sequence[CostDoc]
    notes: Sequence[str]
    """What Patroni and the fleet's store report about it, and what this agent cannot watch;
    no decision depends on it."""
    copies: CopiesDoc | None = None
    """In the answer to a change of the shard: which other agents have it."""
    reached: ReachedDoc | None = None
    """Of a change in a fleet's log: which agents it reaches."""


def shard_doc(
    view: ShardView,
    specs: Specs,
    now: Instant,
    costs: Sequence[CostDoc] = (),
    copies: Mapping[str, CopyState] = MappingProxyType({}),
) -> ShardDoc:
    role = _role(view)
    above, behind = upstream_members(view.members), bytes_behind(view.members)
    return ShardDoc(
        shard=view.shard,
        database=view.database,
        member=view.member,
        state=role.state,
        primary=role.primary,
        primary_url=role.url,
        term=role.term,
        cause=role.cause,
        detail=role.detail,
        warming_up=view.warming_up.detail if view.warming_up else None,
        members=[
            _member(
                member,
                _Beside(
                    above.get(member.member.name),
                    behind.get(member.member.name),
                    _copy(copies.get(member.member.name), now),
                ),
                readings_of(member, specs, now, collect_s=view.collect_interval_s),
                now,
            )
            for member in view.members
        ],
        unwatched=view.unwatched,
        collect_interval_s=view.collect_interval_s,
        messages_total=view.messages_total,
        costs=costs,
        notes=view.told,
    )


class _Role(msgspec.Struct, frozen=True):
    state: str
    primary: str | None = None
    url: str | None = None
    term: int | None = None
    cause: str | None = None
    detail: str = ""


def _role(view: ShardView) -> _Role:
    match view.standpoint:
        case Leading(primary=primary, term=term):
            return _Role("leading", primary, term=term)
        case Following(primary=primary, url=url):
            return _Role("following", primary, url or None)
        case Unled(absent=absent):
            return _Role("unled", cause=absent.cause.value, detail=absent.detail)


class _Beside(msgspec.Struct, frozen=True):
    """What other members tell about one."""

    upstream: str | None
    bytes_behind: int | None
    copy: CopyDoc | None = None


def _copy(state: CopyState | None, now: Instant) -> CopyDoc | None:
    if state is None:
        return None
    return CopyDoc(state.has_all, _since(state.exchanged_at, now), state.fault)


def _member(
    view: MemberView, beside: _Beside, readings: Sequence[MetricDoc], now: Instant
) -> MemberDoc:
    member, report = view.member, view.member.report
    seen: RoleSeen | None = report.role if report and member.lost is None else None
    return MemberDoc(
        member=member.name,
        url=(report.url if report else "") or member.url,
        here=member.local,
        role=seen.role.value if seen else None,
        role_detail=_no_role(view) if seen is None else "",
        term=seen.term if seen else None,
        upstream=seen.upstream if seen else "",
        upstream_member=beside.upstream,
        bytes_behind=beside.bytes_behind,
        labels=dict(report.labels) if report else {},
        activity=report.activity.value if report else None,
        reachable=member.lost is None,
        problem=view.problem,
        unreachable_for_s=_since(member.lost_since, now) if member.lost else None,
        reported_s_ago=_since(report.at, now) if report else None,
        joined_s_ago=_since(member.joined_at or None, now),
        checked_s_ago=report.checked_s_ago if report else None,
        clock_ahead_s=view.clock_ahead_s,
        skip=_skip(view.skip, now),
        readings=readings,
        skipped_metrics=view.skipped_metrics,
        skip_kinds=view.skip_kinds,
        hopeless=view.hopeless,
        copy=beside.copy,
    )


def _no_role(view: MemberView) -> str:
    member = view.member
    if member.lost is not None:
        return member.lost.detail
    if member.report is None:
        return "no report yet"
    absent = member.report.role_unavailable
    return absent.detail if absent else "its server has not reported its role"


def _skip(skip: Skip | None, now: Instant) -> SkipDoc | None:
    if skip is None or not skip.holds(now):
        return None
    return SkipDoc(skip.member, skip.who, skip.reason, skip.left_s(now))


def readings_of(
    view: MemberView, specs: Specs, now: Instant, *, collect_s: float
) -> list[MetricDoc]:
    """Each compared with this agent's own threshold; without one it is only shown."""
    report = view.member.report
    activity = report.activity if report is not None else Activity.AWAKE
    found = []
    for name, reading in sorted(view.readings.items()):
        spec = specs.get(name)
        if spec is None:
            found.append(_unjudged(name, reading, now))
            continue
        # One value, as it came: what debounce looks back on is the shard's, not the member's.
        alone = replace(spec, max_age_s=spec.max_age_s + collect_s, debounce=Debounce())
        finding = judge(stand(alone, Window().push(reading, keep=1)), now)
        found.append(metric_doc(finding, activity))
    return found


def _unjudged(name: str, reading: Reading, now: Instant) -> MetricDoc:
    absent = reading if isinstance(reading, Absent) else None
    at = reading.at if isinstance(reading, Absent) else reading.taken_at
    age_ms = round(max(0.0, now.mono_s - at) * 1000)
    return MetricDoc(
        metric=name,
        scope="host",
        state="unavailable" if absent else "healthy",
        value=None if isinstance(reading, Absent) else reading.value,
        unit="",
        threshold=None,
        comparison="",
        age_ms=None if absent else age_ms,
        cause=reading.cause.value if reading.cause else None,
        detail=reading.detail,
        unavailable_for_ms=age_ms if absent else None,
    )


def _since(at: float | None, now: Instant) -> float | None:
    return None if at is None else max(0.0, now.mono_s - at)


# --- upstreams -----------------------------------------------------------------------------------

# Which server replicates from which, as far as servers report: for drawing, never for deciding.
#
# A server knows its upstream by an address or an identity, and its replicas by the names they
# give; agents know members by name and URL. If these match in more than one way, the answer is
# unknown.


def upstream_members(members: Sequence[MemberView]) -> dict[str, str]:
    """Replica → the member that it replicates from."""
    roles, listed = _roles(members), _listings(members)
    by_server_id = _unique((role.server_id, name) for name, role in roles.items())
    places = [*_hosts(members), *((view.member.name,) * 2 for view in members)]
    found = {}
    for name, role in roles.items():
        above = by_server_id.get(role.upstream_id)
        if above is None and name in listed:
            above, _ = listed[name]
        if above is None:
            # Two agents on one host: what it replicates from is not itself.
            others = _unique((place, other) for place, other in places if other != name)
            above = others.get(_host(role.upstream))
        if above is not None and above != name:
            found[name] = above
    return found


def bytes_behind(members: Sequence[MemberView]) -> dict[str, int]:
    """Replica → bytes, from the list of whichever member's server has it."""
    return {
        name: replica.bytes_behind
        for name, (_, replica) in _listings(members).items()
        if replica.bytes_behind is not None
    }


def _listings(members: Sequence[MemberView]) -> dict[str, tuple[str, Downstream]]:
    """Member → who lists it, and as what: by its own name, else by an address of its own."""
    hosts = _unique(_hosts(members))
    found: dict[str, list[tuple[str, Downstream]]] = {}
    names = {view.member.name for view in members}
    for lister, role in _roles(members).items():
        for replica in role.downstream:
            known = hosts.get(replica.name) or hosts.get(replica.host)
            member = replica.name if replica.name in names else known
            if member is not None and member != lister:
                found.setdefault(member, []).append((lister, replica))
    return {member: places[0] for member, places in found.items() if len(places) == 1}


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Key → value, where the key is not empty and has one value only."""
    values: dict[str, set[str]] = {}
    for key, value in pairs:
        values.setdefault(key, set()).add(value)
    return {key: held.pop() for key, held in values.items() if key and len(held) == 1}


def _roles(members: Sequence[MemberView]) -> Mapping[str, RoleSeen]:
    reports = ((view.member.name, view.member.report) for view in members)
    return {name: report.role for name, report in reports if report and report.role}


def _hosts(members: Sequence[MemberView]) -> list[tuple[str, str]]:
    return [(_host_of(view), view.member.name) for view in members]


def _host_of(view: MemberView) -> str:
    report = view.member.report
    try:
        return urlsplit((report.url if report else "") or view.member.url).hostname or ""
    except ValueError:
        return ""


def _host(place: str) -> str:
    """Of host:port."""
    return (place.rpartition(":")[0] or place).strip("[]")


# --- advice --------------------------------------------------------------------------------------

# Warnings about a shard for its operator.   ShardDoc ──► lines of advice

SKEW_S = 0.1
"""Clocks that differ by more are worth a warning, although lag is corrected for it."""
JUST_JOINED_S = 900.0
HOPELESS = "HOPELESS: "
"""Prefix of advice about a replica that the agent skips automatically."""
SETTLING_S = 30.0


def shard_advice(doc: ShardDoc, *, uptime_s: float) -> list[str]:
    hopeless = [
        f"{HOPELESS}{doc.database}: {told}" for member in doc.members for told in _hopeless(member)
    ]
    return [*hopeless, *(f"{doc.database}: {told}" for told in _told(doc, uptime_s))]


def _hopeless(member: MemberDoc) -> Iterator[str]:
    for metric in member.hopeless:
        yield (
            f"{member.member} does not count for {metric}, and clients are admitted without it: "
            f"{member.skipped_metrics[metric]}; repair or rebuild it"
        )


def _told(doc: ShardDoc, uptime_s: float) -> Iterator[str]:
    if doc.cause == "split_brain":
        yield f"split brain in {doc.shard}, every check with scope shard is rejected: {doc.detail}"
    for replica in doc.unwatched:
        yield _unwatched(doc, replica)
    for member in doc.members:
        yield from _skewed(member)
        yield from _skips(doc, member)
        # To an agent that has just started, everybody has just joined.
        if (member.joined_s_ago or 0.0) < uptime_s - SETTLING_S:
            yield from _newcomer(doc, member)


def _unwatched(doc: ShardDoc, replica: Downstream) -> str:
    called = replica_name(replica)
    return (
        f"replica {called} of {doc.shard} has no agent, so its lag does not count: run an "
        f"agent for it and `headgate shard add-peer {doc.database} {replica.name or 'NAME'} "
        f"https://{replica.host or 'HOST'}:8087`, or set discover"
    )


def replica_name(replica: Downstream) -> str:
    if replica.name and replica.host and replica.name != replica.host:
        return f"{replica.name} ({replica.host})"
    return replica.name or replica.host or "without a name"


def _skewed(member: MemberDoc) -> Iterator[str]:
    ahead_s = member.clock_ahead_s
    if ahead_s is not None and abs(ahead_s) > SKEW_S:
        side = "ahead of" if ahead_s > 0 else "behind"
        yield (
            f"the clock of {member.member} is {duration(abs(ahead_s))} {side} the primary's; "
            "lag is corrected for it, but synchronize both with NTP"
        )


def _skips(doc: ShardDoc, member: MemberDoc) -> Iterator[str]:
    skip = member.skip
    if skip is not None:
        yield (
            f"{member.member} is skipped by {skip.who} for another "
            f"{duration(skip.until_s)}: {skip.reason}; "
            f"`headgate shard unskip {doc.database} {member.member}` ends that"
        )
        return
    metrics_by_why: dict[str, list[str]] = {}
    for metric, why in member.skipped_metrics.items():
        if metric in member.hopeless or is_without(member, metric):
            continue
        metrics_by_why.setdefault(why, []).append(metric)
    for why, metrics in metrics_by_why.items():
        yield f"{member.member} is skipped for {', '.join(sorted(metrics))}: {why}"


def is_without(member: MemberDoc, metric: str) -> bool:
    """Its server cannot have this metric, and nothing is wrong: a standby takes no commits. Lag is
    what a replica is watched for."""
    return metric != "lag" and member.skip_kinds.get(metric) == "unsupported"


def _newcomer(doc: ShardDoc, member: MemberDoc) -> Iterator[str]:
    """It holds up everybody while it catches up, and nobody meant it to."""
    joined_s = member.joined_s_ago
    if joined_s is None or joined_s > JUST_JOINED_S or member.role != "replica":
        return
    for reading in member.readings:
        if reading.state == "breached" and reading.metric not in member.skipped_metrics:
            yield (
                f"{member.member} joined {duration(joined_s)} ago and its {reading.metric} is "
                f"{_value(reading)}, which blocks the shard: `headgate shard skip "
                f"{doc.database} {member.member} --for 30m --reason catching-up`, or give "
                f"{reading.metric} a grace_s"
            )


def _value(reading: MetricDoc) -> str:
    return "unknown" if reading.value is None else quantity(reading.value, reading.unit)
