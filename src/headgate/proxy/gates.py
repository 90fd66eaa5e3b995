"""What the relay does to each client, by the agents' own rules and decisions.

    Snapshot ──► Gates: clients grouped by the rules that apply to them ──gate_of──► Relay.put_gate

There is no decision per statement: each client has a ClientGate, which is worked out when health or
rules change, or a rule begins or ends. Clients with the same rules have the same gate, so only a
few groups are worked out, however many clients there are. Work for thousands of clients is done in
slices, with turns for everybody else in between.

Until a new client has its gate, the relay uses the gate of the levels in its name. So each level
that rules or settings name has a place and a gate before a client of that name comes
(`levels_of`), and they also apply to a name that is made up for each statement.

Silence alone blocks nothing here: a gate has the time until which it is known, and what happens
after it is the relay's `lost`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog

from headgate.base.names import Identity, MetricRef, parse_identity
from headgate.base.ports import Clock
from headgate.check.decide import NOT_COLLECTED, decide, findings
from headgate.check.health import Health
from headgate.check.model import Check, Decision, State, Verdict
from headgate.check.reasons import duration, reason_of
from headgate.check.snapshot import DatabaseSnapshot
from headgate.check.snapshot_api import Snapshot
from headgate.errors import InvalidName
from headgate.history.recorder import RULE, decided_by
from headgate.metrics.samples import Instant
from headgate.pacing.released import graded
from headgate.proxy.model import Act, GatedStatements, GateMode, GateTerms
from headgate.proxy.ports import ActCause, ClientCounts, ClientGate, ClientKey, PartState, Relay
from headgate.rules.matching import EVERYONE, FOREVER, UNRULED, Applied, Rule, RuleBook, throttles

log = structlog.get_logger()

SLICE, SLICE_S = 128, 0.002
"""Clients, and time, before others have their turn."""
ALMOST_ONE = math.nextafter(1.0, 0.0)
"""A throw that no ratio below 1 rejects: the relay throws the dice, not we."""
REASON_EVERY_S = 1.0
"""A gate that says the same but for its numbers is put that often."""
EXTEND_WITHIN = 0.5
"""A gate is put again when this share of its time has passed."""
LONGEST_WAIT_S = 5.0
MAX_REASON_BYTES = 199
RULE_MARGIN_S = 5.0
"""Beyond a rule's end, in case nobody is there to take its gate back."""
EVERYBODY = "*"
MIN_RETRY_S = 0.05
MAX_NAME_BYTES = 127
"""As the relay keeps them."""
PLACED = frozenset({"unidentified", "others", EVERYBODY, EVERYONE})
"""Names that have their place, or are nobody's."""
_STRENGTH = (Act.PASS, Act.WARN, Act.DELAY, Act.BLOCK, Act.CLOSE)


class GatePart(NamedTuple):
    """What rules, or health, would have done to a client's statements."""

    ratio: float = 0.0
    act: Act = Act.PASS
    cause: ActCause = ActCause.NOTHING
    ignores_priority: bool = False
    reason: str = ""
    retry_s: float = 0.0
    delay_s: float = 0.0
    verdict: Verdict = Verdict.OK
    by: str = ""
    """As history names it (history/recorder.py)."""
    known: bool = True


NOTHING = GatePart()
UNKNOWN = GatePart(known=False, reason="no agent reports the database's health")


class GateOutcome(NamedTuple):
    """A gate, and what a report has to say of statements that it acted upon."""

    gate: ClientGate
    rule: GatePart = NOTHING
    health: GatePart = NOTHING


FREE = GateOutcome(ClientGate())
NO_GATE = GateTerms()


# --- the gate of one client --------------------------------------------------------------------


def meant(targets: Iterable[str], identity: Identity) -> bool:
    """Whether one of these names it, as a rule's target would."""
    tokens = frozenset(identity.tokens)
    return any(
        target in (EVERYBODY, EVERYONE) or tokens.issuperset(target.split(":"))
        for target in targets
    )


def levels_of(targets: Iterable[str]) -> list[str]:
    """The names by which the relay finds what applies to a client that is new: each level of a
    target, and all of them together, in the order of their bytes."""
    names: dict[str, None] = {}
    for target in targets:
        tokens = sorted(set(target.split(":")))
        names |= dict.fromkeys((*tokens, ":".join(tokens)))
    # Beyond ASCII, or longer: the relay has no such names.
    return [
        name
        for name in names
        if name and name.isascii() and len(name) <= MAX_NAME_BYTES and name not in PLACED
    ]


