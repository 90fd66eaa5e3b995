"""The data path, to Python.   settings, gates, targets ──► NativeRelay ──ctypes──► relay/*.c

Nothing here waits, and no statement waits for it: it writes parameters into shared memory, takes
events out of a ring, and reads counters. One thread calls it: the process's loop.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from ctypes import byref, create_string_buffer, sizeof
from typing import Any, NamedTuple

from headgate.budgets.identity import IdentityTerms, identity_bytes
from headgate.budgets.native.layout import HgIdentity
from headgate.errors import RelayFault
from headgate.proxy.layout import (
    EVENT_CLIENT,
    GATE_EXEMPT,
    GATE_PACED,
    GATE_WRITES_ONLY,
    MAX_TARGET_TLS,
    MAX_TARGETS,
    REASON_BYTES,
    TARGET_PRIMARY,
    TARGET_REPLICA,
    THREAD_COUNTS,
    HrClient,
    HrEvent,
    HrGate,
    HrSessionView,
    HrSettings,
    HrTargets,
    HrTlsSettings,
)
from headgate.proxy.memory import SharedMemory, relay_library
from headgate.proxy.model import (
    PLAIN,
    Act,
    ListenTerms,
    ListenTls,
    Protocol,
    RelayTerms,
    SessionRoute,
    TlsTerms,
)
from headgate.proxy.ports import (
    OTHERS,
    UNIDENTIFIED,
    ActCause,
    ClientCounts,
    ClientGate,
    ClientKey,
    Release,
    Released,
    Reported,
    ServerTarget,
    Targets,
)

ACTS = {act: number for number, act in enumerate(Act)}
_ROUTES = {SessionRoute.READ_WRITE: 0, SessionRoute.READ_ONLY: 1}
_PROTOCOLS = {Protocol.POSTGRES: 0, Protocol.MYSQL: 1}
_LISTEN_TLS = {ListenTls.OFF: 0, ListenTls.ALLOW: 1, ListenTls.REQUIRE: 2}
TARGET_TLS = {"off": 0, "prefer": 1, "require": 2, "verify-ca": 3, "verify-full": 4}
_NAMES = {UNIDENTIFIED: "unidentified", OTHERS: "others"}
_KEY = struct.Struct("=Q")
_MOVING_KEY = 2**64 - 1
"""A place that is just being given to another client."""
_ERROR_BYTES = 512
_MOST_NS = 2**62
_SESSIONS_AT_ONCE = 256
PHASES = ("start-up", "idle", "running", "held", "closing", "unknown")


class RelayEvent(NamedTuple):
    """One of the relay's, decoded. See HR_EVENT_* for what each kind fills."""

    kind: int
    number: int
    pattern: int
    took_ns: int
    wall_ms: int
    by: ActCause
    in_transaction: bool
    username: str
    database: str
    budget: str
    reason: str
    text: bytes
    text_whole: bool
    parameters: bool
    left_out: int
    """Of this client, left out since the last one."""


class SessionView(NamedTuple):
    id: int
    target: int
    age_s: float
    statement_s: float | None
    """How long its statement runs or waits; None: it has none."""
    server_process: int
    phase: str
    in_transaction: bool
    tls_client: bool
    tls_server: bool
    peer: str
    username: str
    database: str
    application_name: str
    client: str


