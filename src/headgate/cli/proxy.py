"""`headgate proxy`: run a proxy, and look at one that runs.

What runs one is beyond this ring: __main__.py hands it in, as the context's object. The others
speak HTTP to its control socket, found by --url, by the settings file, or at its usual place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from headgate.cli.api import (
    AgentUnreachable,
    Api,
    SocketTransport,
    checked_token,
    find_target,
)
from headgate.cli.options import INTERVAL, AgentOptions, AsJson, Interval, Strict, Token

if TYPE_CHECKING:
    from headgate.cli.lint import LintNote

SYSTEM_SOCKET = Path("/run/headgate-proxy/control.sock")
DEFAULT_URL = "http://127.0.0.1:8088"
TIMEOUT_S = 10.0
RESTART_TIMEOUT_S = 75.0

SettingsFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The proxy's settings file (TOML).")
]
OfSettings = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]",
        show_default=False,
        help="The proxy's settings file, which says where the proxy is.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        show_default=False,
        help="The proxy's settings file, which says where the proxy is.",
    ),
]
ProxyUrl = Annotated[
    str | None,
    typer.Option(
        envvar="HEADGATE_PROXY_URL",
        show_default=False,
        metavar="URL",
        help="The proxy: http://host:port, https://host:port or unix:///path. Default: by FILE, "
        f"else {SYSTEM_SOCKET}, else {DEFAULT_URL}.",
    ),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Live, as `headgate top`; q quits.")]
SessionId = Annotated[int, typer.Argument(metavar="ID", min=1, help="As `sessions` shows it.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Sessions shown, at most.")]


class ProxyHost(Protocol):
    """What can be started here; each raises HeadgateError where a package for it is missing."""

    def run_proxy(self, settings: Path) -> int: ...

    def check_proxy(self, settings: Path) -> None: ...

    def build_proxy(self) -> Path: ...


# --- here --------------------------------------------------------------------------------------


def run(context: typer.Context, settings: SettingsFile) -> None:
    """Run the proxy, or take over from the one that runs.

    It runs until SIGTERM or SIGINT: the first drains it, the second ends it at once. SIGHUP
    reloads the settings file. If a proxy runs on the same `directory`, this one takes over its
    sockets and counters, and the old one exits after its last session. Exit code 2 if the settings
    have faults.
    """
    raise typer.Exit(_host(context).run_proxy(settings))


def lint(settings: SettingsFile, strict: Strict = False, as_json: AsJson = False) -> None:
    """Validate a proxy's settings file.

    It also validates the policy file that the settings name. Exit code 1 for faults; with --strict
    for advice, too.
    """
    _tell(settings, _notes_on(settings), strict=strict, as_json=as_json)


def check(
    context: typer.Context,
    settings: SettingsFile,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Validate the settings file, and what it names: files, policy, the relay's library.

    It connects to nothing. Exit code 1 for faults.
    """
    from headgate.cli.lint import faults_told
    from headgate.errors import InvalidSettings

    notes = _notes_on(settings)
    if not any(note.level == "fault" for note in notes):
        try:
            _host(context).check_proxy(settings)
        except InvalidSettings as error:
            notes += faults_told(error)
    _tell(settings, notes, strict=strict, as_json=as_json)


def build(context: typer.Context, as_json: AsJson = False) -> None:
    """Build the relay's library for this installation.

    It needs a C compiler, OpenSSL's headers, and the right to write where headgate is installed.
    If you do not run it, the first start of each user builds the library for that user.
    """
    built = _host(context).build_proxy()
    _done({"library": str(built)}, f"built {built}", as_json)


def _tell(path: Path, notes: list[LintNote], *, strict: bool, as_json: bool) -> None:
    from headgate.cli.lint import show_notes

    show_notes(path, notes, as_json=as_json)
    if any(note.level == "fault" for note in notes) or (strict and notes):
        raise typer.Exit(1)


def _notes_on(path: Path) -> list[LintNote]:
    from headgate.cli.lint import advice_told, faults_told, policy_told
    from headgate.errors import InvalidSettings
    from headgate.settings.proxy import load_proxy_settings

    try:
        settings = load_proxy_settings(path)
    except InvalidSettings as error:
        return faults_told(error)
    policy = settings.policy.file
    # With a fault in it, the proxy would not start.
    told = policy_told(policy, "policy.file") if policy is not None else []
    return [*advice_told(path, settings.advice), *told]


# --- there -------------------------------------------------------------------------------------


