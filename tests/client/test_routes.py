"""Asked in the wrong place: the client goes where it is sent, twice at most, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headgate import Client, InvalidName, ThrottlerUnavailable, WaitedTooLong
from headgate.client.answers import Answer
from headgate.client.question import Question
from headgate.client.routes import MAX_LEARNT, Routes, same_place
from headgate.client.target import parse_target, sent_on
from tests.client import bodies
from tests.client.authority import Authority
from tests.client.conftest import MakeCaller
from tests.client.scripted import REJECTED, Play, ScriptedAgent, answer

REASON = "main: commerce/-80 is rolled up by db-a's agent"


def wrong_agent(ask: str | None, database: str = "main", **more: Any) -> dict[str, Any]:
    told = {"verdict": "WRONG_AGENT", "reason": REASON, "retry_after_ms": 10, "metrics": []}
    return bodies.rejection(database, **told, check_at=ask, **more)


def ask_at(url: str | None) -> Play:
    return answer(421, wrong_agent(url))


@pytest.fixture
def agents() -> Iterator[list[ScriptedAgent]]:
    """Three, all of them saying OK by default."""
    with ExitStack() as started:
        yield [started.enter_context(ScriptedAgent()) for _ in range(3)]


def says(agent: ScriptedAgent, *plays: Play, always: Play | None = None) -> None:
    agent.script.plays.extend(plays)
    agent.script.default = always or agent.script.default


def counts(agents: list[ScriptedAgent]) -> list[int]:
    return [len(agent.heard) for agent in agents]


# --- following -----------------------------------------------------------------------------------


async def test_it_checks_where_it_is_sent_and_remembers(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    """R37"""
    home, primary, _ = agents
    says(home, always=ask_at(primary.url))
    caller = make_caller(home.url, token="hunter2hunter2")
    for _ in range(3):
        assert (await caller.check()).verdict == "OK"
    assert counts(agents) == [1, 3, 0]
    heard = primary.heard[0]
    assert heard.line == home.heard[0].line
    assert heard.headers["Host"] == primary.url.removeprefix("http://")
    assert heard.headers["Authorization"] == "Bearer hunter2hunter2"
    assert {heard.connection for heard in primary.heard} == {1}, "kept alive, as at home"


async def test_the_database_may_have_another_name_there(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    """An agent that probes a whole shard calls its databases by other names than the primary's."""
    home, primary, _ = agents
    says(home, always=answer(421, wrong_agent(primary.url, check_at_database="orders")))
    says(primary, always=answer(200, bodies.ok("orders")))
    caller = make_caller(home.url)
    for _ in range(2):
        assert (await caller.check()).verdict == "OK"
    assert counts(agents) == [1, 2, 0]
    assert "database=orders" in primary.heard[0].line
    assert "database=main" in home.heard[0].line