class NativeRelay:
    """Implements ports.Relay."""

    def __init__(self, terms: RelayTerms, identity: IdentityTerms, memory: SharedMemory) -> None:
        self._library = relay_library()
        self.memory = memory
        self.clients = ClientTable(memory)
        self.targets = Targets()
        """The last ones that were taken."""
        """Once it has started."""
        self._event = HrEvent()
        self._stopped = False
        error = create_string_buffer(_ERROR_BYTES)
        self._relay = self._library.hr_open(
            byref(_settings(terms)),
            byref(_identity(identity)),
            memory.region_address,
            memory.state_address,
            error,
            _ERROR_BYTES,
        )
        if not self._relay:
            raise RelayFault(f"the relay cannot be opened: {_text(error.value)}")
        self.event_fd = int(self._library.hr_event_fd(self._relay))

    # --- life ------------------------------------------------------------------------------

    def listen(self, sock: socket.socket, terms: ListenTerms) -> int:
        """Takes the socket over; its number, for `put_listener_tls` and `unlisten`."""
        sock.setblocking(False)
        tls = listen_tls_words(terms)
        error = create_string_buffer(_ERROR_BYTES)
        fd = sock.detach()
        number = self._library.hr_listen(
            self._relay, fd, _ROUTES[terms.route], byref(tls), error, _ERROR_BYTES
        )
        if number < 0:
            socket.close(fd)
            raise RelayFault(f"listening on {terms.shown}: {_text(error.value)}")
        return int(number)

    def put_listener_tls(self, number: int, terms: ListenTerms) -> None:
        """New certificates, for sessions from now on."""
        tls = listen_tls_words(terms)
        put = self._library.hr_listener_tls
        _check(f"TLS of {terms.shown}", put, self._relay, number, byref(tls))

    def unlisten(self, number: int) -> None:
        """Its socket is closed; sessions that came by it stay."""
        self._library.hr_unlisten(self._relay, number)

    def start(self) -> None:
        if fault := self._library.hr_start(self._relay):
            raise RelayFault(f"the relay cannot start: {_text(fault)}")

    def put_identity(self, identity: IdentityTerms) -> None:
        fault = self._library.hr_identity_put(self._relay, byref(_identity(identity)))
        if fault:
            raise RelayFault(f"identity: {_text(fault)}")

    def drain(self, *, keep_sockets: bool, patient: bool, deadline_s: float) -> None:
        self._library.hr_drain(self._relay, keep_sockets, patient, _ms(deadline_s))

    def stop(self) -> None:
        """Every session is closed. Counters and shared memory can be read on."""
        if not self._stopped:
            self._stopped = True
            self._library.hr_stop(self._relay)

    def close(self) -> None:
        self.stop()
        relay, self._relay = self._relay, None
        if relay:
            self._library.hr_close(relay)

    # --- input -----------------------------------------------------------------------------

    def put_release(self, release: Release) -> None:
        words, ns_per_unit = self.memory.state.release, 0
        if release.per_s is not None:
            # 0 would mean "not paced", so a rate of 0 becomes the highest price instead.
            price_ns = 1e9 / release.per_s if release.per_s > 0 else _MOST_NS
            ns_per_unit = max(1, min(_MOST_NS, int(price_ns)))
        words.action, words.max_delay_ms = ACTS[release.act], _ms(release.max_delay_s)
        # The burst first: at the new price the old one could be a moment's worth of anything.
        words.burst_ns = min(_MOST_NS, int(release.burst * ns_per_unit))
        words.ns_per_unit = ns_per_unit

    def released(self) -> Released:
        words = self.memory.state.release
        return Released(int(words.taken), int(words.limited))

    def put_plan(self, pattern: int, cost: float) -> None:
        self._library.hr_plan_put(self.memory.state_address, pattern, cost)

    def put_targets(self, targets: Targets) -> None:
        words = targets_words(targets)
        grace_ms = _ms(targets.grace_s)
        _check("servers", self._library.hr_targets_put, self._relay, byref(words), grace_ms)
        self.targets = targets

    def tell_health(self, healthy: bool, until_ms: int) -> None:
        self._library.hg_tell_health(self.memory.region_address, healthy, until_ms)

    def stir(self) -> None:
        self._library.hr_stir(self._relay)

    def publish(self, policy: bytes, *, force: bool = False) -> RelayRejection | None:
        """A compiled policy, whole or not at all; None: it is in force at once."""
        wall_ms = time.time_ns() // 1_000_000
        region = self.memory.region_address
        why = self._library.hg_publish(region, policy, len(policy), force, wall_ms)
        if why is None:
            self.stir()
            return None
        return RelayRejection(_text(why), bool(self._library.hg_publish_again(why)))

    # --- what it tells ---------------------------------------------------------------------

    def take_event(self) -> RelayEvent | None:
        if not self._library.hr_event_take(self._relay, byref(self._event)):
            return None
        return _decoded(self._event)

    def thread_counts(self) -> list[dict[str, int]]:
        numbers = range(self._library.hr_thread_total(self._relay))
        each = [self._library.hr_counts_of(self._relay, number).contents for number in numbers]
        return [{name: int(getattr(one, name)) for name in THREAD_COUNTS} for one in each]

    def sessions(self, after: int = 0, most: int = 1000) -> list[SessionView]:
        """By id, those after `after`."""
        found: list[SessionView] = []
        views = (HrSessionView * _SESSIONS_AT_ONCE)()
        while len(found) < most:
            room = min(_SESSIONS_AT_ONCE, most - len(found))
            count = self._library.hr_sessions(self._relay, after, views, room)
            now_ns = time.monotonic_ns()
            found += [_session(view, now_ns) for view in views[:count]]
            if count < room:
                break
            after = found[-1].id
        return found

    def kill(self, session: int) -> bool:
        """False: there is no such session."""
        return bool(self._library.hr_session_kill(self._relay, session))


