"""A real agent and a real collector: what is reported, below what, and that nobody is hurt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.common")

import structlog

from headgate import AsyncClient
from headgate.app import Agent
from headgate.check.model import Activity
from headgate.errors import PeerFailed
from headgate.settings.agent import parse_settings
from headgate.shard.model import Pull
from headgate.tracing import outbox
from tests.fixtures.eventually import DEADLINE_S, aeventually
from tests.fixtures.otlp import Collector, Told, collector

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-2] + "00"
HOLD = {"target": "etl", "kind": "hold", "reason": "incident 42"}
CHECK = "/v1/check?app=etl:nightly&database=main"


@pytest.fixture
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(outbox, "LINGER_S", 0.02)
    monkeypatch.setattr(outbox, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(outbox, "MAX_TRIES", 2)
    monkeypatch.setattr(outbox, "LAST_TRY_S", 0.1)
    with collector() as found:
        yield found


def settings(folder: Path, tracing: str) -> str:
    return f"""
[agent]
name = "db-a"
listen = "127.0.0.1:0"
socket = "{folder}/a.sock"
state = "{folder}/state.db"
[page]
enabled = false
[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 user=nobody"
[databases.main.traffic]
directory = "{folder}/pg_headgate"
[databases.main.metrics.loadavg]
threshold = 100000
interval_s = 0.05
timeout_s = 60
max_age_s = 60
{tracing}
"""


def folder_for(agent: Path) -> Path:
    (agent / "pg_headgate").mkdir(mode=0o700, parents=True)
    return agent


@asynccontextmanager
async def serving(folder: Path, tracing: str) -> AsyncIterator[Agent]:
    made = folder_for(folder)
    agent = Agent(parse_settings(settings(made, tracing)))
    await agent.start()
    try:
        await aeventually(lambda: agent.rooms.check.board.healths["main"].own.all_pass)
        yield agent
    finally:
        await agent.stop()


def traced(found: Collector, **more: object) -> str:
    said = "".join(f"{name} = {json.dumps(value)}\n" for name, value in more.items())
    return f'[tracing]\nendpoint = "{found.url}"\n{said}'


async def ask(
    agent: Agent, method: str, target: str, body: Any = None, **headers: str
) -> tuple[int, bytes]:
    """Over the Unix socket, whose uid may change things."""
    path = str(agent.context.agent.socket)
    reader, writer = await asyncio.open_unix_connection(path)
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {target} HTTP/1.1", "Host: a", f"Content-Length: {len(content)}"]
    lines += ["Content-Type: application/json", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + content)
    raw = await reader.read()
    writer.close()
    head, _, answer = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), answer


async def one(found: Collector, name: str) -> Told:
    return (await aeventually(lambda: found.named(name)))[0]


async def test_what_an_agent_does_is_reported(collecting: Collector, tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.write_text("# the key\nx-api-key: s3cret\n")
    more = {"background_ratio": 1.0, "headers_file": str(headers), "service_name": "gates"}
    async with serving(tmp_path / "a", traced(collecting, **more)) as agent:
        probe = await one(collecting, "probe")
        assert probe.facts == {"headgate.database": "main", "headgate.metric": "loadavg"}
        assert probe.parent_id == ""
        assert probe.resource["service.name"] == "gates"
        assert probe.resource["service.instance.id"] == "db-a"
        assert collecting.heard[0]["path"] == "/v1/traces"
        assert collecting.heard[0]["x-api-key"] == "s3cret"

        target = "/v1/databases/main/metrics/loadavg"
        status, _ = await ask(agent, "PATCH", target, {"threshold": 1e6}, traceparent=PARENT)
        assert status == 200
        changed = await one(collecting, "PATCH /v1/databases/{database}/metrics/{metric}")
        assert (changed.trace_id, changed.parent_id) == (PARENT[3:35], PARENT[36:52])
        assert changed.facts["http.response.status_code"] == 200
        (kept,) = [s for s in collecting.below(changed) if s.name == "store commit"]
        assert kept.facts["headgate.change.action"] == "metric.set"
        assert kept.facts["headgate.change.who"].startswith("uid:")

        # The probe was started again by that request, and is no part of it.
        before = len(collecting.named("probe"))
        await aeventually(lambda: len(collecting.named("probe")) > before + 2)
        assert all(probe.parent_id == "" for probe in collecting.named("probe"))

        status, said = await ask(agent, "PUT", "/v1/budgets/main/etl", {"rate": 10})
        assert status in (200, 201), said
        asked = await one(collecting, "PUT /v1/budgets/{database}/{name}")
        (published,) = [
            span for span in collecting.named("policy publish") if span.trace_id == asked.trace_id
        ]
        assert published.facts["headgate.budgets"] == 1

        status, said = await ask(agent, "POST", "/v1/rules", HOLD)
        assert status == 201, said
        asked = await one(collecting, "POST /v1/rules")
        assert "store commit" in {span.name for span in collecting.below(asked)}

        assert await ask(agent, "GET", "/v1/nothing")
        assert (await one(collecting, "GET unknown")).facts["http.response.status_code"] == 404
        assert not [s for s in collecting.spans if "s3cret" in repr(s)]
        _, metrics = await ask(agent, "GET", "/metrics")
        assert b'headgate_trace_spans_total{outcome="sent"}' in metrics
        assert b"headgate_trace_spans_waiting" in metrics


async def test_checks_are_traced_where_their_caller_traces_them(
    collecting: Collector, tmp_path: Path
) -> None:
    async with serving(tmp_path / "a", traced(collecting)) as agent:
        for _ in range(3):
            assert (await ask(agent, "GET", CHECK))[0] == 200
            assert (await ask(agent, "GET", CHECK, traceparent=UNSAMPLED))[0] == 200
            assert (await ask(agent, "GET", CHECK, traceparent="garbage"))[0] == 200
        assert (await ask(agent, "GET", CHECK, traceparent=PARENT))[0] == 200
        check = await one(collecting, "check")
        assert check.parent_id == PARENT[36:52]
        assert check.facts["headgate.verdict"] == "OK"
        assert check.facts["headgate.client"] == "etl:nightly"
        assert (await ask(agent, "POST", "/v1/rules", HOLD))[0] == 201
        freno = "/check/etl:nightly/mysql/main"
        assert (await ask(agent, "GET", freno, traceparent=PARENT))[0] == 417
        assert (await ask(agent, "GET", CHECK, traceparent=PARENT))[0] == 417
        await aeventually(lambda: len(collecting.named("check")) == 3)
        (held,) = [
            s for s in collecting.named("check") if s.facts.get("headgate.verdict") == "ON_HOLD"
        ]
        assert held.facts["headgate.rule"]
        # Scrapes are not traced by default.
        assert (await ask(agent, "GET", "/healthz"))[0] == 200
        assert (await ask(agent, "GET", "/metrics", traceparent=PARENT))[0] == 200
        assert (await one(collecting, "GET /metrics")).parent_id == PARENT[36:52]
        assert not collecting.named("GET /healthz")


async def test_a_trace_goes_on_in_the_other_agent(collecting: Collector, tmp_path: Path) -> None:
    tracing = traced(collecting, ratio=0.0, background_ratio=1.0)
    async with serving(tmp_path / "a", tracing) as near, serving(tmp_path / "b", tracing) as far:
        link = near.context.open_link(f"http://127.0.0.1:{far.door.listener.ports[0]}")
        try:
            status, _, _ = await link.ask("GET", "/v1/status?x=secret", timeout_s=DEADLINE_S)
            assert status == 200
            pull = Pull("s", "main", "db-a", "", None, Activity.AWAKE, 0.0)
            with pytest.raises(PeerFailed):
                await link.pull(pull, timeout_s=DEADLINE_S)
        finally:
            await link.close()
        asked = await one(collecting, "peer request")
        answered = await one(collecting, "GET /v1/status")
        assert answered.parent_id == asked.span_id
        assert asked.facts["url.path"] == "/v1/status"
        pulled = await one(collecting, "shard pull")
        assert pulled.is_fault
        assert "peer" in pulled.status
        assert (await one(collecting, "POST /v1/peer/pull")).parent_id == pulled.span_id


async def test_a_client_and_its_agent_share_a_trace(collecting: Collector, tmp_path: Path) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from headgate.integrations.opentelemetry import traced as with_spans

    made, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(made))
    async with serving(tmp_path / "a", traced(collecting)) as agent:
        url = f"http://127.0.0.1:{agent.door.listener.ports[0]}"
        async with AsyncClient("etl:nightly", database="main", url=url) as client:
            assert await with_spans(client, provider).wait()
        check = await one(collecting, "check")
    (wait,) = made.get_finished_spans()
    assert wait.context is not None
    assert check.parent_id == f"{wait.context.span_id:016x}"
    assert check.trace_id == f"{wait.context.trace_id:032x}"


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("away", "cannot be reached"),
        ("stuck", "no answer in 0.2 s"),
        ("busy", "answered 503"),
        ("rejecting", "answered 403; see headers_file"),
        ("garbage", "no OTLP"),
        ("elsewhere", "answered 302"),
    ],
)
async def test_a_collector_in_trouble_hurts_nobody(
    collecting: Collector, tmp_path: Path, trouble: str, said: str
) -> None:
    patience_s = 0.2 if trouble == "stuck" else DEADLINE_S
    more = traced(collecting, background_ratio=1.0, timeout_s=patience_s)
    match trouble:
        case "away":
            more = more.replace(collecting.url, "http://127.0.0.1:1")
        case "stuck":
            collecting.is_stuck.set()
        case "busy":
            collecting.status, collecting.headers = 503, {"Retry-After": "0"}
        case "rejecting":
            collecting.status = 403
        case "garbage":
            collecting.body = b"<html>" + b"\xff" * 4096
        case "elsewhere":
            collecting.status, collecting.headers = 302, {"Location": collecting.url + "/x"}
    with structlog.testing.capture_logs() as logs:
        async with serving(tmp_path / "a", more) as agent:
            assert agent.context.tracer is not None
            sent = agent.context.tracer.outbox
            await aeventually(lambda: sent.fault is not None and sent.outcomes["undelivered"] > 2)
            assert said in (sent.fault or "")
            assert (await ask(agent, "GET", CHECK, traceparent=PARENT))[0] == 200
    told = [line for line in logs if line["event"] == "tracing.not_taken"]
    assert len(told) == 1
    assert len(collecting.heard) == len([h for h in collecting.heard if h["path"] != "/x"])


async def test_a_collector_that_comes_back_gets_reports_again(
    collecting: Collector, tmp_path: Path
) -> None:
    collecting.status = 503
    with structlog.testing.capture_logs() as logs:
        async with serving(tmp_path / "a", traced(collecting, background_ratio=1.0)) as agent:
            assert agent.context.tracer is not None
            outcomes = agent.context.tracer.outbox.outcomes
            await aeventually(lambda: collecting.heard)
            collecting.status = 200
            await aeventually(lambda: outcomes["sent"] > 0)
    events = [line["event"] for line in logs if line["event"].startswith("tracing.")]
    assert events == ["tracing.not_taken", "tracing.taken_again"]


async def test_without_the_section_nothing_is_traced(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", "") as agent:
        assert agent.context.tracer is None
        assert type(agent.rooms.check.sampler).__name__ == "Sampler"
        assert (await ask(agent, "GET", CHECK, traceparent=PARENT))[0] == 200
        assert not agent.door.listener.repeats.memo
