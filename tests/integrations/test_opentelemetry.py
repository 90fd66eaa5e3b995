"""Spans of a client: one for each wait, with what throttled it, in the caller's trace."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from headgate import AsyncClient, Client, ThrottlerUnavailable, WaitedTooLong
from headgate.base.traceparent import parse_traceparent
from headgate.integrations.opentelemetry import traced
from tests.client import bodies
from tests.client.scripted import OK, REJECTED, ScriptedAgent, answer
from tests.fixtures.eventually import aeventually


class Spans:
    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._made = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._made))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._made.get_finished_spans() if span.name == name]


@pytest.fixture
def spans() -> Iterator[Spans]:
    yield Spans()


def facts(span: ReadableSpan) -> dict[str, object]:
    return {
        name.removeprefix("headgate."): value for name, value in (span.attributes or {}).items()
    }


def parents(agent: ScriptedAgent) -> list[str]:
    return [heard.headers.get("traceparent", "") for heard in agent.heard]


def test_a_wait_reports_what_throttled_it(agent: ScriptedAgent, gate: Client, spans: Spans) -> None:
    held = answer(429, bodies.rejection(retry_after_ms=10, rule="r7"), Retry_After="1")
    agent.script.plays.extend([REJECTED, held, OK])
    with spans.provider.get_tracer("job").start_as_current_span("job") as job:
        assert traced(gate, spans.provider).wait()
    (wait,) = spans.named("headgate.wait")
    assert wait.parent is not None
    assert wait.parent.span_id == job.get_span_context().span_id
    told = facts(wait)
    assert told["app"] == gate.app
    assert (told["database"], told["verdict"], told["admitted"]) == ("main", "OK", True)
    assert (told["questions"], told["rejections"]) == (3, 2)
    assert told["held_by.verdict"] == "THRESHOLD_EXCEEDED"
    assert told["held_by.metric"] == "host/lag,host/threads_running"
    assert told["held_by.rule"] == "r7"
    assert 0.0 < float(str(told["held_s"])) <= float(str(told["took_s"]))
    assert [event.name for event in wait.events] == ["rejected", "rejected"]
    # The agent is told below which span it answers, each time.
    assert wait.context is not None
    for sent in map(parse_traceparent, parents(agent)):
        assert sent is not None
        assert (sent.trace_id, sent.span_id) == (wait.context.trace_id, wait.context.span_id)


def test_a_trace_that_is_not_sampled_leaves_the_check_as_it_was(
    agent: ScriptedAgent, gate: Client
) -> None:
    gate.check()
    traced(gate, TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)).check()
    assert parents(agent) == ["", ""]
    assert agent.heard[0].headers == agent.heard[1].headers


def test_what_goes_wrong_is_a_fault(agent: ScriptedAgent, gate: Client, spans: Spans) -> None:
    traced(gate, spans.provider)
    agent.script.default = answer(429, bodies.rejection(), Retry_After="2")
    with pytest.raises(WaitedTooLong):
        gate.wait(deadline_s=0.0)
    (wait,) = spans.named("headgate.wait")
    assert not wait.status.is_ok
    assert facts(wait)["verdict"] == "THRESHOLD_EXCEEDED"
    rejected = gate.check()
    assert not rejected
    (check,) = spans.named("headgate.check")
    assert check.status.is_unset
    assert facts(check)["metric"] == "host/lag,host/threads_running"
    agent.stop()
    with pytest.raises(ThrottlerUnavailable):
        gate.check()
    assert not spans.named("headgate.check")[1].status.is_ok


def test_several_databases_of_several_agents(spans: Spans) -> None:
    with ScriptedAgent() as one, ScriptedAgent(default=answer(200, bodies.ok("other"))) as two:
        with Client("etl", database={"main": one.url, "other": two.url}) as gate:
            assert traced(gate, spans.provider).wait()
        (wait,) = spans.named("headgate.wait")
        assert facts(wait)["database"] == "main,other"
        assert facts(wait)["questions"] == 2
        assert all(map(parse_traceparent, parents(one) + parents(two)))


async def test_on_an_event_loop(
    agent: ScriptedAgent, async_gate: AsyncClient, spans: Spans
) -> None:
    agent.script.plays.extend([REJECTED, OK])
    with spans.provider.get_tracer("job").start_as_current_span("job") as job:
        async for _ in traced(async_gate, spans.provider).chunks([1, 2, 3], 2):
            pass
    first, second = spans.named("headgate.wait")
    for wait in (first, second):
        assert wait.parent is not None
        assert wait.parent.span_id == job.get_span_context().span_id
    assert (facts(first)["rejections"], facts(second)["rejections"]) == (1, 0)


async def test_one_that_is_given_up_is_ended(
    agent: ScriptedAgent, async_gate: AsyncClient, spans: Spans
) -> None:
    """While it waits for the time that it was told, which is long."""
    agent.script.default = answer(429, bodies.rejection(retry_after_ms=600_000), Retry_After="600")
    tries = itertools.count()

    async def verdict() -> object:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1 * 2 ** next(tries)):
                await traced(async_gate, spans.provider).wait()
        return facts(spans.named("headgate.wait")[-1]).get("held_by.verdict")

    assert await aeventually(verdict) == "THRESHOLD_EXCEEDED"  # type: ignore[arg-type]