def _acting_first(rules: Iterable[Rule], database: str, wall_s: float) -> list[str]:
    """Targets of rules that have not ended; if not all have a place, throttling ones first."""
    mine = [
        rule
        for rule in rules
        if rule.database in ("", database) and rule.windows != () and rule.expires_at > wall_s
    ]
    mine.sort(key=lambda rule: not (rule.rejects_all or rule.ratio > 0))
    return [rule.target for rule in mine]


def outcome_of(
    view: DatabaseSnapshot,
    applied: Applied,
    terms: GateTerms,
    basis: GateBasis,
    health_part: Callable[[], GatePart] | None,
) -> GateOutcome:
    """What the relay is to do with a client to which these rules apply. `health_part`: what health
    says of it; None: the gate is not for it."""
    rule = _rule_part(applied, terms, basis)
    if rule.ratio >= 1.0:
        return GateOutcome(_ruled(rule, terms, applied, basis), rule)
    if health_part is None:
        exempt = applied.exempt is not None and not applied.exempt.metrics and not rule.ratio
        return GateOutcome(replace(_ruled(rule, terms, applied, basis), exempt=exempt), rule)
    health = health_part() if basis.is_fresh else UNKNOWN
    if not health.known and rule.ratio:
        # Rules outlive the agent: what is lost is health alone.
        return GateOutcome(_ruled(_with_loss(rule, terms), terms, applied, basis), rule, health)
    gate = _gated(compose(rule, health), terms, basis, known=health.known)
    exempt = _exempts(applied, terms, view)
    return GateOutcome(
        replace(
            gate,
            exempt=exempt and not rule.ratio and not health.ratio,
            paced=basis.paced and not exempt,
        ),
        rule,
        health,
    )


class GateBasis(NamedTuple):
    """When, and by how much of what is known."""

    now: Instant
    """The snapshot's: rules end by the agent's time of day."""
    by: Instant
    """The same, but no later than the values in it hold: what looks stale in a copy may have been
    read again where it was copied from. If it has not, its agent says so; if that is gone, the
    gate is not known any more (`known_until_s`)."""
    wall_s: float
    """Our own, for the relay."""
    known_until_s: float
    """Of the clock in `now`: so long the snapshot's health is believed."""
    paced: bool
    """Whether there is a control loop."""

    @property
    def is_fresh(self) -> bool:
        return self.now.mono_s < self.known_until_s

    def until_ms(self, mono_s: float) -> int:
        return int((self.wall_s + mono_s - self.now.mono_s) * 1000)


def _rule_part(applied: Applied, terms: GateTerms, basis: GateBasis) -> GatePart:
    rule = applied.reject
    if rule is None or (rule.ratio <= 0 and not rule.rejects_all):
        return NOTHING
    held = rule.rejects_all
    left_s = max(0.0, rule.ends_at(basis.now.wall_s) - basis.now.wall_s)
    # When it is over, and not before; nobody knows when one without an end is.
    held_retry_s = 0.0 if left_s == FOREVER else max(MIN_RETRY_S, left_s)
    return GatePart(
        ratio=1.0 if held else rule.ratio,
        act=terms.rule_action,
        cause=ActCause.RULE,
        # An operator's word is not got round by a tag that the client writes.
        ignores_priority=True,
        reason=_rule_reason(rule, basis.now.wall_s),
        retry_s=held_retry_s if held else 1.0,
        delay_s=0.0 if held else terms.rule_delay_s,
        verdict=Verdict.ON_HOLD if held else Verdict.REJECTED_BY_RATIO,
        by=f"{RULE}{rule.id}",
    )


def _rule_reason(rule: Rule, wall_s: float) -> str:
    ends_at = rule.ends_at(wall_s)
    left = "" if ends_at == FOREVER else f" for another {duration(max(0.0, ends_at - wall_s))}"
    return throttles(rule, left)


class _Unrejected(RuleBook):
    """What rules make of a client, without those that throttle: these are the other part."""

    def __init__(self, applied: Applied) -> None:
        super().__init__()
        self._applied = applied._replace(reject=None)

    def applied(self, identity: Identity, database: str, wall_s: float) -> Applied:
        return self._applied