def _check(what: str, function: Callable[..., Any], *arguments: Any) -> None:
    error = create_string_buffer(_ERROR_BYTES)
    if fault := function(*arguments, error, _ERROR_BYTES):
        raise RelayFault(f"{what}: {_text(error.value) or _text(fault)}")


class ClientTable:
    """Implements ports.RelayClients, in the memory that all processes of a proxy share."""

    def __init__(self, memory: SharedMemory) -> None:
        self._library = relay_library()
        self._memory = memory
        self._entered: set[int] = set()
        """Keys of the levels that have a place for good."""

    def all(self) -> Sequence[ClientCounts]:
        state, view = self._memory.state, self._memory.state_view
        step, found = sizeof(HrClient), []
        for index in range(state.sizes.clients):
            (key,) = _KEY.unpack_from(view, state.clients_at + index * step)
            if (key or index in _NAMES) and (client := self.get(index)):
                found.append(client)
        return found

    def get(self, index: int) -> ClientCounts | None:
        """The client that has this place now. Whole, or not at all: its place may be given to
        another meanwhile, and the key is changed before all else."""
        state = self._memory.state
        if not 0 <= index < state.sizes.clients:
            return None
        before, at = self._in_place(index).key, state.clients_at + index * sizeof(HrClient)
        words = HrClient.from_buffer_copy(self._memory.state_view, at)
        if before != self._in_place(index).key or before == _MOVING_KEY:
            return None
        return _client(index, words)

    def _in_place(self, index: int) -> HrClient:
        at = self._memory.state.clients_at + index * sizeof(HrClient)
        return HrClient.from_address(self._memory.state_address + at)

    def put_reported(self, counts: Sequence[ClientCounts], at_s: float) -> None:
        for one in counts:
            words = self._in_place(one.client.index)
            if words.key == one.client.key:  # Else the place is another client's by now.
                words.reported_admitted = one.admitted
                words.reported_blocked[:] = one.blocked
        self._memory.state.reported_ns = int(at_s * 1e9)

    def reported_at_s(self) -> float | None:
        at_ns = int(self._memory.state.reported_ns)
        return at_ns / 1e9 if at_ns else None

    def enter(self, identity: str) -> ClientKey | None:
        if len(self._entered) * 2 >= self._memory.state.sizes.clients:
            return None
        name, key = identity.encode(), ctypes.c_uint64()
        index = self._library.hr_client_enter(
            self._memory.state_address,
            os.getpid(),
            name,
            len(name),
            time.monotonic_ns(),
            byref(key),
        )
        if not index:
            return None
        self._entered.add(key.value)
        return ClientKey(index, key.value, identity)

    def leave(self, client: ClientKey) -> None:
        self._entered.discard(client.key)
        self._library.hr_client_leave(self._memory.state_address, client.index, client.key)

    def put_gate(self, client: ClientKey, gate: ClientGate) -> None:
        words = gate_words(gate)
        at = self._memory.state_address
        self._library.hr_gate_put(at, client.index, client.key, byref(words))

    def put_lost(self, act: Act) -> None:
        self._memory.state.lost = ACTS[act]


