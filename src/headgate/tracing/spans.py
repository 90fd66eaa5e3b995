"""Spans by OpenTelemetry.   the parts ──Tracer──► OtelTracer ──ended──► Outbox

What is under way is remembered by the task (a context variable of our own): a loop that a request
has started goes on when that is over, and its spans are then no part of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import NamedTuple, cast

from google.protobuf.message import DecodeError
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan

from headgate.base.ports import NO_FACTS, Fact
from headgate.base.traceparent import TraceParent, parse_traceparent
from headgate.errors import HeadgateError
from headgate.tracing.outbox import BUSY, Outbox

MAX_FACT_CHARS = 512
MAX_FACTS = 32
MAX_SPANS_A_SECOND = 1000
"""Any client may request a trace: that must neither slow the agent down nor fill the network."""


class Shares(NamedTuple):
    ratio: float
    background_ratio: float


class TraceResource(NamedTuple):
    service_name: str
    agent: str
    version: str


class _Live:
    """Implements the port Span."""

    __slots__ = ("is_over", "span")

    def __init__(self, span: OtelSpan | None) -> None:
        self.span = span
        """None: what is under way is not traced, and neither is what belongs to it."""
        self.is_over = False

    def note(self, facts: Mapping[str, Fact]) -> None:
        if self.span is not None:
            self.span.set_attributes(dict(facts))

    def fault(self, detail: str) -> None:
        if self.span is not None:
            self.span.set_status(Status(StatusCode.ERROR, detail[:MAX_FACT_CHARS]))

    def end(self, error: BaseException | None) -> None:
        self.is_over = True
        if self.span is None:
            return
        if isinstance(error, asyncio.CancelledError):
            self.note({"headgate.cancelled": True})
        elif error is not None:
            # Messages of our own hold no secrets; of others', who knows.
            said = f": {error}" if isinstance(error, HeadgateError) else ""
            self.note({"error.type": type(error).__qualname__})
            self.fault(f"{type(error).__name__}{said}")
        self.span.end()


_current: ContextVar[_Live | None] = ContextVar("headgate_trace", default=None)


class _Open:
    """A span as a `with` block."""

    __slots__ = ("_live", "_token")

    def __init__(self, live: _Live) -> None:
        self._live = live
        self._token: Token[_Live | None] | None = None

    def __enter__(self) -> _Live:
        self._token = _current.set(self._live)
        return self._live

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)
        self._live.end(error)


class OtelTracer:
    """Implements the port Tracer."""

    def __init__(
        self,
        outbox: Outbox[ReadableSpan],
        who: TraceResource,
        shares: Shares,
        *,
        roll: Callable[[], float],
        mono_s: Callable[[], float],
    ) -> None:
        self.outbox = outbox
        self._shares = shares
        self._roll = roll
        self._mono_s = mono_s
        self._second, self._begun = 0, 0
        self._provider = _provider(who, outbox)
        self._tracer = self._provider.get_tracer("headgate", who.version)

    def request(
        self, name: str, traceparent: str, facts: Mapping[str, Fact] = NO_FACTS
    ) -> AbstractContextManager[_Live]:
        caller = parse_traceparent(traceparent) if traceparent else None
        if caller is None:
            context = Context() if self._roll() < self._shares.ratio else None
        else:
            context = _of(caller) if caller.sampled else None
        return self._open(name, facts, context, SpanKind.SERVER)

    def step(
        self, name: str, facts: Mapping[str, Fact] = NO_FACTS
    ) -> AbstractContextManager[_Live]:
        live = _current.get()
        if live is None or live.is_over:
            return self.turn(name, facts)
        context = None if live.span is None else set_span_in_context(live.span, Context())
        return self._open(name, facts, context, SpanKind.CLIENT)

    def turn(
        self, name: str, facts: Mapping[str, Fact] = NO_FACTS
    ) -> AbstractContextManager[_Live]:
        context = Context() if self._roll() < self._shares.background_ratio else None
        return self._open(name, facts, context, SpanKind.CLIENT)

    def traceparent(self) -> str:
        live = _current.get()
        if live is None or live.is_over or live.span is None:
            return ""
        context = live.span.get_span_context()
        return str(TraceParent(context.trace_id, context.span_id, True))

    def close(self) -> None:
        self.outbox.close()

    def _open(
        self, name: str, facts: Mapping[str, Fact], context: Context | None, kind: SpanKind
    ) -> AbstractContextManager[_Live]:
        if context is None or not self._has_room():
            return _Open(_Live(None))
        span = self._tracer.start_span(name, context, kind, dict(facts))
        return _Open(_Live(span))

    def _has_room(self) -> bool:
        second = int(self._mono_s())
        if second != self._second:
            self._second, self._begun = second, 0
        self._begun += 1
        if self._begun > MAX_SPANS_A_SECOND:
            self.outbox.outcomes[BUSY] += 1
            return False
        return True


class _ToOutbox(SpanProcessor):
    def __init__(self, outbox: Outbox[ReadableSpan]) -> None:
        self._outbox = outbox

    def on_end(self, span: ReadableSpan) -> None:
        self._outbox.put(span)


def _provider(who: TraceResource, outbox: Outbox[ReadableSpan]) -> TracerProvider:
    # Its own words go to nobody's log: what became of the spans, the outbox tells.
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    resource = Resource(
        {
            "service.name": who.service_name,
            "service.instance.id": who.agent,
            "service.version": who.version,
        }
    )
    limits = SpanLimits(max_span_attributes=MAX_FACTS, max_attribute_length=MAX_FACT_CHARS)
    provider = TracerProvider(
        sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False, span_limits=limits
    )
    provider.add_span_processor(_ToOutbox(outbox))
    return provider


def _of(caller: TraceParent) -> Context:
    flags = TraceFlags(TraceFlags.SAMPLED)
    context = SpanContext(caller.trace_id, caller.span_id, is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(context), Context())


def encoded(spans: Sequence[ReadableSpan]) -> bytes:
    return cast(bytes, encode_spans(spans).SerializeToString())


def rejected(body: bytes) -> int:
    try:
        answer = ExportTraceServiceResponse.FromString(body)
    except DecodeError:
        raise ValueError("no answer to traces") from None
    return int(answer.partial_success.rejected_spans)
