"""The policy as tables: what is asked and slept, given what comes back. No sockets, no time."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.client.answers import Answer
from headgate.client.circuit import Endpoints
from headgate.client.http1 import Response
from headgate.client.question import Question
from headgate.client.replies import NoAnswer
from headgate.client.retrying import Conversation, Ways
from headgate.client.steps import Ask, Reply, Sleep, Steps
from headgate.client.target import Target
from headgate.client.waits import BACKOFF_CAP_S, Patience, backoff_s
from headgate.errors import (
    InvalidRequest,
    InvalidSettings,
    ThrottlerUnavailable,
    WaitedTooLong,
)
from tests.client import bodies
from tests.client.bodies import encoded
from tests.client.faketime import FakeTime

QUESTION = Question("etl:nightly", ("main",), b"GET")
READ_QUESTION = Question("etl:nightly", ("main",), b"GET", read_only=True)


def response(status: int, body: bytes, **headers: str) -> Response:
    return Response(status, headers, body, keep_alive=True)


def rejection(retry_after_ms: int | None = None, status: int = 429) -> Response:
    return response(status, encoded(bodies.rejection(retry_after_ms=retry_after_ms)))


OK = response(200, encoded(bodies.ok()))
REJECTED = rejection()
SILENT = NoAnswer("no answer in 1 s")


@dataclass
class Talk:
    """Plays the driver: replies from a script, and time that passes only as given."""

    patience: Patience = field(default_factory=Patience)
    dice: Callable[[], float] = lambda: 0.5
    time: FakeTime = field(default_factory=FakeTime)
    silence_s: float = 0.0
    """How long an unanswered question takes."""
    asks: list[Ask] = field(default_factory=list)

    def __post_init__(self) -> None:
        ways = Ways(Endpoints([Target("http://agent:8087")]))
        self.conversation = Conversation(self.patience, ways, self.time.clock, self.dice)

    def wait(self, replies: Iterable[Reply], deadline_s: float | None = None) -> Answer:
        return self.play(self.conversation.wait(QUESTION, deadline_s), replies)

    def check(self, reply: Reply, question: Question = QUESTION) -> Answer:
        return self.play(self.conversation.check(question), [reply])

    def play(self, steps: Steps, replies: Iterable[Reply]) -> Answer:
        script, reply = iter(replies), None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            reply = None
            if isinstance(step, Ask):
                self.asks.append(step)
                reply = next(script)
                self.time.now_s += self.silence_s if isinstance(reply, NoAnswer) else 0.0
            elif isinstance(step, Sleep):
                self.time.sleep(step.seconds)


# --- one question ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (OK, "OK"),
        (REJECTED, "THRESHOLD_EXCEEDED"),
        (rejection(status=500), "THRESHOLD_EXCEEDED"),
        (rejection(status=200), "THRESHOLD_EXCEEDED"),
        (response(429, b""), "REJECTED"),
        (response(417, b"no"), "REJECTED"),
        (response(424, b"no"), "REJECTED"),
        (response(429, encoded(bodies.ok())), "REJECTED"),
    ],
)
def test_check_returns_what_was_answered(reply: Response, verdict: str) -> None:
    """R28: only a coherent 200 admits; a no in any dialect is a no."""
    answer = Talk().check(reply)
    assert answer.verdict == verdict
    assert answer.admitted == (verdict == "OK")


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        (SILENT, "no answer in 1 s"),
        (response(200, b""), "status 200.* 0 bytes that are not JSON"),
        (response(200, b'{"admitted": true}'), "'verdict' is missing"),
        (response(200, encoded(bodies.ok("other"))), "about 'other'"),
        (response(200, encoded(bodies.ok(read_only=True))), "a write check was answered as a read"),
        (response(201, encoded(bodies.ok())), "the verdict is OK, but the HTTP status is"),
        (response(500, encoded(bodies.ok())), "the verdict is OK, but the HTTP status is"),
        (response(500, b""), "status 500"),
        (response(503, b"<html>"), "status 503"),
        (response(302, b""), "status 302"),
        (response(404, b"not found"), "status 404"),
        (response(408, b""), "status 408"),
    ],
)
def test_nothing_but_a_whole_answer_counts(reply: Reply, detail: str) -> None:
    """R28: garbage, half answers and foreign statuses are unavailability, never an OK."""
    with pytest.raises(ThrottlerUnavailable, match=detail):
        Talk().check(reply)


def test_unavailable_says_who_what_how_long_and_what_next() -> None:
    talk = Talk(silence_s=1.0)
    with pytest.raises(ThrottlerUnavailable) as caught:
        talk.check(SILENT)
    assert str(caught.value) == (
        "etl:nightly on main: no agent answered at http://agent:8087 for 1.0 s"
        " (checks sent: 1; last error: no answer in 1 s); start `headgate agent` there,"
        " or point url or HEADGATE_URL at one"
    )


@pytest.mark.parametrize("status", [400, 401, 403, 405, 413, 414, 415, 422, 431])
@pytest.mark.parametrize("on_unavailable", ["open", "closed"])
def test_a_wrong_check_is_raised_at_once(status: int, on_unavailable: Any) -> None:
    """Asking again would not help, and going ahead unthrottled would hide the mistake."""
    problem = encoded({"status": status, "detail": "the token is not known", "field": "token"})
    with pytest.raises(InvalidRequest, match="the token is not known") as caught:
        Talk(Patience(on_unavailable=on_unavailable)).wait([response(status, problem)])
    assert (caught.value.status, caught.value.field) == (status, "token")
    with pytest.raises(InvalidRequest, match="no detail given"):
        Talk().check(response(status, b"<html>"))


@pytest.mark.parametrize("on_unavailable", ["open", "closed"])
def test_an_agent_that_is_not_known_by_that_name_is_no_silence(on_unavailable: Any) -> None:
    """L1: work would go ahead unthrottled for a name that is missing in its settings."""
    problem = encoded({"status": 421, "detail": "this agent is not known as 'x'"})
    headers = {"content-type": "application/problem+json"}
    with pytest.raises(InvalidRequest, match="not known as 'x'"):
        Talk(Patience(on_unavailable=on_unavailable)).wait([response(421, problem, **headers)])


def test_a_read_check_is_never_a_permission_to_write() -> None:
    """R34."""
    answer = Talk().check(response(200, encoded(bodies.ok(read_only=True))), READ_QUESTION)
    assert answer.admitted
    assert answer.read_only
    with pytest.raises(ThrottlerUnavailable, match="a read check was answered as a write"):
        Talk().check(OK, READ_QUESTION)


# --- waiting out rejections -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roll", "slept"),
    [
        (0.0, [0.0] * 8),
        (0.5, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.5, 2.5]),
        (0.99, [0.099, 0.198, 0.396, 0.792, 1.584, 3.168, 4.95, 4.95]),
    ],
)
def test_rejections_are_waited_out_with_full_jitter_and_a_cap(
    roll: float, slept: list[float]
) -> None:
    """R32."""
    talk = Talk(dice=lambda: roll)
    assert talk.wait([*[REJECTED] * 8, OK])
    assert talk.time.slept == pytest.approx(slept)


@pytest.mark.parametrize(
    ("advised_ms", "slept_s"), [(None, 0.05), (0, 0.05), (20, 0.05), (51, 0.051), (1430, 1.43)]
)
def test_never_sooner_than_the_agent_said(advised_ms: int | None, slept_s: float) -> None:
    """R143."""
    talk = Talk()
    talk.wait([rejection(advised_ms), OK])
    assert talk.time.slept == pytest.approx([slept_s])


def test_a_turn_is_taken_when_it_comes_however_often_it_was_given() -> None:
    """R143: paced by the agent, which has jittered it already; backing off would lose the turn."""
    paced = encoded({**bodies.rejection(retry_after_ms=150), "verdict": "PACED"})
    talk = Talk(dice=lambda: 0.99)
    assert talk.wait([*[response(429, paced)] * 8, OK])
    assert talk.time.slept == pytest.approx([0.15] * 8)


def test_a_bare_rejection_is_read_by_its_header() -> None:
    talk = Talk()
    talk.wait([response(429, b"", **{"retry-after": "7"}), OK])
    assert talk.time.slept == [7.0]
    talk.wait([response(429, b"", **{"retry-after": "tomorrow"}), OK])
    assert talk.time.slept == [7.0, 0.05]


def test_without_a_deadline_rejections_are_waited_out_for_as_long_as_they_last() -> None:
    """R50: a thousand rejections are not unavailability."""
    talk = Talk(Patience(unavailable_after_s=1.0))
    assert talk.wait([*[REJECTED] * 1000, OK])
    assert talk.time.now_s > 2000


def test_waited_too_long_carries_the_last_reason() -> None:
    talk = Talk()
    with pytest.raises(WaitedTooLong) as caught:
        talk.wait(itertools.repeat(rejection(400)), deadline_s=1.0)
    assert str(caught.value) == (
        "etl:nightly on main: not admitted within 1 s (rejections: 3, over 0.8 s);"
        f" the last, THRESHOLD_EXCEEDED: {bodies.REASON}; retry after 0.4 s"
    )
    answer = caught.value.answer
    assert answer is not None
    assert (answer.verdict, answer.retry_after_s) == ("THRESHOLD_EXCEEDED", 0.4)
    assert answer.metrics[0].metric == "lag"


def test_waited_too_long_goes_from_process_to_process() -> None:
    with pytest.raises(WaitedTooLong) as caught:
        Talk().wait([REJECTED], deadline_s=0)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.answer) == (str(caught.value), caught.value.answer)
    assert WaitedTooLong("too long").answer is None


def test_no_sleep_towards_a_check_that_cannot_be_sent_in_time() -> None:
    talk = Talk()
    with pytest.raises(WaitedTooLong):
        talk.wait([rejection(60_000)], deadline_s=30)
    assert talk.time.slept == []


def test_the_last_check_is_sent_at_the_deadline() -> None:
    talk = Talk()
    with pytest.raises(WaitedTooLong):
        talk.wait(itertools.repeat(REJECTED), deadline_s=1.0)
    assert sum(talk.time.slept) == pytest.approx(1.0)
    assert Talk().wait([OK], deadline_s=0)


def test_no_deadline_cuts_an_agents_time_short() -> None:
    """One that is 80 ms away would never answer who asks with a deadline of 0."""
    talk = Talk(Patience(timeout_s=1.0))
    talk.wait([rejection(600), OK], deadline_s=1.2)
    talk.wait([OK], deadline_s=0)
    assert [ask.timeout_s for ask in talk.asks] == [1.0, 1.0, 1.0]


def test_the_client_s_own_limit_is_the_default_deadline() -> None:
    with pytest.raises(WaitedTooLong, match="not admitted within 2 s"):
        Talk(Patience(max_wait_s=2.0)).wait(itertools.repeat(REJECTED))
    assert Talk(Patience(max_wait_s=0.1)).wait([*[REJECTED] * 9, OK], deadline_s=60)


def test_every_piece_of_work_checks_again() -> None:
    """R30, R33: an OK is never kept."""
    talk = Talk()
    for _ in range(3):
        assert talk.wait([OK])
    assert len(talk.asks) == 3
    with pytest.raises(WaitedTooLong):
        talk.wait([REJECTED], deadline_s=0)


# --- names that nobody knows ----------------------------------------------------------------


def unknown(database: str = "main") -> dict[str, Any]:
    reason = f"{database}: this agent has no such database"
    return bodies.rejection(database, verdict="UNKNOWN_METRIC", reason=reason, retry_after_ms=1000)


UNKNOWN = response(404, encoded(unknown()))


def test_an_unknown_name_is_waited_on_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """R45: a new primary knows its metrics soon; a misspelt database never comes."""
    talk = Talk(dice=lambda: 0.0)
    assert talk.wait([*[UNKNOWN] * 60, OK]).verdict == "OK"
    assert caplog.messages == [
        "etl:nightly on main: for 10.0 s every answer has been UNKNOWN_METRIC, about database main"
        " (main: this agent has no such database); still waiting: is the name right?"
    ]


@pytest.mark.parametrize(
    "replies",
    [
        [*[UNKNOWN] * 10, OK],
        [*[UNKNOWN] * 9, rejection(1000), *[UNKNOWN] * 10, OK],
    ],
)
def test_a_failover_passes_without_a_warning(
    replies: list[Reply], caplog: pytest.LogCaptureFixture
) -> None:
    """R45."""
    assert Talk(dice=lambda: 0.0).wait(replies)
    assert not caplog.messages


def test_of_several_databases_the_unknown_is_named(caplog: pytest.LogCaptureFixture) -> None:
    question = Question("etl", ("main", "nope"), b"POST")
    no = response(404, encoded(bodies.batch(bodies.ok("main"), unknown("nope"))))
    yes = response(200, encoded(bodies.batch(bodies.ok("main"), bodies.ok("nope"))))
    talk = Talk()
    assert talk.play(talk.conversation.wait(question), [*[no] * 20, yes])
    (told,) = caplog.messages
    assert "about database nope (nope: this agent has no such database)" in told


# --- nobody answers -------------------------------------------------------------------------


def test_silence_is_retried_up_to_the_bounded_wait_then_closed() -> None:
    """R47, R48."""
    talk = Talk(silence_s=1.0)
    with pytest.raises(ThrottlerUnavailable, match=r"for 10\.\d s"):
        talk.wait(itertools.repeat(SILENT))
    assert 10.0 <= talk.time.now_s - 1000 <= 12.0
    assert len(talk.asks) > 4


def test_silence_then_open_is_marked() -> None:
    """R47."""
    talk = Talk(Patience(on_unavailable="open"), silence_s=1.0)
    answer = talk.wait(itertools.repeat(SILENT))
    assert answer
    assert (answer.verdict, answer.unthrottled) == ("UNAVAILABLE", True)
    assert "no agent answered at http://agent:8087" in answer.reason


@pytest.mark.parametrize("silences", range(1, 6))
def test_a_restart_within_the_bounded_wait_goes_unnoticed(silences: int) -> None:
    """R49."""
    assert Talk().wait([*[SILENT] * silences, OK]).verdict == "OK"


def test_a_rejection_in_between_starts_the_bounded_wait_again() -> None:
    """R50: an agent that rejects is there."""
    talk = Talk(Patience(on_unavailable="open", unavailable_after_s=3.0), silence_s=1.0)
    cycles: list[Reply] = [SILENT, SILENT, rejection(2500)] * 20
    assert talk.wait([*cycles, OK]).verdict == "OK"


def test_rejections_never_consume_the_bounded_wait() -> None:
    """R50: a minute of rejections, then a blip: not yet unavailable."""
    talk = Talk(Patience(on_unavailable="open"), silence_s=1.0)
    answer = talk.wait([*[rejection(10_000)] * 6, SILENT, SILENT, rejection(1), OK])
    assert answer.verdict == "OK"


def declared(unavailable_after_s: float = 10.0, roll: float = 0.5, **settings: Any) -> Talk:
    """A client of a black-holed agent, which has waited it out."""
    patience = Patience(on_unavailable="open", unavailable_after_s=unavailable_after_s, **settings)
    talk = Talk(patience, dice=lambda: roll, silence_s=patience.timeout_s)
    assert talk.wait(itertools.repeat(SILENT)).unthrottled
    talk.asks.clear()
    return talk


def test_a_closed_client_waits_a_long_outage_out_once() -> None:
    """R49: later pieces of work ask once each; the agent may be back for any of them."""
    talk = Talk(silence_s=0.1)
    with pytest.raises(ThrottlerUnavailable):
        talk.wait(itertools.repeat(SILENT))
    before_s, asked = talk.time.now_s, len(talk.asks)
    for _ in range(20):
        with pytest.raises(ThrottlerUnavailable):
            talk.wait([SILENT])
    assert len(talk.asks) - asked == 20
    assert talk.time.now_s - before_s == pytest.approx(2.0)
    assert talk.wait([OK])


@pytest.mark.parametrize(("roll", "every_s"), [(0.0, 10.0), (0.5, 12.5), (0.99, 14.95)])
def test_a_black_holed_agent_is_tried_now_and_then(roll: float, every_s: float) -> None:
    """R49: each question costs a whole timeout, so most pieces of work go on without one."""
    talk = declared(roll=roll)
    began_s, worked_s = talk.time.now_s, 0.0
    while worked_s < 300:
        assert talk.wait([SILENT]).unthrottled
        talk.time.now_s += 0.5
        worked_s += 0.5
    lost_s = talk.time.now_s - began_s - worked_s
    assert lost_s == pytest.approx(len(talk.asks) * 1.0)
    assert len(talk.asks) == pytest.approx(300 / every_s, abs=2)


def test_an_answered_probe_ends_the_outage() -> None:
    talk = declared()
    assert talk.wait([OK]).unthrottled
    talk.time.now_s += 15
    assert talk.wait([OK]).verdict == "OK"
    assert talk.wait([OK]).verdict == "OK"
    assert talk.wait([*[SILENT] * 3, OK]).verdict == "OK"
    assert len(talk.asks) == 6


def test_a_rejected_probe_is_a_rejection() -> None:
    """R50: the agent is back, and says no."""
    talk = declared()
    talk.time.now_s += 15
    with pytest.raises(WaitedTooLong):
        talk.wait([REJECTED], deadline_s=0)
    assert talk.wait([REJECTED, OK]).verdict == "OK"


def test_any_answered_check_ends_an_outage() -> None:
    talk = declared()
    talk.check(REJECTED)
    assert talk.wait([SILENT, OK]).verdict == "OK"


def test_one_piece_of_work_probes_for_all() -> None:
    """While its question is out, the others neither wait nor ask."""
    talk = declared()
    talk.time.now_s += 15
    probe = talk.conversation.wait(QUESTION)
    assert isinstance(next(probe), Ask)
    assert talk.wait([]).unthrottled
    with pytest.raises(StopIteration) as end:
        probe.send(SILENT)
    assert end.value.value.unthrottled


def test_work_that_takes_minutes_is_not_delayed_again() -> None:
    talk = declared()
    for _ in range(5):
        talk.time.now_s += 300
        assert talk.wait([SILENT]).unthrottled
    assert len(talk.asks) == 5


def test_a_declared_outage_is_forgotten_when_nobody_works() -> None:
    talk = declared()
    talk.time.now_s += 3600
    assert talk.wait([SILENT, OK]).verdict == "OK"


@pytest.mark.parametrize("on_unavailable", ["open", "closed"])
@pytest.mark.parametrize("deadline_s", [0, 0.2, 2])
def test_a_deadline_is_no_permission_to_go_on(on_unavailable: Any, deadline_s: float) -> None:
    """R47: a caller in a hurry says nothing about the agent, which may answer the next one."""
    talk = Talk(Patience(on_unavailable=on_unavailable), silence_s=0.25)
    told = f"the deadline of {deadline_s:g} s came before the 10 s of unavailable_after_s"
    with pytest.raises(ThrottlerUnavailable, match=told):
        talk.wait(itertools.repeat(SILENT), deadline_s)
    waited_s = talk.time.now_s - 1000
    # A clock that begins at 1000 has no more than twelve digits behind the point.
    assert waited_s <= deadline_s + talk.silence_s + 1e-9
    assert talk.conversation.circuit.state == "closed"
    assert talk.wait([SILENT, OK]).verdict == "OK"


@pytest.mark.parametrize("unavailable_after_s", [2.0, 10.0])
def test_who_comes_back_with_a_deadline_goes_on_once_the_outage_is_long_enough(
    unavailable_after_s: float,
) -> None:
    """As a Celery task does, every few seconds: the outage is remembered from call to call."""
    patience = Patience(on_unavailable="open", unavailable_after_s=unavailable_after_s)
    talk = Talk(patience, silence_s=0.25)
    rejected_s = []
    while True:
        try:
            assert talk.wait([SILENT], deadline_s=0).unthrottled
            break
        except ThrottlerUnavailable:
            rejected_s.append(talk.time.now_s - 1000)
            talk.time.now_s += 7
    assert rejected_s and rejected_s[-1] < unavailable_after_s


def test_an_outage_of_an_hour_ago_says_nothing_about_now() -> None:
    talk = Talk(silence_s=1.0)
    with pytest.raises(ThrottlerUnavailable):
        talk.check(SILENT)
    talk.time.now_s += 3600
    assert talk.wait([SILENT, OK]).verdict == "OK"


@pytest.mark.parametrize("on_unavailable", ["open", "closed"])
def test_silence_after_a_rejection_does_not_lift_it(on_unavailable: Any) -> None:
    talk = Talk(Patience(on_unavailable=on_unavailable), silence_s=0.5)
    with pytest.raises(WaitedTooLong, match="since then no agent has answered"):
        talk.wait([REJECTED, *[SILENT] * 50], deadline_s=2)


def test_fail_open_periods_are_logged_with_their_length_and_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R55."""
    talk = declared(unavailable_after_s=2)
    talk.wait([])
    talk.time.now_s += 60
    talk.wait([OK])
    began, ended = caplog.messages
    assert began.startswith("http://agent:8087 has not answered for 2.")
    assert "work goes on unthrottled" in began
    assert "answers again after 62." in ended
    assert ended.endswith("pieces of work run without it: 2")


