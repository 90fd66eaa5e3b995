"""A proxy's file, read once, into frozen values.

proxy.toml  ──load_proxy_settings──►  ProxySettings  ──►  proxy/assemble.py hands values to objects

What the parts of a proxy take as it is written is declared with them (proxy/model.py); what the
file says otherwise is here. The environment may override what is in [proxy]:
HEADGATE_PROXY_THREADS for `threads`, and so on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import urlsplit

from headgate.base.advice import Advice, Severity
from headgate.base.declared import Flat, Key, names, number, seconds, text, whole
from headgate.budgets.identity import IdentityTerms, SourceKind, TagTrust
from headgate.errors import Fault, InvalidSettings
from headgate.proxy.model import (
    DEFAULT_THREADS,
    Act,
    FollowTerms,
    GateMode,
    GateTerms,
    ListenTerms,
    ListenTls,
    MemoryTerms,
    PlanTerms,
    Protocol,
    RelayTerms,
    ReleaseKind,
    ReleaseTerms,
    ServerTerms,
    SessionRoute,
    TlsTerms,
)
from headgate.settings.document import (
    Document,
    from_environment,
    placed,
    settings_text,
    toml_tables,
)
from headgate.settings.identity import IdentitySection, read_identity
from headgate.settings.readers import (
    database_name,
    exposure_faults,
    file_path,
    has_password,
    is_exposed,
    is_loopback,
    is_open,
    pair_faults,
    server_address,
    socket_mode,
    unless_empty,
)
from headgate.settings.sections import GrantedRole, ListenTo, LogFormat, Token

MAX_FILE_BYTES = 1024 * 1024

ENVIRONMENT_PREFIX = "HEADGATE_PROXY_"
MAX_LISTENERS = 16
MAX_SERVERS = 32
MAX_TOKENS = 64
MAX_SOCKET_BYTES = 107 - len(".4194304")
"""Of a Unix socket's path, which ends in the process's id until it is in its place."""
LONGEST_SOCKET = "handover.sock"
PORTS = {Protocol.POSTGRES: 5432, Protocol.MYSQL: 3306}
TLS_MODES = ("off", "prefer", "require", "verify-ca", "verify-full")


# --- readers -------------------------------------------------------------------------------


def _choice(*known: str) -> Any:
    def read(value: object) -> str:
        if value not in known:
            raise ValueError(f"is {value!r}, must be one of {', '.join(map(repr, known))}")
        return str(value)

    return read


def _agent_urls(value: object) -> tuple[str, ...]:
    urls = (value,) if isinstance(value, str) else names(8)(value)
    if not urls:
        raise ValueError("is empty: name at least one agent")
    return tuple(_agent_url(url) for url in urls)


def _agent_url(url: str) -> str:
    url = url.rstrip("/")
    if url.startswith("/"):
        return f"unix://{url}"
    parts = urlsplit(url)
    sound = parts.path if parts.scheme == "unix" else parts.hostname and not parts.path
    if parts.scheme not in ("http", "https", "unix") or not sound or parts.username:
        raise ValueError(f"is {url!r}, must read like https://db1:8087 or /run/headgate/agent.sock")
    return url


# --- sections ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySection:
    name: Annotated[str, Key("Name of this proxy in logs and metrics.", text(63))] = "proxy"
    protocol: Annotated[Protocol, Key("`postgres` or `mysql` (MySQL and MariaDB).")]
    directory: Annotated[
        Path,
        Key(
            "State directory, for this proxy's user alone: policy, shared memory's whereabouts, "
            "and the socket by which a new process takes over. An agent on this host publishes "
            "policy here (`[databases.NAME.traffic] directory`).",
            file_path,
        ),
    ]
    cpus: Annotated[
        float,
        Key(
            "CPUs of the database server, which percentages in budgets refer to. 0: those of this "
            "host, which is right only if both are one.",
            number(0, 4096),
        ),
    ] = 0.0
    max_connections: Annotated[
        int,
        Key(
            "Connections that the server has: 100 % of `concurrency` in budgets.",
            whole(1, 1_000_000),
        ),
    ] = 100
    relay: Annotated[RelayTerms, Flat()]
    drain_timeout_s: Annotated[
        float,
        Key(
            "How long sessions may take to end themselves at a stop or restart; then they are "
            "closed. At a restart, half of it in peace; then they end between transactions.",
            seconds(0, 86400),
        ),
    ] = 30.0
    log: Annotated[
        LogFormat,
        Key("`console` for people, `json` for programs, `auto` by whether there is a terminal."),
    ] = LogFormat.AUTO

    @property
    def relay_terms(self) -> RelayTerms:
        threads = self.relay.threads or min(max(1, (os.cpu_count() or 1) // 2), DEFAULT_THREADS)
        return replace(self.relay, protocol=self.protocol, threads=threads)


@dataclass(frozen=True, slots=True)
class ListenSection:
    address: Annotated[
        tuple[str, int], Key("host:port, or the path of a Unix socket.", server_address())
    ]
    route: Annotated[
        SessionRoute,
        Key("`read-write`: sessions go to the primary. `read-only`: to a healthy replica."),
    ] = SessionRoute.READ_WRITE
    tls: Annotated[
        ListenTls | None,
        Key(
            "`off`; `allow`: TLS for clients that ask for it; `require`: no session without TLS.",
            shown_default="`allow` with tls_cert, else `off`",
        ),
    ] = None
    tls_cert: Annotated[
        Path | None, Key("Certificate chain (PEM). A reload reads it again.", file_path)
    ] = None
    tls_key: Annotated[Path | None, Key("Private key (PEM).", file_path)] = None
    tls_client_ca: Annotated[
        Path | None,
        Key("Authority (PEM): clients must show a certificate that it has signed.", file_path),
    ] = None
    allow_plaintext: Annotated[bool, Key("true allows clients from other hosts without TLS.")] = (
        False
    )

    @property
    def mode(self) -> ListenTls:
        return self.tls or (ListenTls.ALLOW if self.tls_cert else ListenTls.OFF)

    @property
    def terms(self) -> ListenTerms:
        paths = (str(path or "") for path in (self.tls_cert, self.tls_key, self.tls_client_ca))
        return ListenTerms(*self.address, self.route, self.mode, *paths)

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from pair_faults(self.tls_cert, self.tls_key, "tls_cert", "tls_key")
        if self.mode is not ListenTls.OFF and self.tls_cert is None:
            yield "tls", f"is {self.mode.value!r}, which needs tls_cert and tls_key"
        host = self.address[0]
        allowed = self.mode is not ListenTls.OFF or self.allow_plaintext
        if not host.startswith("/"):
            yield from exposure_faults(host, "address", allowed=allowed)


@dataclass(frozen=True, slots=True)
class ServerTls:
    tls: Annotated[
        str,
        Key(
            "As libpq's sslmode: `off`, `prefer`, `require`, `verify-ca`, `verify-full`.",
            _choice(*TLS_MODES),
        ),
    ] = "off"
    tls_ca: Annotated[
        Path | None, Key("Authority (PEM) that signed the server's certificate.", file_path)
    ] = None
    tls_name: Annotated[
        str | None, Key("Name that its certificate must have.", text(255), "the host's")
    ] = None
    tls_cert: Annotated[
        Path | None, Key("Client certificate (PEM) shown to the server.", file_path)
    ] = None
    tls_key: Annotated[Path | None, Key("Private key (PEM) of `tls_cert`.", file_path)] = None

    @property
    def terms(self) -> TlsTerms:
        given = (self.tls_ca, self.tls_cert, self.tls_key, self.tls_name)
        return TlsTerms(self.tls, *(str(one or "") for one in given))

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from pair_faults(self.tls_cert, self.tls_key, "tls_cert", "tls_key")
        if self.tls == "off" and (self.tls_ca or self.tls_cert or self.tls_name):
            yield "tls", "is 'off', so the other tls_ settings say nothing"
        if self.tls.startswith("verify") and self.tls_ca is None:
            yield "tls_ca", f"is missing: tls = {self.tls!r} needs an authority"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSection:
    name: Annotated[str | None, Key("For people.", text(63), "the address")] = None
    address: Annotated[
        str,
        Key(
            "host:port, or the path of a Unix socket. With [follow]: where the member of that "
            "name is reached.",
            text(255),
        ),
    ]
    role: Annotated[
        str,
        Key("`primary` or `replica`; with [follow], agents know.", _choice("primary", "replica")),
    ] = "primary"
    weight: Annotated[int, Key("Share of read-only sessions among replicas.", whole(1, 1000))] = 1
    tls: Annotated[ServerTls, Flat()]


@dataclass(frozen=True, slots=True)
class AgentLinkSettings:
    urls: Annotated[
        tuple[str, ...],
        Key(
            "The agent, or several: https://db1:8087, or the path of its Unix socket.",
            _agent_urls,
            name="url",
        ),
    ]
    database: Annotated[str, Key("Name of the database at the agent.", database_name)]
    token_file: Annotated[
        Path | None, Key("File whose first line is the token that is sent to it.", file_path)
    ] = None
    ca: Annotated[
        Path | None, Key("Authority (PEM) that signed the agents' certificates.", file_path)
    ] = None
    cert: Annotated[Path | None, Key("Client certificate (PEM) shown to them.", file_path)] = None
    key: Annotated[Path | None, Key("Private key (PEM) of `cert`.", file_path)] = None
    report: Annotated[
        bool,
        Key("true reports to the agent what was decided here, for its history and `headgate top`."),
    ] = True

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from pair_faults(self.cert, self.key, "cert", "key")


@dataclass(frozen=True, slots=True)
class FollowSection:
    follow: Annotated[FollowTerms, Flat()]
    tls: Annotated[ServerTls, Flat()]


@dataclass(frozen=True, slots=True)
class PolicySettings:
    file: Annotated[
        Path | None,
        Key(
            "File with the budgets (TOML, or JSON if its name ends so); followed as it changes.",
            file_path,
        ),
    ] = None
    from_agent: Annotated[
        bool,
        Key(
            "true takes the policy over that [agent] serves for its database. With neither, it "
            "is what lies in `directory`: an agent on this host, or `headgate pg publish "
            "--directory`, puts it there."
        ),
    ] = False

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.file is not None and self.from_agent:
            yield "file", "and from_agent exclude each other: which of them counts?"


@dataclass(frozen=True, slots=True)
class PlansSettings:
    terms: Annotated[PlanTerms, Flat()]
    password_file: Annotated[
        Path | None, Key("File whose first line is its password.", file_path)
    ] = None


@dataclass(frozen=True, slots=True)
class ControlSettings:
    address: Annotated[
        ListenTo,
        Key(
            "host:port of the control API and of /metrics; an empty string: the socket alone. Each "
            "proxy of a host needs its own.",
            unless_empty(server_address()),
            "127.0.0.1:8088",
        ),
    ] = ("127.0.0.1", 8088)
    socket: Annotated[
        Path | None,
        Key(
            "Unix socket of it. Changes need no token here: file permissions decide.",
            file_path,
            "`control.sock` in `directory`",
        ),
    ] = None
    socket_mode: Annotated[str, Key("Permissions of the Unix socket.", socket_mode)] = "0600"
    tls_cert: Annotated[Path | None, Key("Certificate chain (PEM) for `address`.", file_path)] = (
        None
    )
    tls_key: Annotated[Path | None, Key("Private key (PEM) for `address`.", file_path)] = None
    allow_plaintext: Annotated[
        bool, Key("true allows other hosts to use `address` without TLS.")
    ] = False

    def faults(self) -> Iterator[tuple[str, str]]:
        yield from pair_faults(self.tls_cert, self.tls_key, "tls_cert", "tls_key")
        host = None if self.address is None else self.address[0]
        if host is not None and host.startswith("/"):
            yield "address", "is a path: that is `socket`"
            return
        yield from exposure_faults(host, "address", allowed=self.tls_cert or self.allow_plaintext)


@dataclass(frozen=True, slots=True)
class SlowlogSettings:
    path: Annotated[
        Path | None,
        Key(
            "File that blocked and delayed statements go to, a line of JSON each, with their "
            "values taken out; empty: into the log. A reload opens it again.",
            unless_empty(file_path),
        ),
    ] = None
    min_delay_s: Annotated[float, Key("Shorter delays are only counted.", seconds(0, 3600))] = 0.1
    warnings: Annotated[bool, Key("true: warned statements, too.")] = False
    per_s: Annotated[
        float, Key("Lines a second; more are counted. 0: no slow-log.", number(0, 10_000))
    ] = 10.0


STRUCTS: Mapping[str, type] = MappingProxyType(
    {
        "[proxy]": ProxySection,
        "[[listen]]": ListenSection,
        "[[server]]": ServerSection,
        "[agent]": AgentLinkSettings,
        "[follow]": FollowSection,
        "[identity]": IdentitySection,
        "[[identity.trust]]": TagTrust,
        "[gate]": GateTerms,
        "[release]": ReleaseTerms,
        "[policy]": PolicySettings,
        "[plans]": PlansSettings,
        "[control]": ControlSettings,
        "[slowlog]": SlowlogSettings,
        "[memory]": MemoryTerms,
        "[[tokens]]": Token,
    }
)
"""By heading, for the reference page."""
SECTIONS = frozenset(heading.strip("[]").partition(".")[0] for heading in STRUCTS)


# --- the file ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProxySettings:
    name: str
    directory: Path
    relay: RelayTerms
    memory: MemoryTerms
    listen: tuple[ListenTerms, ...]
    servers: tuple[ServerTerms, ...]
    follow: FollowTerms | None
    agent: AgentLinkSettings | None
    identity: IdentityTerms
    gate: GateTerms
    release: ReleaseTerms
    policy: PolicySettings
    plans: PlansSettings | None
    control: ControlSettings
    slowlog: SlowlogSettings
    tokens: tuple[Token, ...] = ()
    drain_timeout_s: float = 30.0
    log: LogFormat = LogFormat.AUTO
    identity_file: Path | None = None
    """Where the key of `identity` was read."""
    advice: tuple[Advice, ...] = ()
    source: str = ""

    @property
    def control_socket(self) -> Path:
        return self.control.socket or self.directory / "control.sock"


def load_proxy_settings(path: Path, environment: Mapping[str, str] | None = None) -> ProxySettings:
    """The settings of `path`, or InvalidSettings with every fault and its line."""
    environment = os.environ if environment is None else environment  # noqa: TID251 -- as agent.py
    return parse_proxy_settings(settings_text(path, MAX_FILE_BYTES), environment, source=str(path))


def parse_proxy_settings(
    content: str, environment: Mapping[str, str] = MappingProxyType({}), *, source: str = ""
) -> ProxySettings:
    document = Document(toml_tables(content, source), SECTIONS)
    try:
        settings = _read(document, environment)
    except InvalidSettings as error:
        raise placed(error, content, source) from None
    return replace(settings, source=source)


_UNREAD = ProxySection(protocol=Protocol.POSTGRES, directory=Path(), relay=RelayTerms())
"""In the place of a [proxy] with faults: the whole is rejected anyway."""


def _read(document: Document, environment: Mapping[str, str]) -> ProxySettings:
    overrides = from_environment(ProxySection, ENVIRONMENT_PREFIX, environment)
    proxy = document.section("proxy", ProxySection, overrides) or _UNREAD
    agent = document.section("agent", AgentLinkSettings) if "agent" in document.tables else None
    rows = document.each("server", ServerSection, MAX_SERVERS)
    servers = tuple(_server(index, row, proxy.protocol, document) for index, row in rows)
    identity = read_identity(document, document.tables.get("identity", {}), "identity")
    memory = document.section("memory", MemoryTerms) or MemoryTerms()
    cpus_milli = round(1000 * (proxy.cpus or os.cpu_count() or 1))
    settings = ProxySettings(
        name=proxy.name,
        directory=proxy.directory,
        relay=proxy.relay_terms,
        memory=replace(memory, cpus_milli=cpus_milli, workers=proxy.max_connections),
        listen=_listeners(document),
        servers=servers,
        follow=_follow(document, agent, servers, proxy.protocol),
        agent=agent,
        identity=identity.terms,
        gate=document.section("gate", GateTerms) or GateTerms(),
        release=document.section("release", ReleaseTerms) or ReleaseTerms(),
        policy=document.section("policy", PolicySettings) or PolicySettings(),
        plans=_plans(document, proxy.protocol),
        control=document.section("control", ControlSettings) or ControlSettings(),
        slowlog=document.section("slowlog", SlowlogSettings) or SlowlogSettings(),
        tokens=_tokens(document),
        drain_timeout_s=proxy.drain_timeout_s,
        log=proxy.log,
        identity_file=identity.secret_file,
    )
    # Of a table that has faults, only these are reported: the values are not known.
    whole = _whole_faults(settings, has_agent="agent" in document.tables)
    document.faults += [f for f in whole if not document.is_broken(f.place.partition(".")[0])]
    document.reject_faults()
    return replace(settings, advice=tuple(_advise(settings, bool(proxy.cpus))))


def _listeners(document: Document) -> tuple[ListenTerms, ...]:
    if not document.tables.get("listen"):
        document.fault("listen", "is missing: clients need an address, [[listen]] address = …")
        return ()
    found = [one.terms for _, one in document.each("listen", ListenSection, MAX_LISTENERS)]
    places = [(one.host, one.port) for one in found]
    for again in {p for p in places if places.count(p) > 1 and p[1]}:
        document.fault("listen", f"has {again[0]}:{again[1]} twice")
    return tuple(found)


def _server(index: int, row: ServerSection, protocol: Protocol, document: Document) -> ServerTerms:
    host, port = "localhost", 0
    try:
        host, port = server_address(PORTS[protocol])(row.address)
    except ValueError as error:
        document.fault(f"server.{index}.address", str(error))
    replica = row.role == "replica"
    return ServerTerms(row.name or row.address, host, port, replica, row.weight, row.tls.terms)


def _follow(
    document: Document,
    agent: AgentLinkSettings | None,
    servers: tuple[ServerTerms, ...],
    protocol: Protocol,
) -> FollowTerms | None:
    if "follow" not in document.tables:
        return None
    if "agent" not in document.tables:
        document.fault("agent", "is missing: [follow] follows what an agent says")
    section = document.section("follow", FollowSection) or FollowSection(FollowTerms(), ServerTls())
    return replace(
        section.follow,
        database=agent.database if agent else "",
        port=section.follow.port or PORTS[protocol],
        servers=servers,
        tls=section.tls.terms,
    )


def _plans(document: Document, protocol: Protocol) -> PlansSettings | None:
    if "plans" not in document.tables:
        return None
    if protocol is Protocol.MYSQL:
        document.fault("plans", "is for Postgres: MySQL's EXPLAIN has no cost that could be used")
    return document.section("plans", PlansSettings)


def _tokens(document: Document) -> tuple[Token, ...]:
    tokens = list(document.each("tokens", Token, MAX_TOKENS))
    for index, token in tokens:
        if token.role is GrantedRole.PEER:
            document.fault(f"tokens.{index}.role", "is 'peer': a proxy has no peers")
    return tuple(token for _, token in tokens)


# --- what only several tables together tell --------------------------------------------------


def _whole_faults(settings: ProxySettings, *, has_agent: bool) -> Iterator[Fault]:
    if settings.follow is None and not settings.servers:
        yield Fault("server", "is missing: give [[server]] address = …, or [agent] and [follow]")
    if settings.follow is None and settings.servers:
        yield from _role_faults(settings)
    if not has_agent:
        for where, wants, why in _wanting_an_agent(settings):
            if wants:
                yield Fault(where, f"needs [agent]: {why}")
    yield from _socket_faults(settings)
    yield from _loop_faults(settings)


def _wanting_an_agent(settings: ProxySettings) -> Iterator[tuple[str, bool, str]]:
    health = "an agent reports the database's health"
    gated = bool(settings.gate.clients) and settings.gate.mode is not GateMode.OFF
    yield "gate.clients", gated, health
    yield "gate.on_loss", settings.gate.on_loss is not Act.PASS, health
    yield "release.kind", settings.release.kind is not ReleaseKind.OFF, health
    yield "policy.from_agent", settings.policy.from_agent, "the policy comes from it"


def _socket_faults(settings: ProxySettings) -> Iterator[Fault]:
    own = settings.control.socket
    paths = [("control.socket", own)] if own else []
    if settings.directory != Path():
        paths.append(("proxy.directory", settings.directory / LONGEST_SOCKET))
    hosts = [(f"listen.{i}.address", one.host) for i, one in enumerate(settings.listen)]
    paths += [(where, Path(host)) for where, host in hosts if host.startswith("/")]
    for where, path in paths:
        length = len(os.fsencode(path))
        if length > MAX_SOCKET_BYTES:
            message = (
                f"is too long: a socket at {path} would have {length} bytes, and the system allows "
                f"{MAX_SOCKET_BYTES} (with room for the name that it has while it is made)"
            )
            yield Fault(where, message)


def _loop_faults(settings: ProxySettings) -> Iterator[Fault]:
    """A proxy that is its own server: one client would be all the sessions that there are."""
    for index, server in enumerate(settings.servers):
        own = next((one for one in settings.listen if _leads_to(server, one)), None)
        if own is not None:
            message = (
                f"{server.host}:{server.port} is this proxy's own [[listen]] {own.shown}: name "
                "the database server, or listen elsewhere"
            )
            yield Fault(f"server.{index}.address", message)


def _leads_to(server: ServerTerms, listen: ListenTerms) -> bool:
    if server.port != listen.port or (not server.port and not server.host.startswith("/")):
        return False
    if server.host == listen.host:
        return True
    if listen.host in ("0.0.0.0", "::"):  # noqa: S104 -- compared with, not bound to
        return is_loopback(server.host)
    here = {"localhost", "127.0.0.1", "::1"}
    return "localhost" in (server.host, listen.host) and {server.host, listen.host} <= here


def _role_faults(settings: ProxySettings) -> Iterator[Fault]:
    primaries = [server for server in settings.servers if not server.replica]
    if len(primaries) > 1:
        named = ", ".join(server.name for server in primaries)
        yield Fault(
            "server",
            f"has {len(primaries)} primaries ({named}): give replicas role = 'replica', or have "
            "agents report who is primary ([follow])",
        )
    if not primaries and any(one.route is SessionRoute.READ_WRITE for one in settings.listen):
        yield Fault("server", "has no primary, and a listener is read-write")


# --- advice --------------------------------------------------------------------------------


def _advise(settings: ProxySettings, cpus_said: bool) -> Iterator[Advice]:
    for code, where, message in _odd(settings, cpus_said):
        yield Advice(Severity.WARNING, code, where, message)


def _odd(settings: ProxySettings, cpus_said: bool) -> Iterator[tuple[str, str, str]]:
    yield from _odd_servers(settings, cpus_said)
    yield from _odd_identity(settings)
    yield from _odd_gate(settings)
    yield from _odd_secrets(settings)
    if settings.relay.dry_run:
        yield "dry-run", "proxy.dry_run", "is true: nothing is delayed or blocked"
    if any(listen.ca and listen.tls is not ListenTls.REQUIRE for listen in settings.listen):
        message = 'asks for certificates, but clients without TLS show none: set tls = "require"'
        yield "optional-tls", "listen.tls_client_ca", message


def _odd_servers(settings: ProxySettings, cpus_said: bool) -> Iterator[tuple[str, str, str]]:
    hosts = [server.host for server in settings.servers]
    remote = settings.follow is not None or not all(
        host.startswith("/") or is_loopback(host) for host in hosts
    )
    if remote and not cpus_said:
        message = (
            "is not given, and the server is on another host: percentages in budgets would be of "
            "this host's CPUs"
        )
        yield "cpus", "proxy.cpus", message
    for index, server in enumerate(settings.servers):
        local = server.host.startswith("/") or is_loopback(server.host)
        if server.tls.mode == "off" and not local:
            message = (
                f'{server.name} is spoken to in plain text over a network: tls = "verify-full"'
            )
            yield "plain-server", f"server.{index}.tls", message
        if server.tls.mode in ("prefer", "require"):
            message = f'{server.tls.mode!r} does not check who the server is: "verify-full" does'
            yield "unverified-server", f"server.{index}.tls", message
    routes = {listen.route for listen in settings.listen}
    has_replica = any(server.replica for server in settings.servers)
    if settings.follow is None and has_replica and SessionRoute.READ_ONLY not in routes:
        yield "unused-replica", "server", "has replicas, and no listener is read-only"


def _odd_identity(settings: ProxySettings) -> Iterator[tuple[str, str, str]]:
    identity = settings.identity
    trusted = {trust.tag for trust in identity.trusts}
    tags = [s.name for s in identity.sources if s.kind is SourceKind.TAG]
    if identity.priority_tag:
        tags.append(identity.priority_tag)
    for tag in dict.fromkeys(tags):
        if settings.gate.mode is GateMode.ENFORCE and not trusted & {tag, "*"}:
            message = (
                f"tag {tag!r} is believed from anybody: a client can name itself as it likes. "
                "[[identity.trust]] binds it to users, or to a signature"
            )
            yield "untrusted-tag", "identity", message
    for index, trust in enumerate(identity.trusts):
        if not trust.users and not trust.signed:
            message = (
                f"tag {trust.tag!r} is trusted from nobody, so it is always dropped: name `users`, "
                "or say signed = true"
            )
            yield "trusts-nobody", f"identity.trust.{index}", message
    if not identity.sources:
        yield "nobody", "identity.order", "is empty: every statement is unidentified"


def _odd_gate(settings: ProxySettings) -> Iterator[tuple[str, str, str]]:
    gate = settings.gate
    if settings.agent is not None and gate.mode is GateMode.ENFORCE and not gate.clients:
        yield "gate-for-nobody", "gate.clients", "is empty: the health gate applies to no client"
    if gate.action is Act.DELAY and gate.max_delayed == 0:
        yield "no-queue", "gate.max_delayed", "is 0: nothing can wait, so `delay` blocks"
    if gate.on_loss is Act.BLOCK:
        message = "is 'block': while no agent answers, the gate blocks its clients"
        yield "fail-closed", "gate.on_loss", message
    if settings.release.target >= settings.release.most:
        message = "is not below max: the rate would rise until it is cut"
        yield "release-target", "release.target", message


def _odd_secrets(settings: ProxySettings) -> Iterator[tuple[str, str, str]]:
    agent, plans = settings.agent, settings.plans
    files = [("agent.token_file", agent.token_file)] if agent else []
    files += [("plans.password_file", plans.password_file)] if plans else []
    for where, path in [*files, ("identity.secret_file", settings.identity_file)]:
        if path is not None and is_open(path):
            message = f"{path} can be read by everybody on this host: chmod 0600 {path}"
            yield "open-secret", where, message
    urls = agent.urls if agent is not None and agent.token_file is not None else ()
    for url in urls:
        if is_exposed(url):
            host = urlsplit(url).hostname
            message = f"sends the token to {host} in plain text over a network; use https"
            yield "plain-token", "agent.url", message
    if plans is not None and has_password(plans.terms.dsn):
        message = "has a password in it, for every reader of this file: use password_file"
        yield "password-in-dsn", "plans.dsn", message
