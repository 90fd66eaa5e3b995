"""Traces without a collector: headers, outboxes, wrappers, settings."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from headgate.base.ports import Store
from headgate.base.traceparent import parse_traceparent
from headgate.commands import validated
from headgate.errors import InvalidSettings
from headgate.http.control import ROUTES
from headgate.settings.agent import Settings, parse_settings
from headgate.tracing.assemble import check_tracing
from headgate.tracing.outbox import BatchRejected, Later, Outbox, Outcome, Taken
from headgate.tracing.requests import QUIET, _pattern
from headgate.tracing.traced import STORE
from tests.fixtures.eventually import eventually

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f" 00-{TRACE}-{SPAN}-03 ", True),
        (f"42-{TRACE}-{SPAN}-01-what-comes-later", True),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        ("", None),
        ("00", None),
    ],
)
def test_traceparents(text: str, sampled: bool | None) -> None:
    found = parse_traceparent(text)
    assert (found.sampled if found else None) == sampled
    if found:
        assert parse_traceparent(str(found)) == found


def test_every_write_of_a_store_is_a_span() -> None:
    writes = {
        name
        for name, _ in inspect.getmembers(Store, inspect.isfunction)
        if name == "commit" or name.startswith(("put_", "add_", "forget_"))
    }
    assert set(STORE) == writes


def test_every_route_has_a_name_of_its_own_and_polls_are_quiet() -> None:
    for path in (route.path for route in ROUTES):
        filled = path.replace("{", "x").replace("}", "x")
        assert _pattern(path).fullmatch(filled)
    for path in ("/healthz", "/metrics", "/v1/peer/pull", "/v1/snapshot", "/v1/policies/main"):
        assert QUIET.fullmatch(path)
    assert not QUIET.fullmatch("/v1/rules")
    assert not QUIET.fullmatch("/v1/status")


class Post:
    """Answers in turn; holds each call until let go, where it is to."""

    label = "collector:4318"

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.batches: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, batch: bytes, *, at_most_s: float | None = None) -> Outcome:
        self.gate.wait()
        self.batches.append(batch)
        return self.outcomes.pop(0) if self.outcomes else Taken()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LINGER_S", "FIRST_PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(f"headgate.tracing.outbox.{name}", 0.001)


def boxed(post: Post, most: int = 1000) -> Outbox[bytes]:
    return Outbox(b"".join, post, most)


def test_when_too_many_wait_further_ones_are_dropped_and_counted() -> None:
    post = Post()
    post.gate.clear()
    box = boxed(post, most=150)
    for _ in range(400):
        box.put(b"s")
    # Some may have been taken out for the first batch meanwhile.
    assert 150 <= box.outcomes["full"] <= 250
    assert box.waiting <= 150
    post.gate.set()
    eventually(lambda: box.outcomes["sent"] + box.outcomes["full"] == 400)
    assert max(map(len, post.batches)) <= 100
    box.close()


def test_what_may_be_sent_again_is_and_in_the_end_given_up() -> None:
    post = Post(
        Later("answered 503", 0.001), Taken(1), *[Later("away")] * 5, BatchRejected("answered 400")
    )
    box = boxed(post)
    box.put(b"a")
    eventually(lambda: box.outcomes["rejected"] == 1)
    assert post.batches == [b"a", b"a"]
    box.put(b"b")
    eventually(lambda: box.outcomes["undelivered"] == 1)
    box.put(b"c")
    eventually(lambda: box.outcomes["undelivered"] == 2)
    assert box.fault == "answered 400"
    assert len(post.batches) == 2 + 5 + 1
    box.close()
    box.put(b"late")
    assert box.outcomes["full"] == 1


def test_a_span_that_cannot_be_encoded_ends_nothing() -> None:
    def encode(spans: Sequence[bytes]) -> bytes:
        if b"bad" in spans:
            raise TypeError("no")
        return b"fine"

    box = Outbox(encode, Post(), 10)
    box.put(b"bad")
    eventually(lambda: box.outcomes["undelivered"] == 1)
    box.put(b"good")
    eventually(lambda: box.outcomes["sent"] == 1)
    box.close()


def of(text: str) -> Settings:
    return parse_settings(f"[tracing]\n{text}")


def test_settings_in_full() -> None:
    tracing = of('endpoint = "https://c:4318/"\nratio = 0.5\n').tracing
    assert tracing is not None
    assert (tracing.endpoint, tracing.ratio) == ("https://c:4318/v1/traces", 0.5)
    kept = of('endpoint = "http://127.0.0.1:4318/otlp/v1/traces"').tracing
    assert kept is not None
    assert kept.endpoint.endswith(":4318/otlp/v1/traces")
    assert parse_settings("").tracing is None
    assert of("").tracing is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('endpoint = "https://u:hunter2@c"', "must read like"),
        ('endpoint = "https://c/?key=hunter2"', "must read like"),
        ('endpoint = "grpc://c:4317"', "must read like"),
        ('endpoint = "http://c:4318"', "leaves loopback without TLS"),
        ('endpoint = "https://c"\ncert = "x"', "go together"),
        ('endpoint = "http://127.0.0.1:1"\nca = "x"', "is for an https://"),
        ('headers_file = "x"', "nowhere to go"),
        ('endpoint = "https://c"\nratio = 2', "ratio"),
        ('endpont = "https://c"', "endpoint"),
    ],
)
def test_settings_that_are_rejected_say_why_and_no_secret(text: str, said: str) -> None:
    with pytest.raises(InvalidSettings) as rejected:
        of(text)
    assert said in str(rejected.value)
    assert "hunter2" not in str(rejected.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no header hunter2", "line 1 of"),
        ("a: 1\nHost: evil hunter2", "line 2 of"),
        ("x: \x01hunter2", "line 1 of"),
        ("x: é hunter2", "no headers can be read"),
        ("x: 1\n" * 40, "more than 32 lines"),
        (None, "no headers can be read"),
    ],
)
def test_a_file_of_headers_that_is_none(tmp_path: Path, content: str | None, said: str) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.common")
    path = tmp_path / "headers"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidSettings) as rejected:
        check_tracing(of(f'endpoint = "https://c"\nheaders_file = "{path}"'))
    assert said in str(rejected.value)
    assert "hunter2" not in str(rejected.value)


def test_what_only_the_start_finds_has_its_line_as_well(tmp_path: Path) -> None:
    path, headers = tmp_path / "headgate.toml", tmp_path / "headers"
    headers.write_text("no header")
    text = f'# mine\n[tracing]\nendpoint = "https://c"\nheaders_file = "{headers}"\n'
    path.write_text(f'{text}[databases.main]\nengine = "postgres"\ndsn = ""\n')
    with pytest.raises(InvalidSettings) as rejected:
        validated(path)
    assert str(path) in str(rejected.value) and rejected.value.faults[0].line == 4


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [n for n in sys.modules if n.startswith("headgate.tracing.spans")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.common.trace_encoder", None)
    with pytest.raises(InvalidSettings, match=r"pip install 'headgate\[otel\]'"):
        check_tracing(of('endpoint = "https://c"'))