def settle_dead(memory: SharedMemory, pid: int) -> int:
    """What a process that died was running is settled; how many statements it was."""
    found = relay_library().hr_settle_dead(
        memory.region_address, memory.state_address, pid, time.monotonic_ns()
    )
    return int(found)


class RelayRejection(NamedTuple):
    why: str
    again: bool
    """No fault of the policy's: publish it again a little later."""


# --- values to words ---------------------------------------------------------------------------


def _settings(terms: RelayTerms) -> HrSettings:
    return HrSettings(
        protocol=_PROTOCOLS[terms.protocol],
        threads=terms.threads,
        max_sessions=terms.max_sessions,
        max_sessions_per_user=terms.max_sessions_per_user,
        startup_timeout_ms=_ms(terms.startup_timeout_s),
        connect_timeout_ms=_ms(terms.connect_timeout_s),
        dry_run=int(terms.dry_run),
        max_buffer_bytes=terms.max_buffer_bytes,
        idle_timeout_ms=_ms(terms.idle_timeout_s),
        tcp_keepalive_s=terms.tcp_keepalive_s,
        max_logins_per_address=terms.max_logins_per_address,
    )


def _identity(terms: IdentityTerms) -> HgIdentity:
    return HgIdentity.from_buffer_copy(identity_bytes(terms))


def listen_tls_words(terms: ListenTerms) -> HrTlsSettings:
    return HrTlsSettings(
        mode=_LISTEN_TLS[terms.tls],
        cert=terms.cert.encode(),
        key=terms.key.encode(),
        ca=terms.ca.encode(),
    )


def gate_words(gate: ClientGate) -> HrGate:
    flags = (
        (GATE_WRITES_ONLY if gate.writes_only else 0)
        | (GATE_PACED if gate.paced else 0)
        | (GATE_EXEMPT if gate.exempt else 0)
    )
    return HrGate(
        ratio=round(max(0.0, min(1.0, gate.ratio)) * 0xFFFFFFFF),
        action=ACTS[gate.act],
        ignores_priority=int(gate.ignores_priority),
        cause=int(gate.cause),
        flags=flags,
        max_delay_ms=_ms(gate.max_delay_s),
        max_delayed=gate.max_delayed,
        delay_ms=_ms(gate.delay_s),
        retry_ms=_ms(gate.retry_s),
        until_ms=gate.until_ms or 0,
        reason=_cut(gate.reason, REASON_BYTES - 1),
    )


def targets_words(targets: Targets) -> HrTargets:
    if len(targets.targets) > MAX_TARGETS:
        raise RelayFault(f"{len(targets.targets)} servers, at most {MAX_TARGETS}")
    kinds = list(dict.fromkeys(t.tls for t in targets.targets if t.tls.mode != "off"))
    if len(kinds) > MAX_TARGET_TLS:
        raise RelayFault(
            f"{len(kinds)} different TLS settings of servers, at most {MAX_TARGET_TLS}: name the "
            "same ca, cert and key for them, and leave tls_name out where the host's name will do"
        )
    words = HrTargets(
        count=len(targets.targets),
        tls_count=len(kinds),
        replicas_or_primary=int(targets.replicas_or_primary),
    )
    for index, tls in enumerate(kinds):
        words.tls[index] = _target_tls(tls)
    for index, target in enumerate(targets.targets):
        _fill(words.target[index], target, kinds)
    return words


def _target_tls(tls: TlsTerms) -> HrTlsSettings:
    return HrTlsSettings(
        mode=TARGET_TLS[tls.mode],
        cert=tls.cert.encode(),
        key=tls.key.encode(),
        ca=tls.ca.encode(),
        name=tls.name.encode(),
    )


def _fill(words: Any, target: ServerTarget, kinds: list[TlsTerms]) -> None:
    address = sockaddr(target.address, target.port)
    words.id = target.id
    words.roles = (TARGET_PRIMARY if target.primary else 0) | (
        TARGET_REPLICA if target.replica else 0
    )
    words.weight = max(1, target.weight)
    words.address_length = len(address)
    words.tls = 0 if target.tls == PLAIN or target.tls not in kinds else kinds.index(target.tls) + 1
    ctypes.memmove(words.address, address, len(address))
    words.name = _cut(target.name, 63)


