"""Numbers behind a URL, from a real server in a thread."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import trustme

from headgate.errors import InvalidSettings
from headgate.metrics.model import Http
from headgate.metrics.probes.http import HttpProbe, at_pointer, parse_pointer
from headgate.metrics.samples import Cause
from tests.fixtures.eventually import DEADLINE_S, aeventually
from tests.metrics.probes.reading import becomes, failure, open_sockets, within, works

PROMETHEUS = b"""\
# HELP queue_depth Jobs that wait.
# TYPE queue_depth gauge
queue_depth{queue="mail"} 7
queue_depth{queue="print",floor="2"} 3
# TYPE jobs_total counter
jobs_total 12
up NaN
"""
LONG_S = 10 * DEADLINE_S
DOCUMENT = b'{"a": {"b/c": [1, {"d~e": 2.5}]}, "text": "12", "yes": true, "none": null}'


class Site(ThreadingHTTPServer):
    """Answers by path, from a table that a test may fill."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.release = threading.Event()
        self.authorization: str | None = None
        self.routes: dict[str, tuple[int, bytes]] = {
            "/number": (200, b"42.5\n"),
            "/json": (200, DOCUMENT),
            "/metrics": (200, PROMETHEUS),
            "/big": (200, b"1" * (1024 * 1024 + 1)),
            "/gone": (404, b"1"),
            "/moved": (302, b"1"),
            "/broken": (500, b"1"),
            "/deep": (200, b"[" * 100_000),
            "/secret": (200, b"S3cret"),
            "/secret.json": (200, b'{"SecretAccessKey": "S3cret"}'),
            "/secret.prom": (200, b"up S3cret\n"),
            "/reason": (403, b""),
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what is tested here."""


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.authorization = self.headers.get("Authorization")
        path = self.path.partition("?")[0]
        if path == "/silent":
            self.server.release.wait()
            return
        if path == "/drip":
            self.drip()
            return
        if path == "/banner":
            self.wfile.write(b"S3cret-2.0-OpenSSH\r\n")
            return
        status, body = self.server.routes[path]
        self.send_response(status, "S3cret" if path == "/reason" else None)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def drip(self) -> None:
        """A byte now and then: each arrives in time, the whole never does."""
        self.send_response(200)
        self.end_headers()
        while not self.server.release.wait(0.05):
            self.wfile.write(b"1")

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    server = Site()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def probe_of(site: Site) -> Callable[..., HttpProbe]:
    def make(path: str, timeout_s: float = DEADLINE_S, **parts: str) -> HttpProbe:
        return HttpProbe("mine", Http(site.url + path, **parts), timeout_s)

    return make


ProbeOf = Callable[..., HttpProbe]


async def test_a_plain_body_is_the_number(probe_of: ProbeOf) -> None:
    assert await probe_of("/number").read() == 42.5


async def test_a_json_pointer_finds_the_number(probe_of: ProbeOf) -> None:
    assert await probe_of("/json", pointer="/a/b~1c/1/d~0e").read() == 2.5
    assert await probe_of("/number", pointer="").read() == 42.5


@pytest.mark.parametrize(
    ("pointer", "said"),
    [
        ("/a/x", "without /a/x"),
        ("/a/b~1c/01", "without"),
        ("/a/b~1c/9", "without"),
        ("/text", "no number"),
        ("/text/0", "without"),
        ("/yes", "boolean"),
        ("/none", "NULL"),
    ],
)
async def test_json_without_a_number_there_is_invalid(
    probe_of: ProbeOf, pointer: str, said: str
) -> None:
    failed = await failure(probe_of("/json", pointer=pointer))
    assert failed.cause is Cause.INVALID
    assert said in failed.detail


@pytest.mark.parametrize("path", ["/metrics", "/deep"])
async def test_what_is_no_json_is_invalid(probe_of: ProbeOf, path: str) -> None:
    assert (await failure(probe_of(path, pointer="/a"))).cause is Cause.INVALID


@pytest.mark.parametrize(
    ("series", "value"),
    [
        ('queue_depth{queue="mail"}', 7),
        ('queue_depth{floor="2"}', 3),
        ("jobs_total", 12),
    ],
)
async def test_a_prometheus_series_is_found_by_its_labels(
    probe_of: ProbeOf, series: str, value: float
) -> None:
    assert await probe_of("/metrics", series=series).read() == value


@pytest.mark.parametrize(
    ("series", "said"),
    [
        ("queue_depth", "2 series"),
        ('queue_depth{queue="fax"}', "0 series"),
        ("up", "nan"),
    ],
)
async def test_no_series_or_several_is_invalid(probe_of: ProbeOf, series: str, said: str) -> None:
    failed = await failure(probe_of("/metrics", series=series))
    assert failed.cause is Cause.INVALID
    assert said in failed.detail


async def test_what_is_no_prometheus_text_is_invalid(probe_of: ProbeOf) -> None:
    assert (await failure(probe_of("/json", series="up"))).cause is Cause.INVALID


@pytest.mark.parametrize(
    ("path", "cause", "said"),
    [
        ("/gone", Cause.FAILED, "404"),
        ("/broken", Cause.FAILED, "500"),
        ("/moved", Cause.FAILED, "redirects are not followed"),
        ("/big", Cause.INVALID, "more than 1048576 bytes"),
    ],
)
async def test_other_answers_are_failures(
    probe_of: ProbeOf, path: str, cause: Cause, said: str
) -> None:
    failed = await failure(probe_of(path))
    assert failed.cause is cause
    assert said in failed.detail


@pytest.mark.parametrize(
    ("path", "parts", "said"),
    [
        ("/secret", {}, "answered text of 6 characters and no number"),
        ("/secret", {"pointer": "/a"}, "answered text of 6 characters and no JSON"),
        ("/secret.json", {"pointer": "/SecretAccessKey"}, "text of 6 characters and no number"),
        ("/secret.json", {"pointer": ""}, "a value of type dict and no number"),
        ("/secret.prom", {"series": "up"}, "text of 10 characters and no Prometheus text"),
        ("/reason", {}, "answered 403 Forbidden"),
        ("/banner", {}, "did not answer with HTTP (BadStatusLine)"),
    ],
)
async def test_the_text_of_a_wrong_answer_is_never_shown(
    probe_of: ProbeOf, path: str, parts: dict[str, str], said: str
) -> None:
    """M6."""
    failed = await failure(probe_of(path, **parts))
    assert said in failed.detail
    assert "S3cret" not in failed.detail


async def test_a_rejected_connection_is_a_failure() -> None:
    failed = await failure(HttpProbe("mine", Http("http://127.0.0.1:1/x"), DEADLINE_S))
    assert failed.cause is Cause.FAILED
    assert "refused" in failed.detail


async def test_secrets_of_a_url_are_sent_but_not_shown(site: Site) -> None:
    url = site.url.replace("//", "//me:hunter2@") + "/gone?token=hunter3"
    failed = await failure(HttpProbe("mine", Http(url), DEADLINE_S))
    assert site.authorization == "Basic bWU6aHVudGVyMg=="
    assert "hunter" not in failed.detail


@pytest.mark.parametrize("path", ["/silent", "/drip"])
async def test_a_slow_answer_is_cut_off_and_leaves_no_socket(probe_of: ProbeOf, path: str) -> None:
    """R26: the thread behind it ends with the read, though the server has not answered yet."""
    probe = probe_of(path, timeout_s=LONG_S)
    before = open_sockets()
    with pytest.raises(TimeoutError):
        await within(probe, 0.3)
    await aeventually(lambda: not any(t.name == probe.label for t in threading.enumerate()))
    await aeventually(lambda: open_sockets() <= before + 1)  # the server's end closes on its own


async def test_a_hanging_call_is_not_doubled() -> None:
    """Where nothing can be aborted (a name that does not resolve), reads do not pile up."""
    from headgate.metrics.probes.threads import OneThread

    held = threading.Event()
    thread: OneThread[float] = OneThread("stuck")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await thread.run(lambda: float(held.wait()))
    failed = await failure(_Threaded(thread))
    assert failed.cause is Cause.TIMED_OUT
    held.set()
    await becomes(lambda: works(_Threaded(thread)))


class _Threaded:
    def __init__(self, thread: Any) -> None:
        self._thread = thread

    async def read(self) -> float:
        return float(await self._thread.run(lambda: 1.0))

    async def close(self) -> None: ...


async def test_https_is_verified(site: Site) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    site.socket = context.wrap_socket(site.socket, server_side=True)
    source = Http(site.url.replace("http:", "https:") + "/number")
    failed = await failure(HttpProbe("mine", source, DEADLINE_S))
    assert failed.cause is Cause.FAILED
    assert "certificate" in failed.detail.lower()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    assert await HttpProbe("mine", source, DEADLINE_S, trusting).read() == 42.5


@pytest.mark.parametrize(
    "parts", [{"pointer": "no/slash"}, {"series": "two words"}, {"series": "a{b}"}]
)
def test_a_pointer_or_series_that_is_none_is_rejected_early(parts: dict[str, str]) -> None:
    with pytest.raises(InvalidSettings):
        HttpProbe("mine", Http("http://127.0.0.1/x", **parts), 1.0)


def test_the_examples_of_rfc_6901() -> None:
    body = '{"foo": ["bar", "baz"], "": 0, "a/b": 1, "m~n": 8}'
    examples = {"/foo/0": "bar", "/": 0, "/a~1b": 1, "/m~0n": 8}
    for pointer, value in examples.items():
        parts = parse_pointer(pointer, place="")
        assert parts is not None
        assert at_pointer(body, parts) == value