def judged_part(
    health: Health, applied: Applied, check: Check, terms: GateTerms, basis: GateBasis
) -> GatePart:
    """As the agent decides, but for the dice, which are the relay's."""
    book = _Unrejected(applied)
    decision = decide(check, health, book, now=basis.by, roll=ALMOST_ONE)
    verdict = decision.verdict
    if verdict is not Verdict.OK and not _is_known_bad(decision):
        # Never read, hibernating, or the wrong agent: nothing is known.
        return UNKNOWN._replace(reason=reason_of(decision))
    load = load_of(decision)
    if verdict is not Verdict.OK:
        # Debounced, or without a value: enough for an agent to reject.
        load = max(load, 1.0)
    hard = terms.hard_limit is not None and load > terms.hard_limit
    ratio = 1.0 if hard else min(1.0, max(0.0, graded(terms.bands, load)))
    if not ratio:
        return NOTHING
    # A band below the threshold: no obstacle to an agent, and so without its words.
    near = f"{check.database}: {_nearest(decision)} is at {load:.0%} of its threshold"
    return GatePart(
        ratio=ratio,
        act=terms.action if terms.mode is GateMode.ENFORCE else Act.WARN,
        cause=ActCause.HEALTH,
        ignores_priority=hard,
        reason=reason_of(decision) or near,
        retry_s=max(MIN_RETRY_S, (decision.retry_after_s or 1.0) / (1 + ALMOST_ONE)),
        verdict=Verdict.THRESHOLD_EXCEEDED if verdict is Verdict.OK else verdict,
        by=decided_by(decision) or _nearest(decision),
    )


def _is_known_bad(decision: Decision) -> bool:
    if decision.verdict is Verdict.METRIC_UNAVAILABLE:
        return any(finding.cause not in NOT_COLLECTED for finding in decision.failing)
    return decision.verdict is Verdict.THRESHOLD_EXCEEDED


def load_of(decision: Decision) -> float:
    """The worst of the metrics that count for this client, as a share of its threshold."""
    shares = (
        (finding.value, finding.threshold)
        for finding in findings(decision)
        if finding.state is not State.EXEMPTED
    )
    return max((_share(value, threshold) for value, threshold in shares), default=0.0)


def _share(value: float | None, threshold: float | None) -> float:
    if value is None or threshold is None:
        return 0.0
    return value / threshold if threshold > 0 else value


def _nearest(decision: Decision) -> str:
    found = max(findings(decision), key=lambda f: _share(f.value, f.threshold), default=None)
    return "" if found is None else str(found.ref)


def compose(rule: GatePart, health: GatePart) -> GatePart:
    """One ratio of both: what the rule's dice admit is still up to health. The larger share
    gives the reason; of two actions that are really taken, the milder one is."""
    if not health.ratio or (rule.ratio and health.act is Act.WARN):
        return rule
    if not rule.ratio or rule.act is Act.WARN:
        return health
    larger, other = (rule, health) if rule.ratio >= health.ratio else (health, rule)
    act = min(rule.act, health.act, key=_STRENGTH.index)
    delays = [part.delay_s for part in (rule, health) if part.act is Act.DELAY]
    return larger._replace(
        ratio=1.0 - (1.0 - rule.ratio) * (1.0 - health.ratio),
        act=act,
        delay_s=min(delays, default=0.0),
        retry_s=max(larger.retry_s, other.retry_s),
    )


def _with_loss(rule: GatePart, terms: GateTerms) -> GatePart:
    """Nobody knows the health of a client that a rule is on as well."""
    if terms.on_loss in (Act.PASS, Act.WARN) or terms.mode is not GateMode.ENFORCE:
        return rule
    lost = GatePart(1.0, terms.on_loss, ActCause.LOSS, False, "the health is not known", 1.0)
    return compose(rule, lost)


def _ruled(part: GatePart, terms: GateTerms, applied: Applied, basis: GateBasis) -> ClientGate:
    """By rules alone: known for as long as they are in force, whatever becomes of the agent."""
    if not part.ratio:
        return ClientGate()
    until_ms = None
    if applied.until != FOREVER:
        left_s = applied.until - basis.now.wall_s + RULE_MARGIN_S
        until_ms = basis.until_ms(basis.now.mono_s + left_s)
    return replace(_acting(part, terms), until_ms=until_ms)


