"""One agent and its shard: no shard-scope OK but by the right view of the right moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from headgate.check.decide import findings
from headgate.check.demand import Work
from headgate.check.model import Activity, Idleness, Verdict
from headgate.errors import PeerFailed, ProbeFailed
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.shard.heartbeat import Heartbeat
from headgate.shard.members import LINK_TIMEOUT_S
from headgate.shard.rollup import AGGREGATES
from headgate.shard.roster import RIVAL_MEMORY_S
from headgate.shard.topology import Downstream, Following, Leading, RoleSeen, Unled
from tests.builders import metric
from tests.fixtures.eventually import DEADLINE_S, aeventually
from tests.fixtures.fakes import UNREACHABLE, FakeWriter, primary, replica, settle
from tests.fixtures.worlds import OpenWorld
from tests.shard.shard_world import ShardWorld, url

AWAKE, IDLE, HIBERNATING = Activity.AWAKE, Activity.IDLE, Activity.HIBERNATING
SHORT = Idleness(idle_after_s=2, hibernate_after_s=5)


def db_c_hangs(world: ShardWorld) -> None:
    world.agents["db-c"].hangs = True


def db_c_is_away(world: ShardWorld) -> None:
    world.agents["db-c"].fault = UNREACHABLE


# --- leading ----------------------------------------------------------------------------------


async def test_the_primarys_agent_rolls_up_its_shard(open_world: OpenWorld) -> None:
    """R36, R37"""
    world = await open_world("db-b", "db-c")
    await world.pass_s(0.5)
    assert world.leads() and world.ask().admitted
    world.agents["db-c"].values["lag"] = 9.0
    await world.pass_s(0.75)
    decision = world.ask()
    assert decision.verdict is Verdict.THRESHOLD_EXCEEDED
    assert "db-c, worst of 2" in decision.failing[0].detail
    assert world.ask("self/lag").admitted


async def test_nothing_is_rolled_up_before_every_member_was_seen(
    open_world: OpenWorld,
) -> None:
    """R45"""
    world = await open_world("db-b", "db-c", prepare=db_c_hangs)
    await world.pass_s(0.5)
    decision = world.ask()
    assert decision.verdict is Verdict.UNKNOWN_METRIC
    assert decision.failing[0].cause is Cause.WARMING_UP
    assert "db-c" in decision.failing[0].detail
    warming = world.view().warming_up
    assert world.leads() and warming is not None and "db-c" in warming.detail


async def test_before_the_first_look_at_the_shard_a_check_is_rejected(
    open_world: OpenWorld,
) -> None:
    """R45: the very first moment, before any task ran."""

    def server_hangs(world: ShardWorld) -> None:
        world.role.says = None

    world = await open_world("db-b", prepare=server_hangs)
    assert not world.ask().admitted and not world.ask("lag").admitted


async def test_a_member_that_never_answers_is_waited_for_once_then_counts_as_missing(
    open_world: OpenWorld,
) -> None:
    """R42: a failure to answer is an answer; and it rejects."""
    world = await open_world("db-b", "db-c", prepare=db_c_hangs)
    await world.pass_s(LINK_TIMEOUT_S + 0.5)
    decision = world.ask()
    assert decision.verdict is Verdict.METRIC_UNAVAILABLE
    assert decision.failing[0].cause is Cause.TIMED_OUT
    assert "db-c: no answer" in decision.failing[0].detail


async def test_an_unreachable_replica_is_skipped_after_its_time_and_named(
    open_world: OpenWorld,
) -> None:
    """R42, R150"""
    world = await open_world("db-b", "db-c", metrics=(metric("lag", missing_for_s=3),))
    await world.pass_s(1)
    world.agents["db-c"].fault = UNREACHABLE
    await world.pass_s(2, "shard/lag")
    assert world.ask().verdict is Verdict.METRIC_UNAVAILABLE
    assert world.member("db-c").problem == "connection refused"
    await world.pass_s(2, "shard/lag")
    assert world.ask().admitted
    assert "missing for" in world.member("db-c").skipped_metrics["lag"]
    world.agents["db-c"].fault = None
    world.agents["db-c"].values["lag"] = 9.0
    await world.pass_s(1)
    assert world.ask().verdict is Verdict.THRESHOLD_EXCEEDED


async def test_all_replicas_gone_is_never_no_lag(open_world: OpenWorld) -> None:
    """R43: missing, then skipped, and rejected all the while."""
    world = await open_world("db-b", "db-c", metrics=(metric("lag", missing_for_s=2),))
    await world.pass_s(1)
    for agent in world.agents.values():
        agent.fault = UNREACHABLE
    await world.pass_s(1.5)
    answers = await world.pass_s(6, "shard/lag")
    assert not any(answer.admitted for answer in answers)
    assert answers[-1].failing[0].cause is Cause.EMPTY_SHARD


async def test_a_shard_of_a_primary_alone_has_no_lag_to_show(open_world: OpenWorld) -> None:
    """R43"""
    world = await open_world()
    await world.pass_s(0.5)
    assert world.cause() is Cause.EMPTY_SHARD and not world.ask().admitted
    assert world.ask("self/lag").admitted


async def test_a_replica_on_another_timeline_does_not_count_as_current(
    open_world: OpenWorld,
) -> None:
    world = await open_world("db-b", role=primary(term=2))
    world.agents["db-b"].says = replica(term=1)
    await world.pass_s(1)
    assert world.cause() is Cause.REPLICATION_BROKEN
    assert "timeline 1" in world.member("db-b").problem


async def test_a_replica_whose_server_is_down_is_missing_although_its_agent_answers(
    open_world: OpenWorld,
) -> None:
    """R42"""
    world = await open_world("db-b")
    world.agents["db-b"].says = None
    await world.pass_s(1)
    decision = world.ask()
    assert not decision.admitted and "server down" in decision.failing[0].detail


async def test_a_metric_that_a_member_does_not_have_is_not_healthy(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    world.agents["db-b"].values.clear()
    await world.pass_s(1)
    assert world.cause() is Cause.UNKNOWN


async def test_values_of_a_member_age_while_it_is_silent(open_world: OpenWorld) -> None:
    """R18: the last good word of a member that hangs is not good forever."""
    world = await open_world("db-b")
    await world.pass_s(1)
    assert world.ask().admitted
    world.agents["db-b"].hangs = True
    answers = await world.pass_s(3, "shard/lag")
    ages = [0.25 * i for i, answer in enumerate(answers) if answer.admitted]
    assert max(ages) <= metric("lag").max_age_s + 0.25 + 0.25
    assert not answers[-1].admitted


async def test_a_change_of_state_is_seen_within_two_intervals(open_world: OpenWorld) -> None:
    """The figure: a breach on a replica is rejected by then."""
    world = await open_world("db-b")
    await world.pass_s(1)
    world.agents["db-b"].values["lag"] = 9.0
    await world.pass_s(0.5)
    await aeventually(lambda: not world.look().admitted)


async def test_a_member_with_labels_unknown_is_not_left_out_by_labels(
    open_world: OpenWorld,
) -> None:
    """R42: one that was never seen may carry the label; leaving it out would be guessing."""
    spec = metric("lag", rollup_labels={"region": "eu"})
    world = await open_world("db-b", "db-c", metrics=(spec,), prepare=db_c_is_away)
    world.agents["db-b"].labels = {"region": "eu"}
    await world.pass_s(1.5)
    assert not world.ask().admitted


async def test_one_noisy_reading_counts_once(open_world: OpenWorld) -> None:
    """R11: `3 of 5` counts readings of the shard, not how often they were looked at."""
    spec = metric("lag", debounce="3 of 5", interval_s=5, max_age_s=20)
    world = await open_world("db-b", "db-c", metrics=(spec,))
    await world.pass_s(1)
    spike_at = world.clock.now().mono_s
    world.agents["db-b"].values["lag"] = Sample(9.0, spike_at)
    for i in range(8):
        world.agents["db-c"].values["lag"] = Sample(0.1, spike_at - 4 + i / 4)
        await world.pass_s(0.5)
    assert world.look().admitted


async def test_a_broken_plug_in_does_not_silence_the_other_metrics(open_world: OpenWorld) -> None:
    def broken(values: Mapping[str, float]) -> float:
        raise ZeroDivisionError

    specs = (metric("lag"), metric("threads_running", rollup="own"))
    world = await open_world("db-b", metrics=specs, aggregates={**AGGREGATES, "own": broken})
    world.agents["db-b"].values["threads_running"] = 1.0
    await world.pass_s(1)
    assert world.look("shard/lag").admitted
    assert not world.look("shard/threads_running").admitted


# --- hopeless replicas -------------------------------------------------------------------------

FAR = metric("lag", hopeless_for_s=20)


async def test_a_hopeless_replica_is_skipped_and_counts_again(open_world: OpenWorld) -> None:
    """B9: its lag does not fall although the gate is closed, and for nobody else."""
    world = await open_world("db-b", "db-c", metrics=(FAR,))
    await world.pass_s(1)
    world.agents["db-c"].values["lag"] = 92_886.0
    answers = await world.pass_s(15, "shard/lag")
    assert not any(answer.admitted for answer in answers[4:])
    assert world.member("db-c").hopeless == ()
    await world.pass_s(8, "shard/lag")
    decision = world.ask()
    assert decision.admitted
    assert "db-c (hopeless, skipped" in findings(decision)[0].detail
    assert world.member("db-c").hopeless == ("lag",)
    world.agents["db-c"].values["lag"] = 49.0
    await world.pass_s(1)
    assert world.ask().verdict is Verdict.THRESHOLD_EXCEEDED, "far above no longer: it counts"
    assert world.member("db-c").hopeless == ()


async def test_a_replica_is_not_hopeless_while_the_primary_is_busy_itself(
    open_world: OpenWorld,
) -> None:
    """B9: another metric closes the gate as well, so nothing is shown by the lag."""
    world = await open_world("db-b", "db-c", metrics=(FAR, metric("threads_running")))
    for agent in world.agents.values():
        agent.values["threads_running"] = 1.0
    world.servers["main"].values["threads_running"] = 1e6
    world.agents["db-c"].values["lag"] = 92_886.0
    await world.pass_s(40, "shard/lag")
    assert world.member("db-c").hopeless == ()
    world.servers["main"].values["threads_running"] = 1.0
    await world.pass_s(22, "shard/lag")
    assert world.member("db-c").hopeless == ("lag",)


async def test_who_led_in_between_starts_over(open_world: OpenWorld) -> None:
    """B9: what was shown under another primary says nothing of this one; a rest says the same."""
    idle = Idleness(idle_after_s=5, hibernate_after_s=10)
    world = await open_world("db-b", "db-c", metrics=(FAR,), role=primary(term=1), idleness=idle)
    world.agents["db-c"].values["lag"] = 92_886.0
    await world.pass_s(24, "shard/lag")
    assert world.member("db-c").hopeless == ("lag",)
    await world.pass_s(30)
    assert world.state() is HIBERNATING
    await world.pass_s(3, "shard/lag")
    assert world.member("db-c").hopeless == ("lag",)
    world.role.says = replica(term=2)
    await world.pass_s(2, "shard/lag")
    assert not world.leads()
    world.role.says = primary(term=3)
    for agent in world.agents.values():
        agent.says = replica(term=3)
    await world.pass_s(10, "shard/lag")
    assert world.leads() and world.member("db-c").hopeless == ()


# --- following ---------------------------------------------------------------------------------


async def test_a_replicas_agent_says_the_right_agent(open_world: OpenWorld) -> None:
    """R37: by the primary's own pull."""
    world = await open_world("db-b", "db-c", role=replica())
    await world.answer("db-b", primary())
    decision = world.ask()
    assert decision.verdict is Verdict.WRONG_AGENT
    assert decision.check_at == url("db-b")
    assert world.ask("self/lag").admitted
    link = world.shards.primary_link("main")
    assert link is not None and link.url == url("db-b")