def sockaddr(address: str, port: int) -> bytes:
    """As Linux has it: sockaddr_in, sockaddr_in6 or sockaddr_un."""
    if address.startswith("/"):
        path = address.encode()
        if len(path) > 107:
            raise RelayFault(f"{address} has {len(path)} bytes; a socket's path has at most 107")
        return struct.pack("=H", socket.AF_UNIX) + path + b"\0"
    host, _, scope = address.partition("%")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        raise RelayFault(f"{address!r} is neither an address nor the path of a socket") from None
    if ip.version == 4:
        return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + ip.packed + bytes(8)
    scope_id = socket.if_nametoindex(scope) if scope and not scope.isdigit() else int(scope or 0)
    return (
        struct.pack("=H", socket.AF_INET6)
        + struct.pack("!HI", port, 0)
        + ip.packed
        + struct.pack("=I", scope_id)
    )


def _ms(seconds: float) -> int:
    return max(0, min(2**32 - 1, round(seconds * 1000)))


def _cut(text: str, most_bytes: int) -> bytes:
    return text.encode()[:most_bytes].decode(errors="ignore").encode()


# --- words to values ---------------------------------------------------------------------------


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _client(index: int, words: HrClient) -> ClientCounts | None:
    key = int(words.key)
    if not key and index not in _NAMES:
        return None
    identity = _NAMES.get(index) or _text(words.identity[: words.length])
    return ClientCounts(
        client=ClientKey(index, key, identity),
        told=bool(words.state),
        blocked=tuple(words.blocked),
        reported=Reported(int(words.reported_admitted), tuple(words.reported_blocked)),
        kept=bool(words.kept),
        **{name: int(getattr(words, name)) for name in _CLIENT_COUNTS},
    )


_CLIENT_COUNTS = (
    *("statements", "admitted", "warned", "delayed", "delayed_ns", "passed", "wall_ns"),
    *("errors", "waiting", "running"),
)


def _decoded(event: HrEvent) -> RelayEvent:
    lengths = (event.user_length, event.database_length, event.budget_length, event.reason_length)
    whole = bytes(event.text[: sum(lengths) + event.text_length])
    parts, at = [], 0
    for length in (*lengths, event.text_length):
        parts.append(whole[at : at + length])
        at += length
    username, database, budget, reason, text = parts
    return RelayEvent(
        kind=event.kind,
        number=event.number,
        pattern=event.pattern,
        took_ns=event.took_ns,
        wall_ms=event.wall_ms,
        by=ActCause(event.by) if event.by < len(ActCause) else ActCause.NOTHING,
        in_transaction=bool(event.in_transaction),
        username=_text(username),
        database=_text(database),
        budget=_text(budget),
        reason=_text(reason),
        text=text,
        text_whole=bool(event.text_whole),
        parameters=bool(event.parameters),
        left_out=event.left_out,
    )


def client_of(event: RelayEvent) -> ClientKey:
    assert event.kind == EVENT_CLIENT
    return ClientKey(event.number, event.pattern, _text(event.text))


def _session(view: HrSessionView, now_ns: int) -> SessionView:
    since_ns, statement_ns = int(view.since_ns), int(view.statement_since_ns)
    return SessionView(
        id=int(view.id),
        target=int(view.target),
        age_s=max(0, now_ns - since_ns) / 1e9,
        statement_s=max(0, now_ns - statement_ns) / 1e9 if statement_ns else None,
        server_process=int(view.server_process),
        phase=PHASES[view.phase] if view.phase < len(PHASES) else str(view.phase),
        in_transaction=bool(view.in_transaction),
        tls_client=bool(view.tls_client),
        tls_server=bool(view.tls_server),
        peer=_peer(view),
        username=_text(view.username),
        database=_text(view.database),
        application_name=_text(view.application),
        client=_text(view.client),
    )


def _peer(view: HrSessionView) -> str:
    if view.family == 4:
        return f"{ipaddress.IPv4Address(bytes(view.address[:4]))}:{view.port}"
    if view.family == 6:
        return f"[{ipaddress.IPv6Address(bytes(view.address))}]:{view.port}"
    return "unix"