def _gated(part: GatePart, terms: GateTerms, basis: GateBasis, *, known: bool) -> ClientGate:
    until_s = basis.known_until_s
    until_ms = basis.until_ms(until_s if known else min(until_s, basis.now.mono_s))
    # A rule is about every statement; only where health alone acts may reads be left out.
    alone = part.cause is not ActCause.RULE and terms.statements is GatedStatements.WRITES
    return replace(_acting(part, terms), until_ms=until_ms, writes_only=alone)


def _acting(part: GatePart, terms: GateTerms) -> ClientGate:
    return ClientGate(
        act=part.act if part.ratio else Act.PASS,
        ratio=part.ratio,
        ignores_priority=part.ignores_priority,
        cause=part.cause,
        max_delay_s=terms.max_delay_s,
        max_delayed=terms.max_delayed,
        delay_s=part.delay_s,
        retry_s=part.retry_s,
        reason=part.reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"),
    )


def _exempts(applied: Applied, terms: GateTerms, view: DatabaseSnapshot) -> bool:
    """Whether an exemption covers all metrics and pacing that would apply to the client."""
    rule = applied.exempt
    if rule is None:
        return False
    judged = terms.metrics or [s.spec.name for s in view.health.default.standings]
    return not rule.metrics or all(name in rule.metrics for name in judged)


# --- all of them -------------------------------------------------------------------------------

GroupKey = tuple[object, ...]


def _group_key(applied: Applied, gated: bool) -> GroupKey:
    """Two clients with the same key have the same gate, whatever their names."""
    if applied is UNRULED:
        return (gated,)
    return (
        gated,
        applied.reject.id if applied.reject else "",
        applied.exempt.id if applied.exempt else "",
        tuple(rule.id for rule in applied.metrics),
        tuple((name, rule.id) for name, rule in applied.thresholds.items()),
        applied.until,
    )


class _GateGroup:
    __slots__ = ("applied", "gated", "health_key", "identity", "members", "outcome", "put_at")

    def __init__(self, applied: Applied, gated: bool, identity: Identity) -> None:
        self.applied = applied
        self.gated = gated
        # Clients with this key get the same decision by health, whatever the dice: hundreds of
        # ratio rules make hundreds of groups, and one decision.
        self.health_key = _group_key(applied._replace(reject=None, until=0.0), True)
        self.identity = identity
        self.members: dict[int, ClientKey] = {}
        self.outcome: GateOutcome | None = None
        self.put_at = -math.inf


class GateLevels:
    """Names that rules and settings have a word on, with their places in the relay's table."""

    def __init__(self, relay: Relay, on_placed: Callable[[ClientKey], None]) -> None:
        self._relay = relay
        self._on_placed = on_placed
        self.placed: dict[str, ClientKey] = {}
        self.unplaced: list[str] = []

    async def place(self, wanted: Sequence[str]) -> None:
        for name in set(self.placed).difference(wanted):
            self._relay.clients.leave(self.placed.pop(name))
        unplaced = []
        for number, name in enumerate(wanted):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if name in self.placed:
                continue
            if (client := self._relay.clients.enter(name)) is None:
                unplaced.append(name)
            else:
                self.placed[name] = client
                self._on_placed(client)
        if unplaced and not self.unplaced:
            log.warning("gates.no_place", names=len(unplaced), first=unplaced[0])
        self.unplaced = unplaced


