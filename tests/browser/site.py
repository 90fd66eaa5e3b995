"""A real agent over two real Postgres servers, for a browser to look at and to change.

    Site ──checks──► AgentProcess ──probes──► Postgres pair
         ◄──API──┘   the Unix socket: what a click has changed, is read there

`main` is the primary (threads_running, pool_usage), `replica` its standby (lag, pool_usage). The
operator is ann, the viewer vic. `reset()` ends what a test has set.
"""

from __future__ import annotations

import hashlib
import re
import signal
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, Response, postgres_database
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.servers import Pair

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Request

OPERATOR, VIEWER = "ann-operator-token", "vic-viewer-token"
# Whatever the machine does beside: no value goes stale.
_OFTEN = "interval_s=0.5, timeout_s=10, max_age_s=600"
_PRIMARY = f"threads_running: threshold=40, {_OFTEN}; pool_usage: threshold=0.9, {_OFTEN}"
_REPLICA = (
    f'lag: threshold="5s", {_OFTEN}, options={{method="heartbeat"}}; '
    f"pool_usage: threshold=0.9, {_OFTEN}"
)
# Awake, however long a slow machine takes between two checks.
_BEATS = (
    "heartbeat_interval_s = 0.2\nheartbeat_lease_s = 0\nidle_after_s = 0\nhibernate_after_s = 0"
)
# What a form is rejected with is an answer, and Chromium makes an error of it; a busy machine may
# be late for a poll. A file that is missing is a fault.
_TOLERATED = re.compile(
    r"status of (4(?!04)\d\d)|Response Status Error Code 4(?!04)\d\d|htmx:timeout"
    # With each request without an answer, besides the event that says which kind it was.
    r"|^htmx:afterRequest,"
)


@dataclass
class Site:
    agent: AgentProcess
    pair: Pair[PostgresServer]

    @property
    def url(self) -> str:
        return self.agent.url

    # --- beginning and end ------------------------------------------------------------------

    def start(self) -> None:
        self.write_settings()
        self.agent.start()
        eventually(self.is_healthy)

    def is_healthy(self) -> bool:
        databases = self.get("/v1/status")["databases"]
        return all(database["verdict"] == "OK" for database in databases)

    def write_settings(self, tokens: Mapping[str, str] | None = None, more: str = "") -> None:
        """`tokens`: by name; both, where nothing is said."""
        given = {"ann": OPERATOR, "vic": VIEWER} if tokens is None else tokens
        self.agent.write_settings(
            postgres_database(self.pair.primary.dsn(), _PRIMARY, more=_BEATS)
            + postgres_database(self.pair.replica.dsn(), _REPLICA, name="replica", more=_BEATS)
            + "".join(_token(name, token) for name, token in given.items())
            + more,
            'name = "db-1"\n',
        )

    def reload(self) -> None:
        """Have the agent read its settings again, and wait until it has."""
        before = self.agent.log().count("settings.reloaded")
        self.agent.process.send_signal(signal.SIGHUP)
        eventually(lambda: self.agent.log().count("settings.reloaded") > before)

    def reset(self) -> None:
        """No rule, no skip, no exemption of an earlier test is left."""
        for rule in self.rules():
            self.agent.request("DELETE", f"/v1/rules/{rule['id']}", unix=True)

    # --- the API, as someone on the host ----------------------------------------------------

    def api(self, method: str, path: str, body: Any = None, **query: object) -> Any:
        """The document, of a request that must be answered well."""
        reply = self.ask(method, path, body, **query)
        assert reply.status < 400, (method, path, reply.status, reply.body)
        return reply.json

    def ask(self, method: str, path: str, body: Any = None, **query: object) -> Response:
        asked = f"{path}?{urlencode(query, quote_via=quote)}" if query else path
        return self.agent.request(method, asked, body, unix=True)

    def get(self, path: str, **query: object) -> Any:
        return self.api("GET", path, **query)

    def rules(self, *, ended: bool = False) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/v1/rules", all=str(ended).lower())["rules"]
        return found

    def rule(self, **said: object) -> dict[str, Any]:
        """Set one."""
        made: dict[str, Any] = self.api("POST", "/v1/rules", said)
        return made

    def audit(self, limit: int = 20) -> list[dict[str, Any]]:
        """Newest first."""
        found: list[dict[str, Any]] = self.get("/v1/audit", limit=limit)["audit"]
        return found

    # --- traffic ----------------------------------------------------------------------------

    def check(self, app: str, database: str = "main", times: int = 1) -> list[dict[str, Any]]:
        """Real checks, and what was answered."""
        return [self.agent.check(database, app=app) for _ in range(times)]

    def traffic(self, apps: Iterable[str], database: str = "main", times: int = 1) -> None:
        for app in apps:
            self.check(app, database, times)

    # --- what is kept -----------------------------------------------------------------------

    def kept(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of the agent's store, read beside it."""
        where = f"file:{self.agent.folder / 'state.db'}?mode=ro"
        with closing(sqlite3.connect(where, uri=True, timeout=DEADLINE_S)) as connection:
            return connection.execute(query, values).fetchall()


def _token(name: str, token: str) -> str:
    role = "operator" if "operator" in token else "viewer"
    sha256 = hashlib.sha256(token.encode()).hexdigest()
    return f'[[tokens]]\nname = "{name}"\nrole = "{role}"\nsha256 = "{sha256}"\n'


# --- tabs ---------------------------------------------------------------------------------------


@dataclass
class Watch:
    """What must not happen in a tab: errors, violations of the CSP, requests elsewhere."""

    origin: str
    faults: list[str] = field(default_factory=list)
    tolerated: list[str] = field(default_factory=list)
    """Pieces of messages that a test has brought about itself."""

    def follow(self, tab: Page) -> None:
        tab.add_init_script(
            "document.addEventListener('securitypolicyviolation', (event) => console.error("
            "'CSP', event.violatedDirective, event.blockedURI, event.sourceFile))"
        )
        tab.on("console", self._said)
        tab.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        tab.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not _TOLERATED.search(message.text):
            self.faults.append(f"console {message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:", "about:", "blob:")):
            self.faults.append(f"a request elsewhere: {request.url}")

    def verify(self) -> None:
        told = [f for f in self.faults if not any(piece in f for piece in self.tolerated)]
        assert not told, told


@dataclass(frozen=True)
class Shot:
    """Pictures to look at, where HEADGATE_SHOTS names a folder; else nothing."""

    folder: Path | None

    def __call__(
        self, tab: Page, name: str, *, width: int | None = None, dark: bool = False
    ) -> None:
        if self.folder is None:
            return
        before = tab.viewport_size
        if width is not None:
            tab.set_viewport_size({"width": width, "height": 800})
        if dark:
            tab.emulate_media(color_scheme="dark")
        self.folder.mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=self.folder / f"{name}.png", full_page=True)
        tab.emulate_media(color_scheme="light")
        if width is not None and before is not None:
            tab.set_viewport_size(before)


def sign_in(tab: Page, token: str, to: str = "/") -> None:
    """As a person does: by the page, with a token."""
    tab.goto(f"/sign-in?to={quote(to)}")
    tab.get_by_label("Token").fill(token)
    tab.get_by_role("button", name="Sign in").click()
    tab.get_by_role("button", name="Sign out").wait_for()
