"""A proxy, put together from settings.

    ProxySettings ──assemble──► ProxyParts: relay, process, the directory's watcher
                  ──mind_of──► Mind: agents, gates, release, targets, policy, plans, reports

What agents say is shared by all processes on one memory; where sessions go is each relay's own.
For new settings a new Mind is made, of the old one's parts where these can follow (`take_effect`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headgate.base.advice import Severity
from headgate.base.ports import Clock, PolicySink
from headgate.budgets.advice import advise
from headgate.budgets.compiled import compile_policy
from headgate.budgets.model import Dialect
from headgate.budgets.native.region import PatternView
from headgate.budgets.pgext.directory import head_of, health_of
from headgate.budgets.pgext.meter import RegionMeter
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.policy import Policy
from headgate.budgets.readings import BudgetReadings, Published
from headgate.errors import Fault, InvalidSettings, MeterFailed, PolicyRejected
from headgate.proxy.agents import AgentLink, Agents
from headgate.proxy.dialling import AgentDialling
from headgate.proxy.directory import DirectoryWatcher, HealthTold
from headgate.proxy.gates import Gates
from headgate.proxy.layout import EVENT_BLOCKED
from headgate.proxy.model import Protocol, ReleaseKind
from headgate.proxy.plans import Plans
from headgate.proxy.policylink import PolicyFile, PolicyLink
from headgate.proxy.ports import (
    ActCause,
    ClientGate,
    Part,
    PartState,
    PolicyTaker,
    RelayWatcher,
    Release,
)
from headgate.proxy.process import Process, Slowlog, SlowlogTerms
from headgate.proxy.relay import NativeRelay, RelayEvent
from headgate.proxy.release import Pacing
from headgate.proxy.reports import Reports
from headgate.proxy.status import ProxyReadings
from headgate.proxy.targets import FixedTargets, FollowedTargets
from headgate.settings.document import first_line, load_policy
from headgate.settings.proxy import AgentLinkSettings, ProxySettings
from headgate.shard.peers import load_access

MEET_S = 1.0
_DIALECTS = {Protocol.POSTGRES: Dialect.POSTGRES, Protocol.MYSQL: Dialect.MYSQL}


class DirectoryTaker:
    """The PolicyTaker: into the directory, as an agent beside it would, and in force at once.

    So the last policy lies there for the next start, even if the agent is away then; and what was
    switched off (`headgate pg disable --directory`) stays off.
    """

    def __init__(self, sink: PolicySink, watcher: DirectoryWatcher) -> None:
        self._sink = sink
        self._watcher = watcher

    async def take(self, policy: Policy, revision: int, source: str) -> Published:
        lying = await self._sink.look()
        content = head_of(compile_policy(policy, 0))
        assert content is not None
        if lying is not None and lying.content == content.content:
            self._watcher.look_now()
            return Published(lying.version, lying.checksum, 0, lying.off, lying.content)
        published = await self._sink.publish(policy, revision)
        self._watcher.look_now()
        if self._watcher.rejection:
            raise PolicyRejected(self._watcher.rejection)
        return published


class ClientLook:
    """Where nothing is reported to an agent: events can be lost, so gates look at all clients."""

    name = "clients"

    def __init__(self, relay: NativeRelay, gates: Gates, clock: Clock) -> None:
        self._relay = relay
        self._gates = gates
        self._clock = clock

    async def run(self) -> None:
        while True:
            self._gates.met(self._relay.clients.all())
            await self._clock.sleep(MEET_S)

    def state(self) -> PartState:
        return PartState(self.name, True, "decisions are not reported to the agent")

    async def close(self) -> None:
        return None


@dataclass(slots=True)
class ProxyContext:
    """What parts work with, whatever the settings."""

    relay: NativeRelay
    clock: Clock
    taker: PolicyTaker
    directory: Path
    patterns: Callable[[], Sequence[PatternView]]
    ours: Callable[[], bool] = lambda: True
    """Whether this process reports the memory's counters: false until the process before has
    handed them over."""


@dataclass(frozen=True, slots=True)
class ProxyParts:
    """What stays as it is for as long as the process runs."""

    relay: NativeRelay
    process: Process
    watcher: DirectoryWatcher
    context: ProxyContext
    meter: RegionMeter

    async def adopt(self, mind: Mind) -> None:
        mind.take_effect()
        self.process.listen(mind.watchers, mind.told)
        await self.process.adopt([self.watcher, *mind.shared], mind.own)

    async def seen(self) -> ProxyReadings:
        relay, slowlog = self.relay, self.process.slowlog
        readings, fault = await self._readings()
        state = relay.memory.state
        now = self.context.clock.now()
        return ProxyReadings(
            now_s=now.mono_s,
            wall_ms=int(now.wall_s * 1000),
            clients=relay.clients.all(),
            threads=relay.thread_counts(),
            parts=self.process.states(),
            targets=relay.targets.targets,
            readings=readings,
            readings_fault=fault,
            clients_full=int(state.clients_full),
            statements_full=int(state.runnings_full),
            released=relay.released(),
            slowlog={"written": slowlog.lines, "left_out": slowlog.suppressed},
            slowlog_fault=slowlog.fault,
            policy_rejection=self.watcher.rejection,
        )

    async def _readings(self) -> tuple[BudgetReadings | None, str]:
        try:
            return await self.meter.read(), ""
        except MeterFailed as error:
            return None, str(error)


def assemble(
    settings: ProxySettings, relay: NativeRelay, clock: Clock, ours: Callable[[], bool]
) -> ProxyParts:
    """`ours`: see ProxyContext."""

    def client_name(index: int) -> str:
        found = relay.clients.get(index)
        return found.client.identity if found else "unidentified"

    watcher = DirectoryWatcher(settings.directory, relay, _health_told)
    sink = FilePolicySink(settings.directory, clock)
    context = ProxyContext(
        relay,
        clock,
        DirectoryTaker(sink, watcher),
        settings.directory,
        relay.memory.region.patterns,
        ours,
    )
    slowlog = Slowlog(
        slowlog_terms(settings), _DIALECTS[settings.relay.protocol], clock, client_name
    )
    return ProxyParts(
        relay, Process(relay, slowlog, clock), watcher, context, RegionMeter(settings.directory)
    )


def _health_told(body: bytes) -> HealthTold | None:
    found = health_of(body)
    return None if found is None else HealthTold(*found)


def slowlog_terms(settings: ProxySettings) -> SlowlogTerms:
    told = settings.slowlog
    return SlowlogTerms(told.path, told.min_delay_s, told.warnings, told.per_s)


@dataclass(frozen=True, slots=True)
class FollowedAgents:
    """What follows the agents; goes on as long as these are the same."""

    agents: Agents
    link: AgentLink
    gates: Gates
    pacing: Pacing
    reports: Reports | ClientLook


@dataclass(slots=True)
class Mind:
    """The parts for some settings; nothing runs yet."""

    settings: ProxySettings
    shared: list[Part] = field(default_factory=list)
    own: list[Part] = field(default_factory=list)
    watchers: list[RelayWatcher] = field(default_factory=list)
    told: list[Callable[[RelayEvent], None]] = field(default_factory=list)
    voice: FollowedAgents | None = None
    targets: FixedTargets | FollowedTargets | None = None
    policy_file: PolicyFile | None = None
    changes: list[Callable[[], None]] = field(default_factory=list)

    def hand_over(self) -> None:
        """Another process goes on with the memory."""
        if self.voice is not None and isinstance(self.voice.reports, Reports):
            self.voice.reports.hand_over()

    def take_effect(self) -> None:
        """Notify parts of the old mind, once it is certain that this one replaces it."""
        for change in self.changes:
            change()


def check_files(settings: ProxySettings) -> None:
    """Every file that the settings name can be read; InvalidSettings with all that cannot."""
    named = [
        *((f"listen.{i}.tls_cert", one.cert) for i, one in enumerate(settings.listen)),
        *((f"listen.{i}.tls_key", one.key) for i, one in enumerate(settings.listen)),
        *((f"listen.{i}.tls_client_ca", one.ca) for i, one in enumerate(settings.listen)),
    ]
    for index, server in enumerate(settings.servers):
        tls = server.tls
        where = f"server.{index}.tls_"
        named += [(where + "ca", tls.ca), (where + "cert", tls.cert), (where + "key", tls.key)]
    if settings.policy.file is not None:
        policy_of(settings.policy.file)
    faults = [Fault(where, _unreadable(path)) for where, path in named if path]
    faults += [Fault("proxy.directory", _no_directory(settings.directory))]
    if settings.slowlog.path is not None:
        faults.append(Fault("slowlog.path", _unwritable(settings.slowlog.path)))
    if settings.plans is not None:
        faults.append(Fault("plans.dsn", _no_conninfo(settings.plans.terms.dsn)))
    found = [fault for fault in faults if fault.message]
    if found:
        raise InvalidSettings(found)


def _unreadable(path: str) -> str:
    try:
        with Path(path).open("rb"):
            return ""
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"


def _no_directory(path: Path) -> str:
    """Where nothing is yet, the start makes one."""
    return f"{path} is no directory" if path.exists() and not path.is_dir() else ""


def _unwritable(path: Path) -> str:
    if not path.parent.is_dir():
        return f"{path.parent} does not exist: create it, writable by the proxy's user"
    return f"{path} is a directory, must be a file" if path.is_dir() else ""


def _no_conninfo(dsn: str) -> str:
    from psycopg import ProgrammingError  # here: an extra of its own
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(dsn)
    except ProgrammingError as error:
        # libpq's words name the keyword, and none of the values.
        return f"is no connection string: {str(error).strip()}"
    return ""


def policy_of(path: Path) -> Policy:
    policy = load_policy(path)
    rejected = [Fault(a.place, a.message) for a in advise(policy) if a.severity is Severity.ERROR]
    if rejected:
        raise InvalidSettings(rejected, str(path))
    return policy


def mind_of(settings: ProxySettings, around: ProxyContext, before: Mind | None = None) -> Mind:
    """InvalidSettings for what only building the parts can tell. Changes nothing yet."""
    mind = Mind(settings)
    if settings.agent is None:
        mind.changes.append(lambda: _forget_agents(around.relay))
    else:
        mind.voice = _voice(settings.agent, mind, around, before)
        _add_voice(mind.voice, mind)
    _add_policy(mind, around)
    _add_plans(mind, around)
    mind.targets = _targets(mind, around, before)
    mind.own.append(mind.targets)
    return mind


def _agents(settings: AgentLinkSettings) -> Agents:
    access = load_access(token_file=settings.token_file, ca=None, cert=None, key=None)
    dialling = AgentDialling(
        settings.urls,
        token=access.token,
        ca=settings.ca,
        cert=settings.cert,
        key=settings.key,
    )
    return Agents(dialling, settings.urls, settings.database)


def _voice(
    settings: AgentLinkSettings, mind: Mind, around: ProxyContext, before: Mind | None
) -> FollowedAgents:
    gate, release = mind.settings.gate, mind.settings.release
    paced = release.kind is not ReleaseKind.OFF
    if before is not None and before.voice is not None and before.settings.agent == settings:
        kept = before.voice
        mind.changes.append(lambda: kept.gates.adopt(gate, paced=paced))
        mind.changes.append(lambda: kept.pacing.adopt(release, gate))
        return kept
    relay, clock, agents = around.relay, around.clock, _agents(settings)
    gates = Gates(relay, settings.database, clock, agents.now_s, gate, paced=paced)
    pacing = Pacing(relay, release, gate, clock, agents.now_s)
    link = AgentLink(agents, relay, clock, [gates, pacing])
    reports = (
        Reports(relay, agents, clock, gates.explained, gates.met, ours=around.ours)
        if settings.report
        else ClientLook(relay, gates, clock)
    )
    return FollowedAgents(agents, link, gates, pacing, reports)


def _add_voice(voice: FollowedAgents, mind: Mind) -> None:
    mind.watchers.append(_GateWatcher(voice.gates))
    mind.shared += [voice.link, voice.gates, voice.pacing]
    reports = voice.reports
    # What this process has taken to tell it tells to the end, also after a hand-over.
    (mind.own if isinstance(reports, Reports) else mind.shared).append(reports)
    if isinstance(reports, Reports):
        mind.told.append(lambda event: note_budget(reports, event))


def note_budget(reports: Reports, event: RelayEvent) -> None:
    """Of blocked statements alone: statements with a warning or delay were admitted."""
    if event.kind == EVENT_BLOCKED and event.by is ActCause.BUDGET and event.budget:
        reports.budget_blocked(event.number, event.budget)


def _forget_agents(relay: NativeRelay) -> None:
    """What an agent said to a process before this one: nobody would ever take it back."""
    for counts in relay.clients.all():
        if counts.told:
            relay.clients.put_gate(counts.client, ClientGate())
    relay.put_release(Release())


def _add_policy(mind: Mind, around: ProxyContext) -> None:
    policy = mind.settings.policy
    if policy.file is not None:
        mind.policy_file = PolicyFile(policy.file, policy_of, around.taker, around.clock)
        mind.shared.append(mind.policy_file)
    elif policy.from_agent and mind.voice is not None:
        agents = mind.voice.agents
        mind.shared.append(PolicyLink(agents, around.taker, around.clock, around.directory))


def _add_plans(mind: Mind, around: ProxyContext) -> None:
    plans = mind.settings.plans
    if plans is None:
        return
    from headgate.proxy.plans import PostgresSessions  # here: it needs psycopg

    path, password = plans.password_file, None
    if path is not None:
        password = first_line(path, "plans.password_file", "password")
    terms = replace(plans.terms, password=password, max_known=mind.settings.memory.plans)
    part = Plans(around.relay, terms, PostgresSessions(terms), around.clock, around.patterns)
    mind.shared.append(part)
    mind.watchers.append(part)


def _targets(
    mind: Mind, around: ProxyContext, before: Mind | None
) -> FixedTargets | FollowedTargets:
    settings, there = mind.settings, None if before is None else before.targets
    follow, voice = settings.follow, mind.voice
    if follow is None or voice is None:
        if isinstance(there, FixedTargets):
            mind.changes.append(lambda: there.adopt(settings.servers))
            return there
        return FixedTargets(around.relay, settings.servers, around.clock)
    if isinstance(there, FollowedTargets) and before is not None and before.voice is voice:
        mind.changes.append(lambda: there.adopt(follow))
        return there
    return FollowedTargets(around.relay, voice.agents, follow, around.clock, around.directory)


class _GateWatcher:
    """Tells gates about clients, and not about plans."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self.client_seen = gates.client_seen

    def plan_wanted(self, wanted: object) -> None:
        return None