# --- deciding here ---------------------------------------------------------------------------


class Lifted:
    """A local gate that holds, and from its third look on does not."""

    def __init__(self, verdict: str) -> None:
        self.rejection = Answer(verdict, False, "held", retry_after_s=30.0, database="main")
        self.looks = 0

    def check(self, question: Question, now_s: float) -> Answer | None:
        return Answer("OK", True, "", database="main") if self.looks > 2 else self.rejection

    def is_ready(self, question: Question) -> bool:
        return True

    def would_admit(self, question: Question) -> bool:
        self.looks += 1
        return self.looks > 2


@pytest.mark.parametrize(("verdict", "slept_s"), [("ON_HOLD", 2.25), ("REJECTED_BY_RATIO", 30.0)])
def test_a_lifted_hold_is_noticed_by_who_decides_here(verdict: str, slept_s: float) -> None:
    """It looks at what it was told, and asks nobody (R32); of dice nobody learns anything so."""
    talk, gate = Talk(), Lifted(verdict)
    talk.conversation.decide_locally(gate)
    if verdict != "ON_HOLD":
        with pytest.raises(WaitedTooLong):
            talk.wait([], deadline_s=40)
        assert (gate.looks, sum(talk.time.slept)) == (0, 30.0)
        return
    assert talk.wait([]).admitted
    assert sum(talk.time.slept) == pytest.approx(slept_s)
    assert talk.asks == []


