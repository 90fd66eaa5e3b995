"""Spans of a client's checks and waits, by OpenTelemetry.   traced(client) ──► spans

    gate = traced(headgate.Client("etl:nightly", database="main"))

Each wait and each check becomes a span in the caller's trace, with how long it was throttled, the
verdict, and the metric or rule that decided; each rejection on the way is an event of it. The
agent gets `traceparent`, so that its own span of the check becomes a child. Only where the trace is
sampled: other checks stay the same bytes each time, which agents answer fastest.

Needs opentelemetry-api, and the SDK that the application has set up. A client that decides in its
own process (local=True) and admits at once did not wait, so there is no span.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from headgate.base.traceparent import TraceParent
from headgate.check.model import PASSING
from headgate.client.answers import OK, Answer
from headgate.client.gate import Gate
from headgate.client.http1 import Response
from headgate.client.parsing import BadAnswer, parse_object
from headgate.client.steps import Ask, Asking, Sent, Sleep, Step, Steps, Together
from headgate.errors import HeadgateError, ThrottlerUnavailable, WaitedTooLong
from headgate.version import VERSION

GateT = TypeVar("GateT", bound=Gate[Any])
MAX_REJECTIONS_TOLD = 32
_PASSING = frozenset(state.value for state in PASSING)


def traced(gate: GateT, tracer_provider: trace.TracerProvider | None = None) -> GateT:
    """The same client, from now on with spans; by the global provider unless another is given."""
    tracer = trace.get_tracer("headgate.client", VERSION, tracer_provider)

    def around(what: str, asks: Gate[Any], steps: Steps) -> Steps:
        return _spanned(tracer, what, asks, steps)

    gate._around = around
    return gate


def _spanned(tracer: trace.Tracer, what: str, gate: Gate[Any], steps: Steps) -> Steps:
    # Begun when the first step is taken, in the context of the caller that waits; and never made
    # the current one, because between two steps this generator is not what runs.
    attributes = {"headgate.app": gate.app, "headgate.database": ",".join(gate.databases)}
    span = tracer.start_span(f"headgate.{what}", kind=SpanKind.CLIENT, attributes=attributes)
    story = _Story(span, gate)
    try:
        answer: Answer = yield from story.told(steps)
    except BaseException as error:
        _note_error(span, error)
        raise
    else:
        _note_answer(span, answer)
        return answer
    finally:
        story.note()
        span.end()


class _Story:
    """What happens between the first question and the last answer."""

    def __init__(self, span: Span, gate: Gate[Any]) -> None:
        self._span = span
        self._clock = gate._clock
        self._began_s = self._clock()
        self._header = _header(span)
        self._held_s = 0.0
        self._asked = 0
        self._rejections = 0

    def note(self) -> None:
        self._span.set_attributes(
            {
                "headgate.questions": self._asked,
                "headgate.rejections": self._rejections,
                "headgate.took_s": round(self._clock() - self._began_s, 6),
                "headgate.held_s": round(self._held_s, 6),
            }
        )

    def told(self, steps: Asking | Steps) -> Any:
        """The same steps; questions with the header, pauses counted."""
        sent: Sent = None
        while True:
            try:
                step = steps.send(sent)
            except StopIteration as end:
                return end.value
            before_s = self._clock()
            try:
                sent = yield self._seen(step)
            except BaseException as error:
                # A caller that gives up ends the inner steps, too.
                steps.throw(error)
                raise
            if isinstance(step, Sleep):
                self._held_s += max(0.0, self._clock() - before_s)
            elif isinstance(sent, Response) and sent.status != HTTPStatus.OK:
                self._rejected(sent)

    def _seen(self, step: Step) -> Step:
        if isinstance(step, Ask):
            self._asked += 1
            head, blank, body = step.request.partition(b"\r\n\r\n")
            return step._replace(request=head + self._header + blank + body)
        if isinstance(step, Together):
            return Together(tuple(self.told(asking) for asking in step.asking))
        return step

    def _rejected(self, reply: Response) -> None:
        """Why it is throttled, as it goes: an admission at the end does not name the cause."""
        try:
            said = parse_object(reply.body)
        except BadAnswer:
            return
        facts = _said(said)
        if not facts:
            return
        self._rejections += 1
        self._span.set_attributes({f"headgate.held_by.{name}": said for name, said in facts})
        if self._rejections <= MAX_REJECTIONS_TOLD:
            self._span.add_event("rejected", {f"headgate.{name}": said for name, said in facts})


def _header(span: Span) -> bytes:
    context = span.get_span_context()
    if not context.is_valid or not context.trace_flags.sampled:
        return b""
    parent = TraceParent(context.trace_id, context.span_id, True)
    return f"\r\ntraceparent: {parent}".encode()


def _note_answer(span: Span, answer: Answer) -> None:
    span.set_attributes(
        {
            "headgate.admitted": answer.admitted,
            "headgate.decided": answer.decided,
            **{f"headgate.{name}": said for name, said in _causes(answer)},
        }
    )
    if answer.unthrottled:
        span.set_attribute("headgate.unthrottled", True)


def _causes(answer: Answer) -> list[tuple[str, str]]:
    """The verdict, and the metrics and rules that decided."""
    parts = answer.checks or (answer,)
    metrics = [(m.scope, m.metric, m.state) for part in parts for m in part.metrics]
    return _named(answer.verdict, metrics, [part.raw.get("rule") for part in parts])


def _said(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same of an agent's answer, for any number of databases."""
    verdict, several = document.get("verdict"), document.get("checks")
    if not isinstance(verdict, str):
        return []
    parts = [one for one in several if isinstance(one, Mapping)] if several else [document]
    listed = [one for part in parts for one in part.get("metrics") or ()]
    metrics = [
        (str(one.get("scope")), str(one.get("metric")), str(one.get("state")))
        for one in listed
        if isinstance(one, Mapping)
    ]
    return _named(verdict, metrics, [part.get("rule") for part in parts])


def _named(
    verdict: str, metrics: Iterable[tuple[str, str, str]], rules: Iterable[object]
) -> list[tuple[str, str]]:
    found = [("verdict", verdict)]
    failing = [f"{scope}/{name}" for scope, name, state in metrics if state not in _PASSING]
    named = [rule for rule in rules if isinstance(rule, str)]
    if failing and verdict != OK:
        found.append(("metric", ",".join(dict.fromkeys(failing))))
    if named:
        found.append(("rule", ",".join(dict.fromkeys(named))))
    return found


def _note_error(span: Span, error: BaseException) -> None:
    if isinstance(error, WaitedTooLong) and error.answer is not None:
        _note_answer(span, error.answer)
    if isinstance(error, WaitedTooLong | ThrottlerUnavailable):
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    elif not isinstance(error, GeneratorExit):
        said = str(error) if isinstance(error, HeadgateError) else type(error).__name__
        span.set_status(Status(StatusCode.ERROR, said))


__all__ = ["traced"]