async def test_a_redirect_is_neither_a_rejection_nor_silence(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    """R50: it takes no time, and no T_wait."""
    home, primary, _ = agents
    says(home, always=ask_at(primary.url))
    caller = make_caller(home.url, max_wait_s=0, unavailable_after_s=0)
    assert await caller.wait()
    assert caller.time.slept == []


async def test_a_rejection_there_is_a_rejection(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    home, primary, _ = agents
    says(home, always=ask_at(primary.url))
    says(primary, REJECTED, REJECTED)
    caller = make_caller(home.url)
    assert await caller.wait()
    assert counts(agents) == [1, 3, 0]


async def test_two_hops_are_followed_and_no_more(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    home, second, third = agents
    says(home, always=ask_at(second.url))
    says(second, always=ask_at(third.url))
    caller = make_caller(home.url)
    assert await caller.check()
    says(third, always=ask_at("http://127.0.0.1:9"))
    assert (await make_caller(home.url).check()).verdict == "WRONG_AGENT"
    assert counts(agents) == [2, 2, 2], "where a third hop would lead is not asked"


async def test_agents_that_point_at_each_other_are_a_rejection_that_is_waited_out(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    one, other, _ = agents
    says(one, always=ask_at(other.url))
    says(other, always=ask_at(one.url))
    caller = make_caller(one.url, max_wait_s=60, unavailable_after_s=0)
    rejected = await caller.check()
    assert (rejected.verdict, rejected.admitted, rejected.check_at) == (
        "WRONG_AGENT",
        False,
        other.url,
    )
    assert counts(agents)[:2] == [2, 1]
    with pytest.raises(WaitedTooLong, match="WRONG_AGENT"):
        await caller.wait()
    assert sum(counts(agents)) < 400, "with pauses in between"
    assert sum(caller.time.slept) == pytest.approx(60, abs=1)


@pytest.mark.parametrize("where", [None, "", "unix:///tmp/x", "ftp://h", "http://u:p@h:1", 7, "h"])
async def test_nowhere_to_go_is_a_rejection(
    agents: list[ScriptedAgent], make_caller: MakeCaller, where: Any
) -> None:
    says(agents[0], always=answer(421, wrong_agent(where)))
    answered = await make_caller(agents[0].url).check()
    assert (answered.verdict, answered.reason) == ("WRONG_AGENT", REASON)


async def test_an_agent_that_points_at_itself_is_tried_once(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    home = agents[0]
    says(home, always=ask_at(home.url))
    assert (await make_caller(home.url).check()).verdict == "WRONG_AGENT"
    assert counts(agents) == [1, 0, 0]


async def test_following_can_be_switched_off(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    home, primary, _ = agents
    says(home, always=ask_at(primary.url))
    answered = await make_caller(home.url, follow=False).check()
    assert (answered.verdict, answered.check_at) == ("WRONG_AGENT", primary.url)
    assert counts(agents) == [1, 0, 0]


# --- coming back ---------------------------------------------------------------------------------


async def test_a_primary_that_fell_silent_is_looked_up_at_home(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    """R51: a failover costs one question, not the bounded wait."""
    home, old, new = agents
    says(home, ask_at(old.url), always=ask_at(new.url))
    caller = make_caller(home.url)
    assert await caller.check()
    old.stop()
    assert await caller.check()
    assert await caller.check()
    assert counts(agents) == [2, 1, 2]
    assert caller.time.slept == []


@pytest.mark.parametrize(
    "now_says",
    [
        ask_at(None),
        answer(404, bodies.rejection(verdict="UNKNOWN_METRIC", retry_after_ms=1)),
        answer(500, bodies.rejection(verdict="METRIC_UNAVAILABLE", retry_after_ms=1)),
    ],
    ids=["misdirects to nowhere", "knows it no more", "cannot speak for it"],
)
async def test_a_former_primary_is_not_tried_forever(
    agents: list[ScriptedAgent], make_caller: MakeCaller, now_says: Play
) -> None:
    home, old, new = agents
    says(home, ask_at(old.url), always=ask_at(new.url))
    caller = make_caller(home.url)
    assert await caller.check()
    says(old, always=now_says)
    assert await caller.wait()
    assert await caller.check()
    assert counts(agents) == [2, 2, 2]


async def test_a_new_primary_is_found_by_the_old_one(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    home, old, new = agents
    says(home, always=ask_at(old.url))
    caller = make_caller(home.url)
    assert await caller.check()
    says(old, always=ask_at(new.url))
    assert await caller.check()
    assert await caller.check()
    assert counts(agents) == [1, 2, 2]


async def test_a_primary_that_does_not_answer_is_unavailability(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    """R51: whoever may speak for the shard is silent; that others answer does not help."""
    home, gone, _ = agents
    url = gone.url
    gone.stop()
    says(home, always=ask_at(url))
    closed = make_caller(home.url, unavailable_after_s=2)
    with pytest.raises(
        ThrottlerUnavailable, match=f"{url} \\(named by another agent as the right one\\): conn"
    ):
        await closed.wait()
    opened = make_caller(home.url, unavailable_after_s=2, on_unavailable="open")
    assert (await opened.wait()).unthrottled


async def test_what_was_learnt_of_the_shard_is_not_used_for_the_host(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    home, primary, _ = agents
    says(home, ask_at(primary.url), answer(200, bodies.ok(read_only=True)))
    caller = make_caller(home.url)
    assert await caller.check()
    assert await caller.check_read(2.5, "host/lag")
    assert counts(agents) == [2, 1, 0]


# --- several databases -------------------------------------------------------------------------


def both(*parts: dict[str, Any]) -> Play:
    return answer(200 if all(part["admitted"] for part in parts) else 421, bodies.batch(*parts))


async def test_of_several_databases_each_is_checked_where_its_shard_is_led(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    """R38: cross-shard work consults each shard's primary."""
    home, for_main, for_other = agents
    says(
        home,
        both(wrong_agent(for_main.url), bodies.ok("here"), wrong_agent(for_other.url, "other")),
        always=answer(200, bodies.ok("here")),
    )
    says(for_other, always=answer(200, bodies.ok("other")))
    caller = make_caller(home.url, database=("main", "here", "other"))
    for _ in range(2):
        answered = await caller.check()
        assert answered.admitted
        assert [check.database for check in answered.checks] == ["main", "here", "other"]
    assert [heard.line.split()[0] for heard in home.heard] == ["POST", "GET"]
    assert counts(agents) == [2, 2, 2]


async def test_one_rejection_among_several_is_a_rejection_though_another_is_silent(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    """R50"""
    home, gone, rejecting = agents
    url = gone.url
    gone.stop()
    says(home, always=both(wrong_agent(url), wrong_agent(rejecting.url, "other")))
    says(rejecting, always=answer(429, bodies.rejection("other")))
    settings = {"unavailable_after_s": 0, "on_unavailable": "open", "database": ("main", "other")}
    caller = make_caller(home.url, **settings)
    assert (await caller.check()).verdict == "THRESHOLD_EXCEEDED"
    says(rejecting, always=answer(200, bodies.ok("other")))
    with pytest.raises(ThrottlerUnavailable):
        await caller.check()


# --- scope -------------------------------------------------------------------------------------


async def test_the_scope_is_sent_along(
    agents: list[ScriptedAgent], make_caller: MakeCaller
) -> None:
    """R41"""
    home = agents[0]
    caller = make_caller(home.url, scope="shard", metrics=("lag", "loadavg"))
    await caller.check()
    assert "&metrics=lag,loadavg&scope=shard " in home.heard[-1].line
    says(home, answer(200, bodies.ok(read_only=True)), answer(200, bodies.ok(read_only=True)))
    await caller.check_read(2.5)
    assert "&metric=shard/lag " in home.heard[-1].line
    await caller.check_read(2.5, "host/lag")
    assert "&metric=host/lag " in home.heard[-1].line
    says(home, both(bodies.ok(), bodies.ok("other")))
    await make_caller(home.url, scope="host", database=("main", "other")).check()
    assert home.heard[-1].body.count(b'"scope": "host"') == 2


def test_a_scope_that_is_none_is_rejected_when_made() -> None:
    with pytest.raises(InvalidName, match="unknown scope 'galaxy'"):
        Client("etl", database="main", scope="galaxy")  # type: ignore[arg-type]


# --- whom to trust -----------------------------------------------------------------------------


def test_never_from_tls_to_plain_text(authority: Authority) -> None:
    home = parse_target("https://h:1", authority.ca_path)
    assert sent_on(home, "http://db-a:8087") is None
    onward = sent_on(home, "https://db-a:8087")
    assert onward is not None and onward.trust is not None and home.trust is not None
    assert onward.trust.context is home.trust.context, "the caller's authority, no other"
    assert onward.trust.host == "db-a"


async def test_over_tls_the_callers_authority_is_used(
    authority: Authority, make_caller: MakeCaller
) -> None:
    tls = authority.vouches_for("127.0.0.1")
    with ScriptedAgent(tls=tls) as primary, ScriptedAgent(tls=tls) as home:
        says(home, always=ask_at(primary.url))
        assert await make_caller(home.url, tls_ca=authority.ca_path).check()
        says(home, always=ask_at(primary.url.replace("https", "http")))
        rejected = await make_caller(home.url, tls_ca=authority.ca_path).check()
        assert rejected.verdict == "WRONG_AGENT"


def test_places_are_compared_without_their_spelling() -> None:
    plain = parse_target("http://h:80")
    assert same_place(plain, parse_target("http://h/"))
    assert not same_place(plain, parse_target("https://h:80"))
    assert not same_place(plain, parse_target("unix:///h"))


def test_what_is_learnt_is_bounded() -> None:
    routes = Routes(parse_target("http://h:1"))
    away = parse_target("http://h:2")
    for number in range(10 * MAX_LEARNT):
        question = Question("etl", ("main",), b"%d" % number)
        routes.settle(question, away, Answer("OK", admitted=True, reason=""))
    assert len(routes._learnt) <= MAX_LEARNT