class GateGroups:
    """Clients, grouped by the rules that apply to them."""

    def __init__(self) -> None:
        self.clients: dict[int, tuple[ClientKey, Identity]] = {}
        """By their places in the relay's table, which bound their number."""
        self._groups: dict[GroupKey, _GateGroup] = {}
        self.group_of: dict[int, _GateGroup] = {}

    def __iter__(self) -> Iterator[_GateGroup]:
        return iter(list(self._groups.values()))

    def meet(self, client: ClientKey) -> Identity:
        known = self.clients.get(client.index)
        if known is not None and known[0].key == client.key:
            return known[1]
        try:
            identity = parse_identity(client.identity)
        except InvalidName:
            # The relay keeps to the grammar; an invalid name is an identity of its own.
            log.warning("gates.odd_name", client=ascii(client.identity)[:80])
            identity = Identity("unidentified", ("unidentified",))
        self.clients[client.index] = (client, identity)
        return identity

    def place(
        self, client: ClientKey, identity: Identity, applied: Applied, gated: bool
    ) -> _GateGroup:
        key = _group_key(applied, gated)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _GateGroup(applied, gated, identity)
        before = self.group_of.get(client.index)
        if before is not None and before is not group:
            before.members.pop(client.index, None)
        group.members[client.index] = client
        self.group_of[client.index] = group
        return group

    def dissolve(self) -> None:
        """A group without a decision is put to each of its members."""
        self._groups = {}