# --- settings and properties ----------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout_s": 0},
        {"timeout_s": float("inf")},
        {"max_wait_s": -1},
        {"max_wait_s": float("nan")},
        {"unavailable_after_s": float("inf")},
        {"on_unavailable": "opened"},
    ],
)
def test_impossible_patience_is_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(settings))):
        Patience(**settings)


def test_an_impossible_deadline_is_rejected() -> None:
    with pytest.raises(InvalidSettings, match="deadline_s"):
        Talk().wait([OK], deadline_s=float("nan"))


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded(tries: int, roll: float) -> None:
    assert 0 <= backoff_s(tries, roll) < BACKOFF_CAP_S


replies = st.one_of(
    st.just(SILENT),
    st.just(response(200, b"half an ans")),
    st.integers(0, 9000).map(rejection),
)


@given(
    st.lists(replies, max_size=30),
    st.floats(0, 60),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["open", "closed"]),
)
def test_no_wait_outlasts_its_deadline(
    script: list[Reply], deadline_s: float, roll: float, on_unavailable: Any
) -> None:
    talk = Talk(Patience(on_unavailable=on_unavailable), dice=lambda: roll, silence_s=0.04)
    try:
        answer = talk.wait(itertools.chain(script, itertools.repeat(OK)), deadline_s)
        assert answer.verdict == ("UNAVAILABLE" if answer.unthrottled else "OK")
    except (WaitedTooLong, ThrottlerUnavailable):
        pass
    # As finely as a clock that stands at 1000 tells time: both sides are sums of floats.
    assert round(talk.time.now_s - 1000, 9) <= round(deadline_s + talk.silence_s, 9)
