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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import structlog

from headgate.base.names import Identity, MetricRef, parse_identity
from headgate.base.ports import Clock
from headgate.check.decide import NOT_COLLECTED, decide, findings
from headgate.check.health import Health
from headgate.check.model import Check, Decision, State, Verdict
from headgate.check.reasons import duration, reason_of, share_of
from headgate.check.snapshot import DatabaseSnapshot
from headgate.check.snapshot_api import Snapshot
from headgate.errors import InvalidName
from headgate.history.recorder import RULE, decided_by
from headgate.metrics.samples import Instant
from headgate.pacing.released import graded
from headgate.proxy.model import Act, GatedStatements, GateMode, GateTerms
from headgate.proxy.ports import ActCause, ClientCounts, ClientGate, ClientKey, PartState, Relay
from headgate.rules.matching import EVERYONE, FOREVER, UNRULED, Applied, Rule, RuleBook

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
    judging: GateBasis,
    health_part: Callable[[], GatePart] | None,
) -> GateOutcome:
    """What the relay is to do with a client to which these rules apply. `health_part`: what health
    says of it; None: the gate is not for it."""
    rule = _rule_part(applied, terms, judging)
    if rule.ratio >= 1.0:
        return GateOutcome(_ruled(rule, terms, applied, judging), rule)
    if health_part is None:
        exempt = applied.exempt is not None and not applied.exempt.metrics and not rule.ratio
        return GateOutcome(replace(_ruled(rule, terms, applied, judging), exempt=exempt), rule)
    health = health_part() if judging.is_fresh else UNKNOWN
    if not health.known and rule.ratio:
        # Rules outlive the agent: what is lost is health alone.
        return GateOutcome(_ruled(_with_loss(rule, terms), terms, applied, judging), rule, health)
    gate = _gated(compose(rule, health), terms, judging, known=health.known)
    exempt = _exempts(applied, terms, view)
    return GateOutcome(
        replace(
            gate,
            exempt=exempt and not rule.ratio and not health.ratio,
            paced=judging.paced and not exempt,
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


def _rule_part(applied: Applied, terms: GateTerms, judging: GateBasis) -> GatePart:
    rule = applied.reject
    if rule is None or (rule.ratio <= 0 and not rule.rejects_all):
        return NOTHING
    held = rule.rejects_all
    left_s = max(0.0, rule.ends_at(judging.now.wall_s) - judging.now.wall_s)
    return GatePart(
        ratio=1.0 if held else rule.ratio,
        act=terms.rule_action,
        cause=ActCause.RULE,
        # An operator's word is not got round by a tag that the client writes.
        ignores_priority=True,
        reason=_rule_reason(rule, judging.now.wall_s),
        retry_s=_held_retry_s(left_s) if held else 1.0,
        delay_s=0.0 if held else terms.rule_delay_s,
        verdict=Verdict.ON_HOLD if held else Verdict.REJECTED_BY_RATIO,
        by=f"{RULE}{rule.id}",
    )


def _held_retry_s(left_s: float) -> float:
    """When it is over, and not before; nobody knows when one without an end is."""
    return 0.0 if left_s == FOREVER else max(MIN_RETRY_S, left_s)


def _rule_reason(rule: Rule, wall_s: float) -> str:
    share = "every statement" if rule.rejects_all else f"{share_of(rule.ratio)} of the statements"
    ends_at = rule.ends_at(wall_s)
    left = "" if ends_at == FOREVER else f" for another {duration(max(0.0, ends_at - wall_s))}"
    by = f", set by {rule.created_by}" if rule.created_by else ""
    why = f": {rule.reason}" if rule.reason else ""
    return f"rule {rule.id} throttles {share} of {rule.target}{left}{by}{why}"


class _Unrejected(RuleBook):
    """What rules make of a client, without those that throttle: these are the other part."""

    def __init__(self, applied: Applied) -> None:
        super().__init__()
        self._applied = applied._replace(reject=None)

    def applied(self, identity: Identity, database: str, wall_s: float) -> Applied:
        return self._applied


def judged_part(
    health: Health, applied: Applied, check: Check, terms: GateTerms, judging: GateBasis
) -> GatePart:
    """As the agent decides, but for the dice, which are the relay's."""
    book = _Unrejected(applied)
    decision = decide(check, health, book, now=judging.by, roll=ALMOST_ONE)
    return _health_part(decision, terms)


def _health_part(decision: Decision, terms: GateTerms) -> GatePart:
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
    return GatePart(
        ratio=ratio,
        act=terms.action if terms.mode is GateMode.ENFORCE else Act.WARN,
        cause=ActCause.HEALTH,
        ignores_priority=hard,
        reason=reason_of(decision) or _near(decision, load),
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


def _near(decision: Decision, load: float) -> str:
    """A band below the threshold: no obstacle to an agent, and so without its words."""
    return f"{decision.check.database}: {_nearest(decision)} is at {load:.0%} of its threshold"


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


def _ruled(part: GatePart, terms: GateTerms, applied: Applied, judging: GateBasis) -> ClientGate:
    """By rules alone: known for as long as they are in force, whatever becomes of the agent."""
    if not part.ratio:
        return ClientGate()
    until_ms = None
    if applied.until != FOREVER:
        left_s = applied.until - judging.now.wall_s + RULE_MARGIN_S
        until_ms = judging.until_ms(judging.now.mono_s + left_s)
    return replace(_acting(part, terms), until_ms=until_ms)


def _gated(part: GatePart, terms: GateTerms, judging: GateBasis, *, known: bool) -> ClientGate:
    until_s = judging.known_until_s
    until_ms = judging.until_ms(until_s if known else min(until_s, judging.now.mono_s))
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
        reason=_cut(part.reason),
    )


def _exempts(applied: Applied, terms: GateTerms, view: DatabaseSnapshot) -> bool:
    """Whether an exemption covers all metrics and pacing that would apply to the client."""
    rule = applied.exempt
    if rule is None:
        return False
    judged = terms.metrics or [s.spec.name for s in view.health.default.standings]
    return not rule.metrics or all(name in rule.metrics for name in judged)


def _cut(text: str) -> str:
    return text.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


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


def _health_key(applied: Applied) -> GroupKey:
    """Clients with this key get the same decision by health, whatever the dice: hundreds of ratio
    rules make hundreds of groups, and one decision."""
    return _group_key(applied._replace(reject=None, until=0.0), True)


class _Group:
    __slots__ = ("applied", "gated", "health_key", "identity", "members", "outcome", "put_at")

    def __init__(self, applied: Applied, gated: bool, identity: Identity) -> None:
        self.applied = applied
        self.gated = gated
        self.health_key = _health_key(applied)
        self.identity = identity
        self.members: dict[int, ClientKey] = {}
        self.outcome: GateOutcome | None = None
        self.put_at = -math.inf


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
        self._database = database
        self._clock = clock
        self._now_s = now_s
        self._terms = terms
        self._paced = paced
        self._refs = tuple(MetricRef(name) for name in terms.metrics)
        self._snapshot: Snapshot | None = None
        self._clients: dict[int, tuple[ClientKey, Identity]] = {}
        """By their places in the relay's table, which bound their number."""
        self._levels: dict[str, ClientKey] = {}
        """Names that rules and settings have a word on, with their places."""
        self._unplaced: list[str] = []
        self._groups: dict[GroupKey, _Group] = {}
        self._group_of: dict[int, _Group] = {}
        self._acted: dict[int, tuple[int, GateOutcome]] = {}
        """Of those that anything was ever done to, the last."""
        self._regroup = True
        self._news = asyncio.Event()
        self._judged: dict[GroupKey, GatePart] = {}
        """By health, in this refresh."""
        self._shape: object = None
        self._shape_at = -math.inf
        """What health came to when all groups were last looked at, and when."""
        self.put_total = 0
        self.longest_slice_s = 0.0

    # --- called from outside, return at once -----------------------------------------------

    def adopt(self, terms: GateTerms, *, paced: bool) -> None:
        """Other settings."""
        self._terms, self._paced = terms, paced
        self._refs = tuple(MetricRef(name) for name in terms.metrics)
        self._relay.put_lost(self._lost)
        self._stir_all()

    @property
    def _lost(self) -> Act:
        """A gate that only warns does not start to block because no agent reports."""
        if self._terms.mode is GateMode.ENFORCE:
            return self._terms.on_loss
        return Act.PASS

    def hear(self, snapshot: Snapshot) -> None:
        before, self._snapshot = self._snapshot, snapshot
        self._judged.clear()
        if before is None or before.view.rules is not snapshot.view.rules:
            self._stir_all()
        else:
            self._news.set()

    def client_seen(self, client: ClientKey) -> None:
        """Decide here and now: its first statement may be the one that matters."""
        identity = self._meet(client)
        if self._snapshot is None:
            self._relay.put_gate(client, self._unheard(identity))
            return
        group = self._place(client, identity)
        if group.outcome is None:
            self._judged.clear()
            self._judge(group)
        # As its like have it; what is newer than that comes to all of them by the next refresh.
        self._put(group, [client])

    def _unheard(self, identity: Identity) -> ClientGate:
        """Before any agent has reported: not known, where health is to decide."""
        if not self._is_gated(identity):
            return ClientGate()
        return ClientGate(until_ms=int(self._clock.now().wall_s * 1000))

    def met(self, counts: Sequence[ClientCounts]) -> None:
        """All clients, as a look at the table shows them: events can be lost."""
        for count in counts:
            known = self._clients.get(count.client.index)
            if self._snapshot is None and count.told:
                continue  # Set by a process before this one: it holds until an agent reports.
            if count.kept and self._snapshot is not None:
                self._let_go(count.client)
            if known is None or known[0].key != count.client.key or not count.told:
                self.client_seen(count.client)

    def explained(self, client: ClientKey) -> GateOutcome:
        """What is being done to it, and why; where nothing is, what was done last: a report is
        about the second that has passed."""
        group = self._group_of.get(client.index)
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
        self._relay.put_lost(self._lost)
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
        if self._snapshot is None:
            return LONGEST_WAIT_S
        now_s = self._now_s()
        wall_s = self._snapshot.now(now_s).wall_s
        due = [group.applied.until - wall_s for group in self._groups.values()]
        due.append(self._known_until_s - now_s)
        # A little later: what is due then is over then, by whichever clock.
        return min([LONGEST_WAIT_S, *(left_s + 0.001 for left_s in due if left_s > 0)])

    async def refresh(self) -> None:
        self._news.clear()
        if self._regroup or self._unplaced:
            await self._enter_levels()
        if self._snapshot is None:
            return
        if self._regroup or self._rule_turned():
            self._regroup = False
            await self._group_all()
        elif not self._news_matter():
            return
        changed, slice_began_s = False, self._now_s()
        for group in list(self._groups.values()):
            changed |= await self._look(group)
            if self._now_s() - slice_began_s > SLICE_S:
                await asyncio.sleep(0)
                slice_began_s = self._now_s()
        if changed:
            self._relay.stir()

    def _news_matter(self) -> bool:
        """Readings that change nothing but the words: those are put once a second."""
        self._judged.clear()
        judging = self._judging()
        groups = {g.health_key: g for g in self._groups.values() if g.gated}
        parts = {key: self._health_part(group, judging) for key, group in groups.items()}
        verdicts = {key: part._replace(reason="", retry_s=0.0) for key, part in parts.items()}
        shape = (judging.is_fresh, verdicts)
        if shape == self._shape and judging.now.mono_s - self._shape_at < REASON_EVERY_S:
            return False
        self._shape, self._shape_at = shape, judging.now.mono_s
        return True

    def _rule_turned(self) -> bool:
        assert self._snapshot is not None
        wall_s = self._snapshot.now(self._now_s()).wall_s
        return any(group.applied.until <= wall_s for group in self._groups.values())

    async def _group_all(self) -> None:
        """Group all clients again: a group without a decision is put to each of its members."""
        self._groups = {}
        for number, (client, identity) in enumerate(list(self._clients.values())):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            self._place(client, identity)

    async def _enter_levels(self) -> None:
        """Before the clients themselves: they decide for new clients."""
        wanted = levels_of(self._named())
        for name in set(self._levels).difference(wanted):
            self._relay.leave(self._levels.pop(name))
        unplaced = []
        for number, name in enumerate(wanted):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if name not in self._levels and not self._enter(name):
                unplaced.append(name)
        if unplaced and not self._unplaced:
            log.warning("gates.no_place", names=len(unplaced), first=unplaced[0])
        self._unplaced = unplaced

    def _enter(self, name: str) -> bool:
        client = self._relay.enter(name)
        if client is None:
            return False
        self._levels[name] = client
        self.client_seen(client)
        return True

    def _named(self) -> list[str]:
        gated = () if self._terms.mode is GateMode.OFF else self._terms.clients
        if self._snapshot is None:
            return list(gated)
        wall_s = self._snapshot.now(self._now_s()).wall_s
        rules = self._snapshot.view.rules.rules
        return [*gated, *_acting_first(rules, self._database, wall_s)]

    def _let_go(self, client: ClientKey) -> None:
        """A name that a process before this one has kept, and no rule speaks of any more."""
        if self._levels.get(client.identity) != client and not self._regroup:
            self._relay.leave(client)

    async def _look(self, group: _Group) -> bool:
        """Whether anything was put."""
        if not self._judge(group):
            return False
        members = list(group.members.values())
        for first in range(0, len(members), SLICE):
            self._put(group, members[first : first + SLICE])
            if first + SLICE < len(members):
                await asyncio.sleep(0)
        return True

    # --- steps -----------------------------------------------------------------------------

    def _meet(self, client: ClientKey) -> Identity:
        known = self._clients.get(client.index)
        if known is not None and known[0].key == client.key:
            return known[1]
        identity = _identity(client.identity)
        self._clients[client.index] = (client, identity)
        return identity

    def _is_gated(self, identity: Identity) -> bool:
        return self._terms.mode is not GateMode.OFF and meant(self._terms.clients, identity)

    def _place(self, client: ClientKey, identity: Identity) -> _Group:
        assert self._snapshot is not None
        rules, wall_s = self._snapshot.view.rules, self._snapshot.now(self._now_s()).wall_s
        applied = rules.applied(identity, self._database, wall_s)
        gated = self._is_gated(identity)
        key = _group_key(applied, gated)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(applied, gated, identity)
        before = self._group_of.get(client.index)
        if before is not None and before is not group:
            before.members.pop(client.index, None)
        group.members[client.index] = client
        self._group_of[client.index] = group
        return group

    def _judge(self, group: _Group) -> bool:
        """Work the gate out; whether it is to be put."""
        judging = self._judging()
        assert self._snapshot is not None
        found = outcome_of(
            self._snapshot.view, group.applied, self._terms, judging,
            partial(self._health_part, group, judging) if group.gated else None,
        )  # fmt: skip
        before, group.outcome = group.outcome, found
        if before is None or self._is_due(before.gate, found.gate, group.put_at, judging):
            group.put_at = judging.now.mono_s
            return True
        # What the relay has is the one of before: the next comparison is with that.
        group.outcome = found._replace(gate=before.gate)
        return False

    def _health_part(self, group: _Group, judging: GateBasis) -> GatePart:
        assert self._snapshot is not None
        known = self._judged.get(group.health_key)
        if known is None:
            check = Check(group.identity, self._database, self._refs)
            health = self._snapshot.view.health
            known = judged_part(health, group.applied, check, self._terms, judging)
            self._judged[group.health_key] = known
        return known

    def _is_due(
        self, before: ClientGate, gate: ClientGate, put_at: float, judging: GateBasis
    ) -> bool:
        same = replace(gate, until_ms=before.until_ms, reason=before.reason, retry_s=before.retry_s)
        if same != before or (gate.until_ms is None) is not (before.until_ms is None):
            return True
        since_s = judging.now.mono_s - put_at
        if gate.reason != before.reason and since_s >= REASON_EVERY_S:
            return True
        if gate.until_ms is None or before.until_ms is None or gate.until_ms <= before.until_ms:
            return False
        return since_s >= EXTEND_WITHIN * self._terms.stale_after_s

    @property
    def _known_until_s(self) -> float:
        assert self._snapshot is not None
        return self._snapshot.sent_s + self._terms.stale_after_s

    def _judging(self) -> GateBasis:
        assert self._snapshot is not None
        snapshot, now = self._snapshot, self._snapshot.now(self._now_s())
        holds_until_s = max(snapshot.sent_s, snapshot.current_until_s)
        by = now._replace(mono_s=min(now.mono_s, holds_until_s))
        return GateBasis(now, by, self._clock.now().wall_s, self._known_until_s, self._paced)

    def _put(self, group: _Group, members: Sequence[ClientKey]) -> None:
        assert group.outcome is not None
        gate, began_s = group.outcome.gate, self._now_s()
        for client in members:
            self._relay.put_gate(client, gate)
            if gate.ratio:
                self._acted[client.index] = (client.key, group.outcome)
        self.put_total += len(members)
        self.longest_slice_s = max(self.longest_slice_s, self._now_s() - began_s)

    # --- state -----------------------------------------------------------------------------

    def state(self) -> PartState:
        groups = [group for group in self._groups.values() if group.members]
        clients = sum(len(group.members) for group in groups if _acts(group))
        gated = [group for group in groups if group.gated]
        unknown = next((g.outcome for g in gated if g.outcome and not g.outcome.health.known), None)
        why = f"; the health is not known: {unknown.health.reason}" if unknown else ""
        if self._unplaced:
            why += (
                f"; {len(self._unplaced)} names in rules have no place in the table of "
                "clients: raise memory.clients"
            )
        count = sum(self._is_gated(identity) for _, identity in self._clients.values())
        summary = (
            f"{len(self._clients)} clients, {count} of them under the health gate "
            f"({self._terms.mode.value}); {clients} acted upon now{why}"
        )
        figures: dict[str, float | int | str | None] = {
            "clients": len(self._clients),
            "gated": count,
            "acted_upon": clients,
            "groups": len(groups),
            "levels": len(self._levels),
            "levels_unplaced": len(self._unplaced),
            "gates_put_total": self.put_total,
            "longest_slice_ms": round(self.longest_slice_s * 1000, 3),
        }
        return PartState(self.name, unknown is None, summary, figures=figures)

    async def close(self) -> None:
        return None


def _acts(group: _Group) -> bool:
    return group.outcome is not None and group.outcome.gate.ratio > 0


def _identity(text: str) -> Identity:
    """The relay keeps to the grammar; an invalid name is an identity of its own."""
    try:
        return parse_identity(text)
    except InvalidName:
        log.warning("gates.odd_name", client=ascii(text)[:80])
        return Identity("unidentified", ("unidentified",))
