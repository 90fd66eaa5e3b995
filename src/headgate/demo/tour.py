"""The scenes, one at a time: what steps through them, and what each has shown.

    keys, the page, the script ──go──► Tour ──play──► scenes/ ──► Stage
    Stage ──look──► Frame ──► ScenePlay: a scene waits for what it wants to see

A scene plays in a thread of its own, so that the display goes on. It can be cut short wherever it
waits; the next one then arranges the stage as it needs it. Where a person watches, a scene pauses
at what would be over before it can be looked at, until they go on.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, TypeAlias

import psycopg

from headgate.demo.agents import LAG_THRESHOLD_S
from headgate.demo.servers import PortTaken, ServerFailed, free_ports
from headgate.demo.stage import Frame, Stage

PATIENCE_S = 60.0
"""How much longer a scene waits, on a busy machine, for what it wants to see."""
WAKE_S = 0.1
LONGEST_PAUSE_S = 300.0
"""Then a scene goes on automatically, so that what it counts meanwhile does not grow forever."""

Whither: TypeAlias = int | Literal["next", "back", "again"]


class Cut(Exception):
    """The user wants another scene, or to leave."""


@dataclass(frozen=True, slots=True)
class PageHint:
    """What to look at, and on which page of the agent's."""

    text: str
    path: str
    agent: str = ""
    """Whose page, as its URL; the one's that speaks for the shard, unless said."""


@dataclass(frozen=True, slots=True)
class Promise:
    text: str
    kept: bool
    tried: bool = True
    """False: it could not be, here; neither kept nor broken."""


@dataclass(frozen=True, slots=True)
class TourScene:
    title: str
    says: Callable[[Stage], str]
    """What happens, in one to three lines of a terminal."""
    watch: str
    """What to look at in the terminal."""
    looks: Callable[[Stage], Sequence[PageHint]]
    """For the present stage: what was rejected, and when, is known only afterwards."""
    play: Callable[[ScenePlay], Sequence[Promise]]


@dataclass(slots=True)
class ScenePlay:
    """One playing of a scene."""

    stage: Stage
    pace: float
    tell: Callable[[str], None]
    pauses: bool = False
    """A person watches, and says when to go on."""
    frames: list[Frame] = field(default_factory=list)
    waits_for: str = ""
    """What comes when they go on; empty while it does not wait for them."""
    _cut: threading.Event = field(default_factory=threading.Event)
    _on: threading.Event = field(default_factory=threading.Event)

    def watch(
        self, at_least_s: float, until: Callable[[list[Frame]], bool] = lambda frames: True
    ) -> list[Frame]:
        """What is seen for some seconds, and for as many more as it takes to come to that."""
        first, began_at = len(self.frames), time.monotonic()
        while (lasted_s := time.monotonic() - began_at) < at_least_s + PATIENCE_S:
            seen = self.frames[first:]
            if lasted_s >= at_least_s * self.pace and seen and until(seen):
                break
            if self._cut.wait(WAKE_S):
                raise Cut
        return self.frames[first:]

    def pause(self, then: str) -> None:
        """Pause until the person who watches goes on to `then`; at once where nobody watches."""
        if not self.pauses:
            return
        self._on.clear()
        self.waits_for, ends = then, time.monotonic() + LONGEST_PAUSE_S
        try:
            while not self._on.wait(WAKE_S) and time.monotonic() < ends:
                if self._cut.is_set():
                    raise Cut
        finally:
            self.waits_for = ""

    def go_on(self) -> None:
        self._on.set()

    def cut(self) -> None:
        self._cut.set()