async def test_a_replicas_agent_that_gets_a_check_looks_for_the_primary(
    open_world: OpenWorld,
) -> None:
    """R37, R58: nobody has pulled from it yet."""
    world = await open_world("db-b", "db-c", role=replica())
    world.agents["db-b"].says = primary()
    world.agents["db-b"].url = "https://told:1"
    await world.pass_s(1)
    assert world.pulls() == 0
    assert world.ask().verdict is Verdict.METRIC_UNAVAILABLE
    await world.pass_s(0.25)
    assert world.ask().verdict is Verdict.WRONG_AGENT
    assert world.ask().check_at == "https://told:1"
    assert world.pulls() == 2


async def test_a_search_wakes_the_agents_it_contacts_and_is_not_repeated_for_each_check(
    open_world: OpenWorld,
) -> None:
    """R58: one that sleeps could only tell what it was; a client's question wakes the shard."""
    world = await open_world("db-b", "db-c", role=replica())
    await world.pass_s(4, "shard/lag", every_s=0.05)
    assert 2 <= world.pulls() <= 2 * 5
    pulls = [pull for _, pull in world.agents["db-b"].pulls]
    assert {pull.activity for pull in pulls} == {AWAKE}
    assert {pull.wait_s for pull in pulls} == {0.0}


async def test_who_was_the_primary_last_is_a_hint(
    open_world: OpenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever it is will know better; but not forever."""
    monkeypatch.setattr("headgate.shard.roster.HINT_MAX_AGE_S", 20.0)
    world = await open_world("db-b", role=replica())
    await world.answer("db-b", primary())
    await world.pass_s(10)
    assert isinstance(world.view().standpoint, Following)
    assert world.look().check_at == url("db-b")
    await world.pass_s(12, every_s=1)
    assert world.unled() is Cause.NO_PRIMARY


async def test_a_follower_pulls_from_nobody(open_world: OpenWorld) -> None:
    """R57"""
    world = await open_world("db-b", "db-c", role=replica())
    for _ in range(8):
        await world.answer("db-b", primary())
        await world.pass_s(0.5, "lag")
    assert world.pulls() == 0


async def test_a_client_of_a_replica_wakes_the_primarys_heartbeat(open_world: OpenWorld) -> None:
    """R58, R60: its lag cannot be told while no heartbeat is written."""
    world = await open_world("db-b", role=replica())
    world.servers["main"].values["lag"] = ProbeFailed(Cause.HEARTBEAT_IDLE, "resting")
    await world.answer("db-b", primary())
    world.ask("self/lag")
    await world.pass_s(4)
    assert world.agents["db-b"].wakes == 1
    await world.pass_s(30)
    assert world.agents["db-b"].wakes <= 3, "nobody asks any more"


# --- the hand-over -----------------------------------------------------------------------------


async def test_a_promotion_warms_up_and_never_answers_from_the_old_view(
    open_world: OpenWorld,
) -> None:
    """R45: within 2 s the new primary's agent has taken over."""
    world = await open_world("db-b", "db-c", role=replica(term=1))
    await world.answer("db-b", primary(term=1))
    world.agents["db-b"].says = replica(term=2)
    world.agents["db-c"].says = replica(term=2)
    world.role.says = primary(term=2)
    answers = await world.pass_s(2, "shard/lag", every_s=0.05)
    verdicts = [answer.verdict for answer in answers]
    assert verdicts[0] is Verdict.WRONG_AGENT
    assert Verdict.OK in verdicts
    admitted_from = verdicts.index(Verdict.OK)
    heard = [agent.pulls for agent in world.agents.values()]
    assert all(pulls and pulls[0][0] <= answers[admitted_from].at.mono_s for pulls in heard)
    assert isinstance(world.view().standpoint, Leading)


async def test_after_a_promotion_values_of_the_last_term_do_not_count(
    open_world: OpenWorld,
) -> None:
    """R45: each member has to be seen since."""
    world = await open_world("db-b", "db-c")
    await world.pass_s(1)
    assert world.ask().admitted
    world.role.says = replica(term=2)
    await world.pass_s(0.5)
    world.agents["db-c"].hangs = True
    world.role.says = primary(term=3)
    for agent in world.agents.values():
        agent.says = replica(term=3)
    answers = await world.pass_s(0.75, "shard/lag", every_s=0.05)
    late = [answer for answer in answers if answer.at.mono_s > answers[0].at.mono_s + 0.3]
    assert all(answer.failing[0].cause is Cause.WARMING_UP for answer in late)


async def test_a_demotion_ends_every_ok_with_the_reading_that_shows_it(
    open_world: OpenWorld,
) -> None:
    world = await open_world("db-b")
    await world.pass_s(1)
    world.role.says = replica(term=2)
    await world.pass_s(0.25)
    answers = await world.pass_s(2, "shard/lag", every_s=0.05)
    assert not any(answer.admitted for answer in answers)


async def test_a_lost_connection_to_the_old_primary_ends_every_ok_at_once(
    open_world: OpenWorld,
) -> None:
    """Failover: not one OK from the moment the server hung up."""
    world = await open_world("db-b")
    await world.pass_s(1)
    assert world.ask().admitted
    world.role.says = ProbeFailed(Cause.FAILED, "connection refused")
    world.role.hang_up()
    await settle()
    answers = await world.pass_s(3, "shard/lag", every_s=0.05)
    assert not any(answer.admitted for answer in answers)
    assert world.unled() is Cause.NO_PRIMARY


async def test_a_role_that_hangs_ends_every_ok_when_it_is_no_longer_confirmed(
    open_world: OpenWorld,
) -> None:
    """R53: the event loop may be late, the clock is not."""
    world = await open_world("db-b", metrics=(metric("lag", max_age_s=60),))
    await world.pass_s(1)
    world.role.says = None
    confirmed = world.clock.now().mono_s
    await world.clock.advance(0.3)
    answers = await world.pass_s(5, "shard/lag", every_s=0.25)
    late = [a for a in answers if a.at.mono_s > confirmed + 1.0]
    assert late and not any(answer.admitted for answer in late)


async def test_no_policy_outlives_hibernation(open_world: OpenWorld) -> None:
    """R53, R59: nobody has looked at the role for an hour; another may lead by now."""
    lenient = metric("lag", absence="ignore", empty="admit")
    world = await open_world("db-b", metrics=(lenient,), idleness=SHORT)
    await world.pass_s(15)
    assert world.state() is HIBERNATING
    world.role.says = replica(term=2)
    await world.pass_s(60, every_s=20)
    assert not world.ask().admitted


# --- split brain -------------------------------------------------------------------------------


async def test_split_brain_seen_by_a_pull_of_ours(open_world: OpenWorld) -> None:
    """R53"""
    world = await open_world("db-b", "db-c", role=primary(term=2))
    await world.pass_s(1)
    assert world.ask().admitted
    world.agents["db-b"].says = primary(term=1)
    await world.pass_s(1)
    answers = await world.pass_s(5, "shard/lag")
    assert not any(answer.admitted for answer in answers)
    assert answers[-1].verdict is Verdict.METRIC_UNAVAILABLE
    assert answers[-1].failing[0].cause is Cause.SPLIT_BRAIN
    assert "db-a" in answers[-1].failing[0].detail and "db-b" in answers[-1].failing[0].detail


async def test_split_brain_seen_by_a_claim_in_anothers_pull(open_world: OpenWorld) -> None:
    """R53: we are on the higher timeline, and reject none the less, at once."""
    world = await open_world("db-b", "db-c", role=primary(term=9))
    await world.pass_s(1)
    await world.answer("db-b", primary(term=1))
    assert world.ask().failing[0].cause is Cause.SPLIT_BRAIN


async def test_split_brain_with_a_primary_that_nobody_reported(open_world: OpenWorld) -> None:
    """R53: it pulls from us, so it knows us; that we do not know it makes nothing right."""
    world = await open_world("db-b")
    await world.pass_s(1)
    await world.answer("db-x", primary(term=5))
    assert not world.ask().admitted


async def test_split_brain_seen_by_a_replicas_agent(open_world: OpenWorld) -> None:
    """R53: it sends nobody to either."""
    world = await open_world("db-b", "db-c", role=replica())
    await world.answer("db-b", primary(term=1))
    await world.answer("db-c", primary(term=2))
    decision = world.ask()
    assert decision.failing[0].cause is Cause.SPLIT_BRAIN and not decision.check_at


async def test_split_brain_ends_when_the_other_steps_down(open_world: OpenWorld) -> None:
    world = await open_world("db-b", role=primary(term=2))
    await world.pass_s(1)
    await world.answer("db-b", primary(term=2))
    assert not world.ask().admitted
    world.agents["db-b"].says = replica(term=2)
    answers = await world.pass_s(3, "shard/lag")
    assert answers[-1].admitted


async def meet_rival(open_world: OpenWorld, ours: int | None, theirs: int | None) -> ShardWorld:
    """db-b pulls from us, says that it is the primary, and is never seen again."""

    def db_b_is_away(world: ShardWorld) -> None:
        world.agents["db-b"].fault = UNREACHABLE

    world = await open_world("db-b", "db-c", role=primary(term=ours), prepare=db_b_is_away)
    await world.pass_s(1)
    await world.answer("db-b", primary(term=theirs))
    assert world.ask().failing[0].cause is Cause.SPLIT_BRAIN
    return world


async def test_a_rival_of_a_lower_timeline_that_vanished_does_not_block(
    open_world: OpenWorld,
) -> None:
    world = await meet_rival(open_world, ours=2, theirs=1)
    answers = await world.pass_s(4, "shard/lag")
    assert answers[-1].admitted


@pytest.mark.parametrize("term", [2, 3])
async def test_a_rival_of_a_timeline_not_lower_blocks_although_it_vanished(
    open_world: OpenWorld, term: int
) -> None:
    """R53: it was promoted after us; nobody saw it step down."""
    world = await meet_rival(open_world, ours=2, theirs=term)
    answers = await world.pass_s(10, "shard/lag")
    assert not any(answer.admitted for answer in answers)
    assert answers[-1].failing[0].cause is Cause.SPLIT_BRAIN
    assert "db-b" in answers[-1].failing[0].detail


async def test_a_rival_is_not_forgotten_by_one_failed_look_at_our_own_role(
    open_world: OpenWorld,
) -> None:
    """R53: a hiccup of our server says nothing of the other one."""
    world = await meet_rival(open_world, ours=2, theirs=3)
    await world.pass_s(3, "shard/lag")
    world.role.says = ProbeFailed(Cause.TIMED_OUT, "busy")
    await world.pass_s(0.25, "shard/lag")
    world.role.says = primary(term=2)
    answers = await world.pass_s(4, "shard/lag")
    assert not any(answer.admitted for answer in answers)


async def test_a_rival_without_a_term_is_forgotten_after_its_memory(
    open_world: OpenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB has none: who won is not to be seen."""
    assert RIVAL_MEMORY_S == 600
    monkeypatch.setattr("headgate.shard.roster.RIVAL_MEMORY_S", 30.0)
    world = await meet_rival(open_world, ours=None, theirs=None)
    answers = await world.pass_s(28, "shard/lag")
    assert not any(answer.admitted for answer in answers)
    answers = await world.pass_s(5, "shard/lag")
    assert answers[-1].admitted


async def test_an_operator_who_skips_a_vanished_rival_ends_the_block(
    open_world: OpenWorld,
) -> None:
    world = await meet_rival(open_world, ours=None, theirs=None)
    await world.pass_s(3, "shard/lag")
    await world.shards.keeper.skip("main", "db-b", for_s=600, reason="it burnt down", who="ops")
    answers = await world.pass_s(2, "shard/lag")
    assert answers[-1].admitted


async def test_one_agent_under_two_names_is_no_split_brain(open_world: OpenWorld) -> None:
    """Found in the database by address, and in the file by name: the report says who it is."""
    world = await open_world(
        "db-b", role=replica(upstream="10.0.0.2:5432"), discover="https://{host}:8087"
    )
    for name in ("db-b", "10.0.0.2"):
        agent = world.agents[name]
        agent.name, agent.says = "db-b", primary(server_id="1")
    world.ask()
    await world.pass_s(0.5)
    assert world.ask().verdict is Verdict.WRONG_AGENT


# --- who counts --------------------------------------------------------------------------------


async def test_a_former_primary_that_is_gone_is_not_counted_as_a_replica(
    open_world: OpenWorld,
) -> None:
    """R44, R51: it must not hold up the shard that has been failed over."""
    world = await open_world("db-b", "db-c", role=replica(term=1))
    await world.answer("db-b", primary(term=1))
    world.agents["db-b"].fault = UNREACHABLE
    world.agents["db-c"].says = replica(term=2)
    await world.pass_s(2)
    world.role.says = primary(term=2)
    answers = await world.pass_s(3, "shard/lag")
    assert answers[-1].admitted


async def test_a_former_primary_is_not_taken_for_the_replica_it_was_before_that(
    open_world: OpenWorld,
) -> None:
    """R44, R51: failed over to db-b, which then burns down, and failed back."""
    world = await open_world("db-b", "db-c", role=primary(term=1))
    await world.pass_s(1, "shard/lag")
    world.role.says = replica(term=2)
    await world.pass_s(2)
    await world.answer("db-b", primary(term=2))
    world.agents["db-b"].fault = UNREACHABLE
    await world.pass_s(5)
    world.role.says = primary(term=3)
    answers = await world.pass_s(3, "shard/lag")
    assert answers[-1].admitted


async def test_a_former_primary_that_is_gone_does_not_speak_for_the_primary(
    open_world: OpenWorld,
) -> None:
    """R51: rollup_of = primary means the one there is."""
    spec = metric("threads_running", rollup_of="primary", scope="shard")
    world = await open_world("db-b", "db-c", role=replica(term=1), metrics=(spec,))
    await world.answer("db-b", primary(term=1))
    world.agents["db-b"].fault = UNREACHABLE
    world.agents["db-c"].says = replica(term=2)
    await world.pass_s(2)
    world.role.says = primary(term=2)
    answers = await world.pass_s(3, "shard/threads_running")
    assert answers[-1].admitted


async def test_a_replica_that_comes_back_gets_its_grace(open_world: OpenWorld) -> None:
    """R150: restored, 92,886 s behind, and visible."""
    world = await open_world("db-b", "db-c", metrics=(metric("lag", grace_s=10),))
    await world.pass_s(1)
    world.agents["db-c"].fault = UNREACHABLE
    await world.pass_s(12, "shard/lag", every_s=0.5)
    world.agents["db-c"].fault = None
    world.agents["db-c"].values["lag"] = 92_886.0
    await world.pass_s(2, "shard/lag")
    assert world.ask().admitted
    assert "of grace left" in world.member("db-c").skipped_metrics["lag"]
    await world.pass_s(10, "shard/lag", every_s=0.5)
    assert world.ask().verdict is Verdict.THRESHOLD_EXCEEDED


async def test_our_own_first_look_is_no_grace(open_world: OpenWorld) -> None:
    """A restart of the agent must not open the gate."""
    world = await open_world("db-b", metrics=(metric("lag", grace_s=60),))
    world.agents["db-b"].values["lag"] = 9.0
    await world.pass_s(1)
    assert world.ask().verdict is Verdict.THRESHOLD_EXCEEDED


async def test_a_member_that_joins_gets_its_grace(open_world: OpenWorld) -> None:
    """R150: `has just joined or come back`; a new replica is behind until it has caught up."""
    world = await open_world("db-b", metrics=(metric("lag", grace_s=60),))
    await world.pass_s(1)
    await world.shards.keeper.add_peer(
        "main", "db-c", url=url("db-c"), peer_database="main", who="ops"
    )
    world.agents["db-c"].values["lag"] = 92_886.0
    await world.pass_s(2, "shard/lag")
    assert world.ask().admitted


async def test_a_skip_applies_for_its_time_only(open_world: OpenWorld) -> None:
    """R150"""
    world = await open_world("db-b", "db-c")
    world.agents["db-c"].values["lag"] = 900.0
    await world.pass_s(1)
    assert not world.ask().admitted
    await world.shards.keeper.skip("main", "db-c", for_s=10, reason="restoring", who="ops")
    assert world.ask().admitted
    assert "skipped by ops" in world.member("db-c").skipped_metrics["lag"]
    await world.pass_s(11, "shard/lag")
    assert world.ask().verdict is Verdict.THRESHOLD_EXCEEDED
    assert world.member("db-c").skip is None and world.member("db-c").skipped_metrics == {}


# --- messages ----------------------------------------------------------------------------------


async def test_one_message_per_member_and_interval(open_world: OpenWorld) -> None:
    """Linear in replicas."""
    world = await open_world("db-b", "db-c", "db-d")
    await world.pass_s(2)
    before = world.pulls()
    await world.pass_s(10, "shard/lag")
    assert world.pulls() - before == pytest.approx(3 * 40, abs=4)
    assert world.view().messages_total == world.pulls()


async def test_news_does_not_come_faster_than_a_quarter_interval(open_world: OpenWorld) -> None:
    """A member that flaps must not make its primary's agent busy."""
    world = await open_world("db-b")
    world.agents["db-b"].news = True
    await world.pass_s(1)
    before = world.pulls()
    await world.pass_s(5, "shard/lag")
    assert world.pulls() - before <= 5 / (0.25 / 4) + 1


async def test_a_member_that_rejects_connections_is_not_pulled_faster(
    open_world: OpenWorld,
) -> None:
    world = await open_world("db-b")
    world.agents["db-b"].fault = UNREACHABLE
    await world.pass_s(5, "shard/lag")
    assert world.pulls() <= 21


async def test_a_first_check_is_not_delayed(open_world: OpenWorld) -> None:
    """R59: nor one after a silence."""
    world = await open_world("db-b")
    await world.pass_s(1)
    waits = [pull.wait_s for _, pull in world.agents["db-b"].pulls]
    assert waits[0] == 0.0 and waits[-1] == 0.25
    world.agents["db-b"].fault = UNREACHABLE
    await world.pass_s(1)
    assert world.agents["db-b"].pulls[-1][1].wait_s == 0.0


async def test_a_pull_says_who_pulls_and_how_awake_it_is(open_world: OpenWorld) -> None:
    world = await open_world("db-b")
    await world.pass_s(0.5)
    pull = world.agents["db-b"].pulls[-1][1]
    assert (pull.sender, pull.database, pull.shard) == ("db-a", "main", world.view().shard)
    assert pull.role is not None and pull.role.role is primary().role
    assert pull.activity is AWAKE


async def test_clock_skew_is_computed_and_handed_to_the_member(open_world: OpenWorld) -> None:
    """R20: agents' clocks are only the way from one database's clock to the other's."""
    world = await open_world("db-b", role=primary(clock_ahead_s=0.5))
    world.agents["db-b"].says = replica(clock_ahead_s=0.2)
    world.agents["db-b"].wall_ahead_s = 10.0
    await world.pass_s(1)
    pulls = [pull for _, pull in world.agents["db-b"].pulls]
    assert pulls[0].clock_ahead_s is None
    assert pulls[-1].clock_ahead_s == pytest.approx(10.0 + 0.2 - 0.5)
    assert pulls[-1].clock_error_s == pytest.approx(0.001)
    assert world.member("db-b").clock_ahead_s == pytest.approx(9.7 - 0.001), "beyond the error"


async def test_clock_skew_is_reported_to_the_database_it_is_about(open_world: OpenWorld) -> None:
    world = await open_world("db-b", role=replica())
    await world.answer("db-b", primary())
    assert world.servers["main"].clock_corrections == []
    await world.answer("db-b", primary(), clock_ahead_s=9.7, clock_error_s=0.01)
    assert world.servers["main"].clock_corrections == [(9.7, 0.01)]


# --- answers to pulls --------------------------------------------------------------------------


async def test_a_pull_brings_role_readings_and_the_age_of_the_last_check(
    open_world: OpenWorld,
) -> None:
    """R46"""
    world = await open_world("db-b", role=replica(term=4))
    await world.pass_s(1)
    world.ask("self/lag")
    await world.pass_s(0.5)
    report = await world.answer("db-b", primary(term=4))
    assert report.name == "db-a" and report.role is not None and report.role.term == 4
    assert report.checked_s_ago == pytest.approx(0.5)
    assert set(report.readings) == {"lag"}


async def test_a_waiting_pull_is_answered_when_something_begins_to_fail(
    open_world: OpenWorld,
) -> None:
    """Missed uptick: a breach is seen at once, at one message per interval."""
    world = await open_world("db-b", role=replica())
    await world.pass_s(1)
    held = asyncio.ensure_future(world.answer("db-b", primary(), wait_s=600.0))
    await world.pass_s(1)
    assert not held.done()
    world.servers["main"].values["lag"] = 9.0
    await world.pass_s(0.25)
    assert held.done()
    reading = held.result().readings["lag"]
    assert not isinstance(reading, Absent) and reading.value == 9.0


async def test_a_waiting_pull_is_answered_when_the_role_changes(open_world: OpenWorld) -> None:
    world = await open_world("db-b", role=replica())
    await world.pass_s(1)
    held = asyncio.ensure_future(world.answer("db-b", primary(), wait_s=600.0))
    world.role.says = primary(term=2)
    await world.pass_s(0.25)
    assert held.done()
    role = held.result().role
    assert role is not None and role.term == 2


async def test_a_waiting_pull_ends_after_its_time(open_world: OpenWorld) -> None:
    world = await open_world("db-b", role=replica())
    await world.pass_s(1)
    async with asyncio.timeout(DEADLINE_S):
        report = await world.answer("db-b", primary(), wait_s=0.01)
    assert report.name == "db-a"


# --- hibernation -------------------------------------------------------------------------------


async def test_a_hibernating_shard_costs_nothing(open_world: OpenWorld) -> None:
    """R57, R62: zero probes, zero pulls."""
    world = await open_world("db-b", "db-c", idleness=SHORT)
    await world.pass_s(12)
    assert world.state() is HIBERNATING
    pulls, reads, costs = world.pulls(), world.role.reads, dict(world.demand.costs)
    await world.pass_s(300, every_s=50)
    assert (world.pulls(), world.role.reads) == (pulls, reads)
    assert world.demand.costs == costs
    assert world.demand.costs[(AWAKE, Work.MESSAGES)] > 0
    assert world.demand.costs[(HIBERNATING, Work.MESSAGES)] <= 2


async def test_the_first_check_of_the_shard_wakes_all_of_it(open_world: OpenWorld) -> None:
    """R58, R59: rejected at first, admitted within a bounded number of intervals."""
    world = await open_world("db-b", "db-c", idleness=SHORT)
    await world.pass_s(12)
    await world.pass_s(300, every_s=50)
    answers = await world.pass_s(1.5, "shard/lag")
    assert not answers[0].admitted
    assert answers[4].admitted, "four intervals"
    pull = world.agents["db-c"].pulls[-1][1]
    assert pull.activity is AWAKE


async def test_checks_of_the_host_leave_the_shard_asleep(open_world: OpenWorld) -> None:
    """R58: hosts are independent, and their questions cost no messages."""
    world = await open_world("db-b", "db-c", idleness=SHORT)
    await world.pass_s(12, "self/lag", every_s=0.5)
    before = world.pulls()
    answers = await world.pass_s(20, "self/lag", every_s=0.5)
    assert world.pulls() == before and world.state() is AWAKE
    assert all(answer.admitted for answer in answers)


async def test_a_shard_that_slept_alone_is_brought_back_at_once(open_world: OpenWorld) -> None:
    """R59: its host was kept awake by questions of its own, its shard was slow."""
    world = await open_world("db-b", idleness=Idleness(idle_after_s=2, hibernate_after_s=600))
    await world.pass_s(8.1, "self/lag", every_s=0.3)
    answers = await world.pass_s(2, "shard/lag")
    first = next(i for i, answer in enumerate(answers) if answer.admitted)
    assert first <= 4, "four intervals"


async def test_a_shard_that_hibernated_does_not_count_that_time_as_a_members_silence(
    open_world: OpenWorld,
) -> None:
    """R59: nobody is skipped for having had no check."""
    spec = metric("lag", missing_for_s=5)
    world = await open_world("db-b", "db-c", metrics=(spec,), idleness=SHORT)
    await world.pass_s(30, "self/lag", every_s=0.5)
    warming = Absent(Cause.WARMING_UP, "its first probe is under way", world.clock.now().mono_s)
    world.agents["db-c"].values["lag"] = warming
    answers = await world.pass_s(3, "shard/lag")
    assert not any(answer.admitted for answer in answers)


async def test_a_new_leader_does_not_remember_missing_members_of_its_last_time(
    open_world: OpenWorld,
) -> None:
    """R42: missing_for_s counts from now on."""
    spec = metric("lag", missing_for_s=5)
    world = await open_world("db-b", "db-c", metrics=(spec,))
    await world.pass_s(1)
    world.agents["db-c"].fault = UNREACHABLE
    await world.pass_s(1.5, "shard/lag")
    world.role.says = replica(term=2)
    await world.pass_s(30, every_s=1)
    world.role.says = primary(term=3)
    world.agents["db-b"].says = replica(term=3)
    answers = await world.pass_s(3, "shard/lag")
    assert not any(answer.admitted for answer in answers)


async def test_idle_pulls_are_seldom_and_do_not_wait(open_world: OpenWorld) -> None:
    """R56"""
    world = await open_world("db-b", idleness=Idleness(idle_after_s=2, hibernate_after_s=600))
    await world.pass_s(6)
    before = world.pulls()
    await world.pass_s(25, every_s=2.5)
    assert 9 <= world.pulls() - before <= 11
    pull = world.agents["db-b"].pulls[-1][1]
    assert pull.activity is IDLE and pull.wait_s == 0.0


async def test_a_keeper_keeps_the_shard_rolled_up(open_world: OpenWorld) -> None:
    """R61"""
    world = await open_world("db-b", idleness=SHORT)
    world.demand.keep_awake("budgets")
    await world.pass_s(20)
    assert world.ask().admitted


# --- beats -------------------------------------------------------------------------------------


def attach_heartbeat(world: ShardWorld) -> Heartbeat:
    heart = Heartbeat("main", FakeWriter(), world.clock, world.demand, interval_s=0.25, lease_s=5)
    world.shards.attach_heartbeats([heart])
    return heart


async def test_checks_at_a_member_keep_our_heartbeat(open_world: OpenWorld) -> None:
    """R60: as its report tells, at once."""
    world = await open_world("db-b")
    heart = attach_heartbeat(world)
    world.agents["db-b"].checked_s_ago = 0.5
    await world.pass_s(10)
    assert heart.leased
    world.agents["db-b"].checked_s_ago = 60.0
    await world.pass_s(6)
    assert not heart.leased


async def test_a_member_that_is_gone_does_not_keep_our_heartbeat_forever(
    open_world: OpenWorld,
) -> None:
    """R60: its last word grows older, too."""
    world = await open_world("db-b")
    heart = attach_heartbeat(world)
    world.agents["db-b"].checked_s_ago = 0.5
    await world.pass_s(1)
    world.agents["db-b"].fault = UNREACHABLE
    await world.pass_s(20)
    assert not heart.leased


# --- a singular agent --------------------------------------------------------------------------

THREE: dict[str, RoleSeen] = {
    "one": primary(server_id="1"),
    "two": replica(server_id="2", upstream_id="1"),
    "three": replica(server_id="3", upstream_id="2"),
}


async def test_a_singular_agent_rolls_up_three_databases_without_a_message(
    open_world: OpenWorld,
) -> None:
    """R52: also in a cascade, and asked at any of them."""
    world = await open_world(databases=THREE)
    await world.pass_s(0.75)
    for database in THREE:
        assert world.ask(database=database).admitted
    world.servers["three"].values["lag"] = 9.0
    world.servers["one"].values["lag"] = 99.0  # The primary's own is no replica's.
    await world.pass_s(0.75)
    for database in THREE:
        decision = world.ask(database=database)
        assert decision.verdict is Verdict.THRESHOLD_EXCEEDED
        assert "three, worst of 2" in decision.failing[0].detail
    assert world.pulls() == 0


async def test_a_check_of_the_shard_keeps_all_databases_of_a_singular_agent_awake(
    open_world: OpenWorld,
) -> None:
    """R58: whichever of them is named."""
    world = await open_world(databases=THREE, idleness=SHORT)
    await world.pass_s(0.75)
    for _ in range(20):
        assert world.ask(database="two").admitted
        await world.pass_s(1)


async def test_a_singular_agent_sees_split_brain_among_its_own(open_world: OpenWorld) -> None:
    """R53"""
    world = await open_world(databases={**THREE, "two": primary(server_id="2")})
    await world.pass_s(1)
    assert world.ask(database="three").failing[0].cause is Cause.SPLIT_BRAIN


async def test_a_singular_agent_follows_a_promotion(open_world: OpenWorld) -> None:
    world = await open_world(databases=THREE)
    await world.pass_s(1)
    world.servers["one"].role.says = ProbeFailed(Cause.FAILED, "down")
    world.servers["one"].role.hang_up()
    await settle()
    assert world.ask(database="two").failing[0].cause is Cause.NO_PRIMARY
    world.servers["two"].role.says = primary(term=2, server_id="2")
    world.servers["three"].role.says = replica(term=2, server_id="3", upstream_id="2")
    await world.pass_s(0.5)
    view = world.view("two")
    assert isinstance(view.standpoint, Leading) and view.standpoint.primary == "two"


async def test_a_database_of_our_own_that_is_down_is_missing(open_world: OpenWorld) -> None:
    """R42, R43"""
    world = await open_world(databases=THREE)
    await world.pass_s(1)
    world.servers["three"].role.says = ProbeFailed(Cause.FAILED, "connection refused")
    await world.pass_s(0.5)
    decision = world.ask(database="one")
    assert not decision.admitted and "three" in decision.failing[0].detail


# --- being shown -------------------------------------------------------------------------------


async def test_replicas_that_nobody_watches_are_shown(open_world: OpenWorld) -> None:
    lost = Downstream("db-x", "10.0.0.9", bytes_behind=7)
    known = Downstream("db-b", "10.0.0.2")
    world = await open_world("db-b", role=primary(downstream=(known, lost)))
    await world.pass_s(0.5)
    assert world.view().unwatched == (lost,)


async def test_a_replica_is_known_by_its_servers_id_whatever_it_is_called(
    open_world: OpenWorld,
) -> None:
    """B11: its server says `localhost`, its agent is at an address."""
    known = Downstream("", "localhost", server_id="2")
    lost = Downstream("", "localhost", server_id="3")
    world = await open_world("db-b", role=primary(server_id="1", downstream=(known, lost)))
    world.agents["db-b"].says = replica(server_id="2", upstream_id="1")
    await world.pass_s(0.5)
    assert world.view().unwatched == (lost,)


async def test_an_agent_beside_another_server_answers_for_none(open_world: OpenWorld) -> None:
    """B11: it has the name of a replica, and the id of another one."""
    listed = Downstream("db-b", "db-b", server_id="2")
    world = await open_world("db-b", role=primary(server_id="1", downstream=(listed,)))
    world.agents["db-b"].says = replica(server_id="9", upstream_id="7")
    await world.pass_s(0.5)
    assert world.view().unwatched == (listed,)


@pytest.mark.parametrize(
    ("ours", "its", "is_watched"),
    [
        ({"server_id": "1"}, {"server_id": "2", "upstream_id": "1"}, True),
        ({"server_id": "1"}, {"server_id": "2", "upstream_id": "7"}, False),
        ({"cluster": "c", "port": 5432}, {"cluster": "c", "upstream": "a:5432"}, True),
        ({"cluster": "c", "port": 5432}, {"cluster": "c", "upstream": "a:5433"}, False),
        ({"cluster": "c", "port": 5432}, {"cluster": "d", "upstream": "a:5432"}, False),
        ({}, {"upstream": "a:5432"}, False),
    ],
)
async def test_a_replica_that_reports_its_source_is_not_unwatched(
    open_world: OpenWorld, ours: dict[str, Any], its: dict[str, Any], is_watched: bool
) -> None:
    """B11: our server lists it without a name or an id, from an address that is not its agent's."""
    listed = Downstream("", "localhost")
    world = await open_world("db-b", role=primary(**ours, downstream=(listed,)))
    world.agents["db-b"].says = replica(**its)
    await world.pass_s(0.5)
    assert (world.view().unwatched == ()) is is_watched
    world.role.says = primary(**ours, downstream=(listed, Downstream("", "10.0.0.9")))
    await world.pass_s(0.5)
    assert len(world.view().unwatched) == 2, "one of them is not, and nobody can tell which"


async def test_two_unwatched_replicas_of_one_default_name_are_both_shown(
    open_world: OpenWorld,
) -> None:
    """Postgres calls every replica `walreceiver` that was given no name."""
    listed = (Downstream("db-b", "10.0.0.2"), Downstream("db-b", "10.0.0.3"))
    world = await open_world("db-b", role=primary(downstream=listed))
    await world.pass_s(0.5)
    assert len(world.view().unwatched) == 1


async def test_the_view_says_why_nobody_leads(open_world: OpenWorld) -> None:
    world = await open_world("db-b", role=replica())
    world.agents["db-b"].fault = PeerFailed(Cause.TIMED_OUT, "no answer in 1 s")
    world.ask()
    await world.pass_s(1)
    point = world.view().standpoint
    assert isinstance(point, Unled) and "db-b: no answer in 1 s" in point.absent.detail