def status(
    context: typer.Context,
    settings: OfSettings = None,
    watch: Watch = False,
    interval: Interval = INTERVAL,
    url: ProxyUrl = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show sessions, clients, budgets, servers, and what needs attention.

    Exit code 1 if something needs attention.
    """
    from headgate.cli.output import show_view

    api = _connect(settings, url, token)
    if watch:
        from headgate.cli.top import TopOptions
        from headgate.cli.top import watch as show_live

        show_live(context, TopOptions("proxy", interval, AgentOptions(), proxy=api))
        return
    answered = api.get("/v1/proxy/status")
    show_view(answered, as_json, "proxy.proxy_view")
    if answered.document["problems"]:
        raise typer.Exit(1)


def sessions(
    settings: OfSettings = None,
    limit: Limit = 200,
    url: ProxyUrl = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List sessions: who, since when, and what they do."""
    from headgate.cli.output import show_view

    answered = _connect(settings, url, token).get("/v1/proxy/sessions", limit=str(limit))
    show_view(answered, as_json, "proxy.sessions_view")


def kill(
    session: SessionId,
    config: Config = None,
    url: ProxyUrl = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """End a session.

    Its client gets an error (57P01 in Postgres). Its connection to the server is closed: a
    statement that runs there ends when the server notices, or when it is cancelled.
    """
    _connect(config, url, token).change("DELETE", f"/v1/proxy/sessions/{session}")
    _done({"ended": session}, f"session {session} is ended", as_json)


def reload(
    settings: OfSettings = None, url: ProxyUrl = None, token: Token = None, as_json: AsJson = False
) -> None:
    """Reload the settings file, all or nothing.

    It prints what is in force now, and what needs a restart.
    """
    from headgate.cli.output import show_view

    answered = _connect(settings, url, token).change("POST", "/v1/proxy/reload")
    show_view(answered, as_json, "proxy.reloaded_view")


def restart(
    settings: OfSettings = None, url: ProxyUrl = None, token: Token = None, as_json: AsJson = False
) -> None:
    """Start a successor that takes over; no client is disconnected.

    The old process drains, and exits after its last session. Use it after an upgrade: the
    successor is the installed version.
    """
    api = _connect(settings, url, token, timeout_s=RESTART_TIMEOUT_S)
    answered = api.change("POST", "/v1/proxy/restart")
    successor = answered.document["successor"]
    memory = api.get("/v1/proxy/status").document["proxy"]["memory"]
    told = f"process {successor} has taken over"
    if memory == "new":
        told += (
            "\nwith new memory, because its size or version changed: debts and counters start at 0"
        )
    _done({"successor": successor, "memory": memory}, told, as_json)


def drain(
    settings: OfSettings = None, url: ProxyUrl = None, token: Token = None, as_json: AsJson = False
) -> None:
    """Accept no new sessions, and exit after the last one ends.

    The same as SIGTERM. After `drain_timeout_s` it closes the sessions that are left.
    """
    _connect(settings, url, token).change("POST", "/v1/proxy/drain")
    _done({"draining": True}, "the proxy drains, and ends with its last session", as_json)


def _done(document: Mapping[str, Any], told: str, as_json: bool) -> None:
    from headgate.cli.output import show_json

    if as_json:
        show_json(document)
    else:
        print(told)


class ProxyApi(Api):
    """As an agent's, in words for a proxy."""

    def _problem(self, response: Any, document: Any) -> str:
        return super()._problem(response, document).replace("the agent answers", "it answers", 1)


@dataclass(frozen=True, slots=True)
class ProxyTransport(SocketTransport):
    def _unreachable(self, detail: str) -> AgentUnreachable:
        return AgentUnreachable(
            f"no proxy answers at {self.target.url}: {detail}; start `headgate proxy run FILE`, "
            "or name its settings FILE, --url or HEADGATE_PROXY_URL"
        )


def _connect(
    settings: Path | None, url: str | None, token: str | None, *, timeout_s: float = TIMEOUT_S
) -> Api:
    found = f"unix://{SYSTEM_SOCKET}" if SYSTEM_SOCKET.is_socket() else DEFAULT_URL
    if not url and settings is not None:
        from headgate.settings.proxy import load_proxy_settings

        found = f"unix://{load_proxy_settings(settings).control_socket.absolute()}"
    target = find_target(url or found)
    return ProxyApi(ProxyTransport(target, checked_token(token), timeout_s), target.url)


def _host(context: typer.Context) -> ProxyHost:
    host: ProxyHost = context.obj
    return host