class Tour:
    """Which scene is on, which one is wanted, and what the ones before have promised."""

    def __init__(
        self,
        stage: Stage,
        scenes: Sequence[TourScene],
        tell: Callable[[str], None],
        pace: float = 1.0,
        *,
        pauses: bool = False,
        on_begin: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_begin`: what has to be done before a scene, whichever way it was started."""
        self.stage = stage
        self.scenes = scenes
        self.promises: dict[int, Sequence[Promise]] = {}
        """By number, of those that were played to their end."""
        self.failure = ""
        """Why the last one could not be played."""
        self._tell = tell
        self._pace = pace
        self._pauses = pauses
        self._on_begin = on_begin
        self._now = 0
        self._wanted: int | None = None
        self._run: ScenePlay | None = None
        self._leaving = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._play_all, name="tour", daemon=True)
        self._thread.start()

    @property
    def number(self) -> int:
        """Of the scene that is on or wanted, from 1; 0 before the first."""
        with self._change:
            return self._wanted or self._now

    @property
    def scene(self) -> TourScene:
        return self.scenes[max(1, self.number) - 1]

    @property
    def busy(self) -> bool:
        with self._change:
            return self._run is not None or self._wanted is not None

    @property
    def waits_for(self) -> str:
        """What the scene goes on to at "next"; empty where "next" is another scene."""
        with self._change:
            return self._run.waits_for if self._run is not None and not self._wanted else ""

    @property
    def done(self) -> bool:
        """Whether the last one was played to its end."""
        return self.number == len(self.scenes) and not self.busy

    def go(self, whither: Whither) -> int:
        """Have a scene played, now; returns which. One that plays is cut short; one that waits
        for the person who watches goes on."""
        with self._change:
            run = self._run
            if whither == "next" and run is not None and run.waits_for and not self._wanted:
                run.go_on()
                return self._now
            self._wanted = number_of(whither, self._wanted or self._now, len(self.scenes))
            if self._run is not None:
                self._run.cut()
            self._change.notify_all()
            return self._wanted

    def hear(self, frame: Frame) -> None:
        run = self._run
        if run is not None:
            run.frames.append(frame)

    def leave(self, within_s: float = 60.0) -> None:
        """Nothing starts a server after this."""
        self.stage.leaving.set()
        with self._change:
            self._leaving = True
            if self._run is not None:
                self._run.cut()
            self._change.notify_all()
        self._thread.join(within_s)

    def document(self) -> dict[str, Any]:
        """As the page has it."""
        return {
            "scene": self.number,
            "scenes": [
                {
                    "n": n,
                    "title": scene.title,
                    "says": scene.says(self.stage),
                    "look": [self._look(look) for look in scene.looks(self.stage)],
                }
                for n, scene in enumerate(self.scenes, 1)
            ],
            "busy": self.busy,
            "waits_for": self.waits_for,
            "done": self.done,
        }

    def _look(self, look: PageHint) -> dict[str, str]:
        """Looking needs no signing in; the token to change things with goes into no document."""
        agent = look.agent or self.stage.speaker.url
        return {"text": look.text, "path": look.path, "agent": agent}

    def _play_all(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._leaving or self._wanted is not None)
                if self._leaving:
                    return
                self._now, self._wanted = self._wanted or 1, None
                self._run = run = ScenePlay(self.stage, self._pace, self._tell, self._pauses)
                number = self._now
            self._play(number, run)
            with self._change:
                self._run = None

    def _play(self, number: int, run: ScenePlay) -> None:
        self.failure = ""
        self.promises.pop(number, None)
        try:
            with self.stage.hands:
                self._on_begin()
                self.promises[number] = tuple(self.scenes[number - 1].play(run))
        except Cut:
            return
        except (ServerFailed, psycopg.Error, OSError) as error:
            self.failure = f"scene {number} could not be played: {error}"
            if not self._leaving:
                self._tell(self.failure)


def score(promises: Sequence[Promise]) -> str:
    tried = [promise for promise in promises if promise.tried]
    told = f"{sum(promise.kept for promise in tried)} of {len(tried)} promises kept"
    left_out = len(promises) - len(tried)
    return f"{told}, {left_out} not tried" if left_out else told


def number_of(whither: Whither, now: int, last: int) -> int:
    """Within what there is: before the first is the first, after the last is the last."""
    match whither:
        case "next":
            wanted = now + 1
        case "back":
            wanted = now - 1
        case "again":
            wanted = now
        case _:
            wanted = whither
    return min(max(1, wanted), last)


# --- the tour on the page ------------------------------------------------------------------
# The tour's own endpoint on loopback, for the strip on the agents' page.
#
#     the page, of an agent's origin ──GET, POST /tour──► Tour
#
# The requests come from a page in a browser, so access is decided by the two headers that a page
# cannot forge: `Origin` must be one of the agents', and `Host` our own address (a name that was
# made to resolve to loopback is not).

PATH = "/tour"
MAX_BODY_BYTES = 1024
MOST_REQUESTS = 16
REQUEST_TIMEOUT_S = 10.0
MAX_AGE_S = 600


class TourServer(ThreadingHTTPServer):
    """Serves nothing until it has a tour, and the origins of the pages that may use it."""

    daemon_threads = True
    request_queue_size = MOST_REQUESTS

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), TourRequest)
        self.tour: Tour | None = None
        self.origins: frozenset[str] = frozenset()
        self.hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self._room = threading.BoundedSemaphore(MOST_REQUESTS)
        self._thread = threading.Thread(target=self.serve_forever, name="tour's page", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def begin(self, tour: Tour) -> None:
        self.origins = frozenset(agent.url for agent in tour.stage.agents.values())
        self.tour = tour
        self._thread.start()

    def end(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hung up is nobody's business, and the screen is not a log."""


def open_server() -> TourServer:
    for port in free_ports():
        try:
            return TourServer(port)
        except OSError:
            continue
    raise PortTaken("no free port for the tour")


class TourRequest(BaseHTTPRequestHandler):
    server: TourServer
    timeout = REQUEST_TIMEOUT_S
    server_version = "headgate-demo"
    sys_version = ""

    def do_GET(self) -> None:
        self._serve(lambda tour: (HTTPStatus.OK, tour.document()))

    def do_POST(self) -> None:
        self._serve(self._go)

    def do_OPTIONS(self) -> None:
        """A browser sends this before it posts JSON to another origin."""
        self._serve(lambda tour: (HTTPStatus.NO_CONTENT, None))

    def _serve(self, answer: Callable[[Tour], tuple[HTTPStatus, Any]]) -> None:
        tour = self.server.tour
        if fault := self._fault():
            self._send(HTTPStatus.FORBIDDEN, {"detail": fault})
        elif self.path != PATH or tour is None:
            self._send(HTTPStatus.NOT_FOUND, {"detail": f"here is {PATH} only"})
        else:
            self._send(*answer(tour))

    def _fault(self) -> str:
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if host not in self.server.hosts:
            return f"the request is for the host {host[:80]!r}, but this is {self.server.url}"
        if origin is not None and origin not in self.server.origins:
            return f"pages of {origin[:80]!r} may not: only those of the demo's agents"
        return ""

    def _go(self, tour: Tour) -> tuple[HTTPStatus, Any]:
        try:
            wanted = whither_in(self._body())
        except ValueError as error:
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"detail": str(error)}
        return HTTPStatus.ACCEPTED, {"scene": tour.go(wanted)}

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY_BYTES:
            raise ValueError(f"a body of at most {MAX_BODY_BYTES} bytes is wanted")
        return self.rfile.read(int(length))

    def _send(self, status: HTTPStatus, document: Any) -> None:
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        for name, value in self._headers():
            self.send_header(name, value)
        if body:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _headers(self) -> list[tuple[str, str]]:
        always = [("Vary", "Origin"), ("Cache-Control", "no-store")]
        origin = self.headers.get("Origin", "")
        if origin not in self.server.origins:
            return always
        return [
            *always,
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Allow-Methods", "GET, POST"),
            ("Access-Control-Allow-Headers", "Content-Type"),
            ("Access-Control-Max-Age", str(MAX_AGE_S)),
        ]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base's name
        """The screen is not a log."""


def whither_in(body: bytes) -> Whither:
    """Of `{"to": 3}` or `{"to": "next"}`; ValueError with what it should have been."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError('is not JSON; {"to": 3} is wanted') from None
    to = said.get("to") if isinstance(said, dict) else None
    if to in ("next", "back", "again"):
        return to  # type: ignore[no-any-return]
    if isinstance(to, int) and not isinstance(to, bool):
        return to
    raise ValueError('{"to": N} is wanted, or "next", "back" or "again" in place of the number')


# --- what a frame shows --------------------------------------------------------------------
# What scenes look for in the frames that they have seen. Pure.


def lags(frames: Iterable[Frame]) -> list[float]:
    """Where it was known: a missing value is no 0."""
    return [frame.lag_s for frame in frames if frame.lag_s is not None]


def is_calm(frame: Frame) -> bool:
    return frame.lag_s is not None and frame.lag_s <= LAG_THRESHOLD_S


def chunks_of(frames: Iterable[Frame], job: str) -> int:
    return sum(desk.chunks for frame in frames for desk in frame.desks if desk.name == job)


def held_in(frames: Iterable[Frame]) -> set[str]:
    """Jobs that were seen held."""
    desks = (desk for frame in frames for desk in frame.desks)
    return {desk.name for desk in desks if desk.rejected_for_s is not None}


def all_go_on(frames: Sequence[Frame]) -> bool:
    """Whether every job was admitted in the last of them, and the shard is calm."""
    last = frames[-1]
    return is_calm(last) and all(d.chunks and d.rejected_for_s is None for d in last.desks)