class GateJudge:
    """Works out the gate of a group, by the last snapshot."""

    def __init__(
        self,
        database: str,
        clock: Clock,
        now_s: Callable[[], float],
        terms: GateTerms,
        *,
        paced: bool,
    ) -> None:
        self._database = database
        self._clock = clock
        self._now_s = now_s
        self.terms = terms
        self.paced = paced
        self.snapshot: Snapshot | None = None
        self._judged: dict[GroupKey, GatePart] = {}
        """By health, in this refresh."""
        self._shape: object = None
        self._shape_at = -math.inf
        """What health came to when all groups were last looked at, and when."""

    def hear(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._judged.clear()

    @property
    def heard(self) -> Snapshot:
        assert self.snapshot is not None
        return self.snapshot

    @property
    def wall_s(self) -> float:
        """By the agent's time of day: rules end by it."""
        return self.heard.now(self._now_s()).wall_s

    @property
    def known_until_s(self) -> float:
        return self.heard.sent_s + self.terms.stale_after_s

    def is_gated(self, identity: Identity) -> bool:
        return self.terms.mode is not GateMode.OFF and meant(self.terms.clients, identity)

    def applied(self, identity: Identity) -> Applied:
        return self.heard.view.rules.applied(identity, self._database, self.wall_s)

    def named(self) -> list[str]:
        """What rules and settings call the clients that they are for."""
        gated = () if self.terms.mode is GateMode.OFF else self.terms.clients
        if self.snapshot is None:
            return list(gated)
        rules = self.snapshot.view.rules.rules
        return [*gated, *_acting_first(rules, self._database, self.wall_s)]

    def news_matter(self, groups: Iterable[_GateGroup]) -> bool:
        """Readings that change nothing but the words: those are put once a second."""
        self._judged.clear()
        basis = self._basis()
        gated = {g.health_key: g for g in groups if g.gated}
        parts = {key: self._health_part(group, basis) for key, group in gated.items()}
        verdicts = {key: part._replace(reason="", retry_s=0.0) for key, part in parts.items()}
        shape = (basis.is_fresh, verdicts)
        if shape == self._shape and basis.now.mono_s - self._shape_at < REASON_EVERY_S:
            return False
        self._shape, self._shape_at = shape, basis.now.mono_s
        return True

    def judge(self, group: _GateGroup, *, afresh: bool = False) -> bool:
        """Work the gate out; whether it is to be put. `afresh`: by health as it is now."""
        if afresh:
            self._judged.clear()
        basis = self._basis()
        found = outcome_of(
            self.heard.view, group.applied, self.terms, basis,
            partial(self._health_part, group, basis) if group.gated else None,
        )  # fmt: skip
        before, group.outcome = group.outcome, found
        if before is None or self._is_due(before.gate, found.gate, group.put_at, basis):
            group.put_at = basis.now.mono_s
            return True
        # What the relay has is the one of before: the next comparison is with that.
        group.outcome = found._replace(gate=before.gate)
        return False

    def _health_part(self, group: _GateGroup, basis: GateBasis) -> GatePart:
        known = self._judged.get(group.health_key)
        if known is None:
            refs = tuple(MetricRef(name) for name in self.terms.metrics)
            check = Check(group.identity, self._database, refs)
            health = self.heard.view.health
            known = judged_part(health, group.applied, check, self.terms, basis)
            self._judged[group.health_key] = known
        return known

    def _is_due(
        self, before: ClientGate, gate: ClientGate, put_at: float, basis: GateBasis
    ) -> bool:
        same = replace(gate, until_ms=before.until_ms, reason=before.reason, retry_s=before.retry_s)
        if same != before or (gate.until_ms is None) is not (before.until_ms is None):
            return True
        since_s = basis.now.mono_s - put_at
        if gate.reason != before.reason and since_s >= REASON_EVERY_S:
            return True
        if gate.until_ms is None or before.until_ms is None or gate.until_ms <= before.until_ms:
            return False
        return since_s >= EXTEND_WITHIN * self.terms.stale_after_s

    def _basis(self) -> GateBasis:
        snapshot, now = self.heard, self.heard.now(self._now_s())
        holds_until_s = max(snapshot.sent_s, snapshot.current_until_s)
        by = now._replace(mono_s=min(now.mono_s, holds_until_s))
        return GateBasis(now, by, self._clock.now().wall_s, self.known_until_s, self.paced)


class Gates:
    name = "gates"

    def __init__(
        self,
        relay: Relay,
        database: str,
        clock: Clock,
        now_s: Callable[[], float],
        terms: GateTerms = NO_GATE,
        *,
        paced: bool = False,
    ) -> None:
        """`database`: what the agents call it. `now_s`: the clock that snapshots are dated by."""
        self._relay = relay
        self._clock = clock
        self._now_s = now_s
        self._judge = GateJudge(database, clock, now_s, terms, paced=paced)
        self._levels = GateLevels(relay, self.client_seen)
        self._groups = GateGroups()
        self._acted: dict[int, tuple[int, GateOutcome]] = {}
        """Of those that anything was ever done to, the last."""
        self._regroup = True
        self._news = asyncio.Event()
        self.put_total = 0
        self.longest_slice_s = 0.0

    # --- called from outside, return at once -----------------------------------------------

    def adopt(self, terms: GateTerms, *, paced: bool) -> None:
        """Other settings."""
        self._judge.terms, self._judge.paced = terms, paced
        self._put_lost()
        self._stir_all()

    def _put_lost(self) -> None:
        """A gate that only warns does not start to block because no agent reports."""
        terms = self._judge.terms
        self._relay.clients.put_lost(terms.on_loss if terms.mode is GateMode.ENFORCE else Act.PASS)

    def hear(self, snapshot: Snapshot) -> None:
        before = self._judge.snapshot
        self._judge.hear(snapshot)
        if before is None or before.view.rules is not snapshot.view.rules:
            self._stir_all()
        else:
            self._news.set()

    def client_seen(self, client: ClientKey) -> None:
        """Decide here and now: its first statement may be the one that matters."""
        identity = self._groups.meet(client)
        if self._judge.snapshot is None:
            # Before any agent has reported: not known, where health is to decide.
            until_ms = int(self._clock.now().wall_s * 1000)
            gated = self._judge.is_gated(identity)
            self._relay.clients.put_gate(client, ClientGate(until_ms=until_ms if gated else None))
            return
        group = self._place(client, identity)
        if group.outcome is None:
            self._judge.judge(group, afresh=True)
        # As its like have it; what is newer than that comes to all of them by the next refresh.
        self._put(group, [client])

    def met(self, counts: Sequence[ClientCounts]) -> None:
        """All clients, as a look at the table shows them: events can be lost."""
        heard = self._judge.snapshot is not None
        for count in counts:
            client, known = count.client, self._groups.clients.get(count.client.index)
            if not heard and count.told:
                continue  # Set by a process before this one: it holds until an agent reports.
            is_level = self._levels.placed.get(client.identity) == client
            if count.kept and heard and not is_level and not self._regroup:
                # A name that a process before this one has kept, and no rule speaks of any more.
                self._relay.clients.leave(client)
            if known is None or known[0].key != client.key or not count.told:
                self.client_seen(client)

    def explained(self, client: ClientKey) -> GateOutcome:
        """What is being done to it, and why; where nothing is, what was done last: a report is
        about the second that has passed."""
        group = self._groups.group_of.get(client.index)
        now = group.outcome or FREE if group is not None else FREE
        key, acted = self._acted.get(client.index, (client.key, FREE))
        if key != client.key:
            return now
        return now._replace(
            rule=now.rule if now.rule.by else acted.rule,
            health=now.health if now.health.by else acted.health,
        )

    def _stir_all(self) -> None:
        self._regroup = True
        self._news.set()

    # --- the loop --------------------------------------------------------------------------

    async def run(self) -> None:
        self._put_lost()
        while True:
            await self.refresh()
            await self._wait()

    async def _wait(self) -> None:
        """For news, or until the next rule begins or ends, or a gate is to be put again."""
        waiting = asyncio.ensure_future(self._news.wait())
        sleeping = asyncio.ensure_future(self._clock.sleep(self._next_s()))
        try:
            await asyncio.wait((waiting, sleeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            sleeping.cancel()

    def _next_s(self) -> float:
        if self._judge.snapshot is None:
            return LONGEST_WAIT_S
        wall_s = self._judge.wall_s
        due = [group.applied.until - wall_s for group in self._groups]
        due.append(self._judge.known_until_s - self._now_s())
        # A little later: what is due then is over then, by whichever clock.
        return min([LONGEST_WAIT_S, *(left_s + 0.001 for left_s in due if left_s > 0)])

    async def refresh(self) -> None:
        self._news.clear()
        if self._regroup or self._levels.unplaced:
            # Before the clients themselves: they decide for new clients.
            await self._levels.place(levels_of(self._judge.named()))
        if self._judge.snapshot is None:
            return
        wall_s = self._judge.wall_s
        if self._regroup or any(group.applied.until <= wall_s for group in self._groups):
            self._regroup = False
            self._groups.dissolve()
            for number, (client, identity) in enumerate(list(self._groups.clients.values())):
                if number % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                self._place(client, identity)
        elif not self._judge.news_matter(self._groups):
            return
        changed, slice_began_s = False, self._now_s()
        for group in self._groups:
            changed |= await self._look(group)
            if self._now_s() - slice_began_s > SLICE_S:
                await asyncio.sleep(0)
                slice_began_s = self._now_s()
        if changed:
            self._relay.stir()

    async def _look(self, group: _GateGroup) -> bool:
        """Whether anything was put."""
        if not self._judge.judge(group):
            return False
        members = list(group.members.values())
        for first in range(0, len(members), SLICE):
            self._put(group, members[first : first + SLICE])
            if first + SLICE < len(members):
                await asyncio.sleep(0)
        return True

    def _place(self, client: ClientKey, identity: Identity) -> _GateGroup:
        judge = self._judge
        return self._groups.place(
            client, identity, judge.applied(identity), judge.is_gated(identity)
        )

    def _put(self, group: _GateGroup, members: Sequence[ClientKey]) -> None:
        assert group.outcome is not None
        gate, began_s = group.outcome.gate, self._now_s()
        for client in members:
            self._relay.clients.put_gate(client, gate)
            if gate.ratio:
                self._acted[client.index] = (client.key, group.outcome)
        self.put_total += len(members)
        self.longest_slice_s = max(self.longest_slice_s, self._now_s() - began_s)

    # --- state -----------------------------------------------------------------------------

    def state(self) -> PartState:
        groups = [group for group in self._groups if group.members]
        acting = [group for group in groups if group.outcome and group.outcome.gate.ratio > 0]
        clients, known = sum(len(group.members) for group in acting), self._groups.clients
        gated = [group for group in groups if group.gated]
        unknown = next((g.outcome for g in gated if g.outcome and not g.outcome.health.known), None)
        why = f"; the health is not known: {unknown.health.reason}" if unknown else ""
        if unplaced := self._levels.unplaced:
            why += (
                f"; {len(unplaced)} names in rules have no place in the table of "
                "clients: raise memory.clients"
            )
        count = sum(self._judge.is_gated(identity) for _, identity in known.values())
        summary = (
            f"{len(known)} clients, {count} of them under the health gate "
            f"({self._judge.terms.mode.value}); {clients} acted upon now{why}"
        )
        figures: dict[str, float | int | str | None] = {
            "clients": len(known),
            "gated": count,
            "acted_upon": clients,
            "groups": len(groups),
            "levels": len(self._levels.placed),
            "levels_unplaced": len(self._levels.unplaced),
            "gates_put_total": self.put_total,
            "longest_slice_ms": round(self.longest_slice_s * 1000, 3),
        }
        return PartState(self.name, unknown is None, summary, figures=figures)

    async def close(self) -> None:
        return None
