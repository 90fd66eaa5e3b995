"""What the relay gets for each client: the agents' own rules and decisions (R95, R98, R100)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.names import parse_identity
from headgate.check.decide import decide
from headgate.check.model import Check
from headgate.check.snapshot import DatabaseSnapshot
from headgate.metrics.samples import Cause
from headgate.proxy.gates import SLICE, SLICE_S, GatePart, Gates, compose, levels_of, meant
from headgate.proxy.model import Act, Band, GatedStatements, GateMode, GateTerms
from headgate.proxy.ports import ActCause, ClientGate, ClientKey
from headgate.rules.matching import FOREVER, Kind, Rule, RuleBook
from tests.builders import NOW, absent, health, metric
from tests.fixtures.fakes import HandClock
from tests.proxy.fakes import FakeRelay, client, counts, snapshot, view

LAG = metric("lag", threshold=5, max_age_s=2)
OK, SICK = health((LAG, 1.0)), health((LAG, 12.3))
ENFORCED = GateTerms(clients=("etl",), mode=GateMode.ENFORCE, action=Act.DELAY)
JOB, WEB = client(2, "nightly:etl"), client(3, "web")


class World:
    def __init__(self, terms: GateTerms = ENFORCED, *, paced: bool = False) -> None:
        self.relay, self.clock = FakeRelay(), HandClock()
        self.gates = Gates(
            self.relay, "main", self.clock, lambda: self.clock.now().mono_s, terms, paced=paced
        )

    async def hear(self, seen: DatabaseSnapshot, **more: Any) -> None:
        self.gates.hear(snapshot(seen, sent_s=self.clock.now().mono_s, **more))
        await self.gates.refresh()

    def gate(self, who: ClientKey) -> ClientGate:
        return self.relay.gates[who.index]


async def judged(
    seen: DatabaseSnapshot,
    who: ClientKey = JOB,
    terms: GateTerms = ENFORCED,
    *,
    paced: bool = False,
) -> ClientGate:
    world = World(terms, paced=paced)
    world.gates.client_seen(who)
    await world.hear(seen)
    return world.gate(who)


def rule(target: str = "etl", ratio: float = 0.5, **more: Any) -> Rule:
    return Rule("r1", target, ratio, **more)


# --- health ------------------------------------------------------------------------------------


async def test_a_healthy_database_lets_everybody_pass_for_as_long_as_that_is_known() -> None:
    gate = await judged(view(OK))
    assert (gate.act, gate.ratio) == (Act.PASS, 0.0)
    assert gate.until_ms == int((NOW.wall_s + ENFORCED.stale_after_s) * 1000)


async def test_a_breach_acts_on_clients_that_the_gate_matches_and_says_why() -> None:
    gate = await judged(view(SICK))
    assert (gate.act, gate.ratio, gate.cause) == (Act.DELAY, 1.0, ActCause.HEALTH)
    assert "lag is 12.3 s, above its threshold of 5 s" in gate.reason
    assert gate.writes_only
    assert not gate.ignores_priority


async def test_a_breach_is_nothing_to_clients_that_the_gate_does_not_match() -> None:
    assert await judged(view(SICK), WEB) == ClientGate()


async def test_the_gate_warns_before_it_enforces() -> None:
    """R98: dry-run first, by default."""
    gate = await judged(view(SICK), terms=GateTerms(clients=("*",)))
    assert (gate.act, gate.ratio) == (Act.WARN, 1.0)


@pytest.mark.parametrize(
    ("targets", "name", "is_meant"),
    [
        (("*",), "web", True),
        (("all",), "web", True),
        (("etl",), "nightly:etl", True),
        (("nightly:etl",), "x:etl:nightly", True),
        (("etl",), "etl2", False),
        ((), "etl", False),
        (("unidentified",), "unidentified", True),
    ],
)
def test_clients_match_the_gate_by_level(
    targets: tuple[str, ...], name: str, is_meant: bool
) -> None:
    assert meant(targets, parse_identity(name)) is is_meant


BANDS = (Band(0.5, 0.2), Band(1.0, 0.8))


@pytest.mark.parametrize(
    ("lag_s", "ratio", "hard"),
    [(1.0, 0.0, False), (3.0, 0.2, False), (6.0, 0.8, False), (16.0, 1.0, True)],
)
async def test_bands_grade_the_response_and_a_hard_limit_heeds_no_priority(
    lag_s: float, ratio: float, hard: bool
) -> None:
    """R100."""
    terms = GateTerms(("*",), GateMode.ENFORCE, Act.BLOCK, bands=BANDS, hard_limit=3.0)
    gate = await judged(view(health((LAG, lag_s))), terms=terms)
    assert (gate.ratio, gate.ignores_priority) == (ratio, hard)


async def test_a_metric_without_a_value_is_as_bad_as_the_agent_says() -> None:
    """A hung database is never healthy."""
    seen = health((LAG, absent(Cause.TIMED_OUT, "no answer in 0.5 s")))
    gate = await judged(view(seen))
    assert (gate.act, gate.cause) == (Act.DELAY, ActCause.HEALTH)
    assert "no answer in 0.5 s" in gate.reason


@pytest.mark.parametrize("cause", [Cause.NEVER_READ, Cause.HIBERNATING, Cause.WARMING_UP])
async def test_what_was_never_measured_is_not_known_rather_than_bad(cause: Cause) -> None:
    """Then the stated fail policy applies: the gate is over as it is put."""
    gate = await judged(view(health((LAG, absent(cause)))))
    assert gate.ratio == 0
    assert gate.until_ms is not None and gate.until_ms <= NOW.wall_s * 1000


async def test_a_metric_that_there_is_not_is_said_rather_than_passed_over() -> None:
    """A misspelt setting would switch the gate off, and nobody would know."""
    world = World(GateTerms(("*",), GateMode.ENFORCE, metrics=("lagg",)))
    world.gates.client_seen(JOB)
    await world.hear(view(SICK))
    state = world.gates.state()
    assert not state.healthy
    assert "no such metric on main; configured: lag" in state.summary


async def test_an_agent_gone_leaves_health_unknown_after_its_time() -> None:
    world = World()
    world.gates.client_seen(JOB)
    await world.hear(view(SICK))
    known_until_ms = world.gate(JOB).until_ms
    await world.clock.advance(ENFORCED.stale_after_s + 1)
    await world.gates.refresh()
    assert world.gate(JOB).ratio == 0
    assert world.gate(JOB).until_ms == known_until_ms


async def test_values_that_only_look_stale_in_our_copy_do_not_block() -> None:
    """The agent reads on; what it read last has just not come yet."""
    world = World()
    world.gates.client_seen(JOB)
    await world.hear(view(OK))
    await world.clock.advance(3.0)  # older than max_age_s, and younger than stale_after_s
    await world.gates.refresh()
    assert world.gate(JOB).act is Act.PASS


@pytest.mark.parametrize(
    ("mode", "told"), [(GateMode.ENFORCE, Act.BLOCK), (GateMode.WARN, Act.PASS)]
)
def test_what_happens_on_loss_is_reported_and_a_gate_that_warns_blocks_nobody(
    mode: GateMode, told: Act
) -> None:
    world = World()
    world.gates.adopt(GateTerms(("*",), mode, on_loss=Act.BLOCK), paced=False)
    assert world.relay.lost is told


async def test_before_any_agent_reported_health_is_not_known() -> None:
    world = World()
    world.gates.client_seen(JOB)
    world.gates.client_seen(WEB)
    assert world.gate(JOB).until_ms == NOW.wall_s * 1000
    assert world.gate(WEB) == ClientGate()


# --- rules -------------------------------------------------------------------------------------


async def test_a_hold_on_one_client_says_nothing_of_the_health_of_another() -> None:
    world = World(GateTerms(("*",), GateMode.ENFORCE, Act.BLOCK))
    for who in (JOB, WEB):
        world.gates.client_seen(who)
    for seen, cause in ((OK, ActCause.NOTHING), (SICK, ActCause.HEALTH), (OK, ActCause.NOTHING)):
        await world.hear(view(seen, rule("etl", kind=Kind.HOLD)))
        assert (world.gate(JOB).cause, world.gate(WEB).cause) == (ActCause.RULE, cause)
    assert world.gates.state().healthy


async def test_a_ratio_rule_applies_to_everybody_it_means_gate_or_no_gate() -> None:
    """R98."""
    gate = await judged(view(OK, rule("web", 0.3, reason="sale")), WEB)
    assert (gate.act, gate.ratio, gate.cause) == (Act.BLOCK, 0.3, ActCause.RULE)
    assert "30% of the statements of web" in gate.reason and "sale" in gate.reason
    assert not gate.writes_only


async def test_a_tag_does_not_get_round_an_operators_rule() -> None:
    assert (await judged(view(OK, rule()), JOB)).ignores_priority


async def test_a_hold_blocks_and_a_favored_client_goes_free() -> None:
    book = [Rule("h", "all", kind=Kind.HOLD), Rule("f", "etl", ratio=0.0)]
    assert (await judged(view(OK, *book), WEB)).ratio == 1.0
    assert (await judged(view(OK, *book), JOB)).ratio == 0.0


async def test_dice_and_delay_compose_into_one_ratio_of_delayed_statements() -> None:
    """R95: half is picked by the rule, and of what is left, half by the band."""
    terms = GateTerms(
        ("*",), GateMode.ENFORCE, Act.DELAY, bands=(Band(1.0, 0.5),), rule_action=Act.DELAY
    )
    gate = await judged(view(SICK, rule(ratio=0.5)), terms=terms)
    assert (gate.act, gate.ratio) == (Act.DELAY, 0.75)


async def test_a_gate_that_only_warns_does_not_widen_a_rule() -> None:
    gate = await judged(view(SICK, rule(ratio=0.1)), terms=GateTerms(clients=("*",)))
    assert (gate.act, gate.ratio, gate.cause) == (Act.BLOCK, 0.1, ActCause.RULE)


async def test_a_delaying_rule_lets_its_picks_pass_after_a_while() -> None:
    terms = GateTerms(rule_action=Act.DELAY, rule_delay_s=0.4)
    assert (await judged(view(OK, rule()), terms=terms)).delay_s == 0.4
    held = await judged(view(OK, rule(kind=Kind.HOLD)), terms=terms)
    assert (held.delay_s, held.max_delay_s) == (0.0, terms.max_delay_s)


async def test_rules_outlive_the_agent() -> None:
    world = World()
    world.gates.client_seen(JOB)
    await world.hear(view(SICK, rule(ratio=0.4)))
    await world.clock.advance(60.0)
    await world.gates.refresh()
    gate = world.gate(JOB)
    assert (gate.ratio, gate.cause, gate.until_ms) == (0.4, ActCause.RULE, None)


async def test_a_rule_ends_by_its_own_clock() -> None:
    world = World(GateTerms())
    world.gates.client_seen(JOB)
    await world.hear(view(OK, rule(expires_at=NOW.wall_s + 10)))
    running = asyncio.ensure_future(world.gates.run())
    await world.clock.advance(9.0)
    assert world.gate(JOB).ratio == 0.5
    await world.clock.advance(2.0)
    assert world.gate(JOB) == ClientGate()
    running.cancel()


@pytest.mark.parametrize(
    ("lag_s", "exempt", "ratio"), [(12.0, True, 0.0), (20.0, False, 1.0)], ids=["below", "above"]
)
async def test_an_exemption_waives_up_to_its_ceiling(
    lag_s: float, exempt: bool, ratio: float
) -> None:
    waiver = Rule("x", "etl", kind=Kind.EXEMPT, ceiling=3.0)
    gate = await judged(view(health((LAG, lag_s)), waiver), paced=True)
    assert (gate.exempt, gate.ratio, gate.paced) == (exempt, ratio, False)


async def test_stricter_thresholds_of_a_client_are_its_own() -> None:
    strict = Rule("t", "etl", kind=Kind.THRESHOLDS, thresholds={"lag": 0.5})
    assert (await judged(view(OK, strict))).ratio == 1.0


async def test_clients_that_the_gate_matches_are_paced() -> None:
    assert (await judged(view(OK), paced=True)).paced
    assert not (await judged(view(OK), WEB, paced=True)).paced


@given(
    ratio=st.sampled_from([0.0, 0.25, 1.0]),
    kind=st.sampled_from([Kind.RATIO, Kind.HOLD, Kind.EXEMPT]),
    lag_s=st.sampled_from([0.5, 4.9, 5.1, 12.0, 40.0]),
    target=st.sampled_from(["etl", "nightly:etl", "all", "other"]),
    roll=st.floats(0, 1, exclude_max=True),
)
def test_the_gate_blocks_just_those_rolls_that_the_agent_would(
    ratio: float, kind: Kind, lag_s: float, target: str, roll: float
) -> None:
    """R98: a roll below the gate's ratio is acted upon, if and only if `decide` blocks it."""
    seen = view(health((LAG, lag_s)), Rule("r", target, ratio, kind=kind))
    terms = GateTerms(("*",), GateMode.ENFORCE, Act.BLOCK, statements=GatedStatements.ALL)
    gate = asyncio.run(judged(seen, terms=terms))
    check = Check(parse_identity(JOB.identity), "main")
    decision = decide(check, seen.health, seen.rules, now=NOW, roll=roll)
    assert (roll < gate.ratio) is not decision.admitted


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_composed_ratio_is_never_less_than_either_nor_more_than_both(a: float, b: float) -> None:
    rule_part = GatePart(a, Act.BLOCK, ActCause.RULE)
    health_part = GatePart(b, Act.BLOCK, ActCause.HEALTH)
    ratio = compose(rule_part, health_part).ratio
    assert max(a, b) - 1e-12 <= ratio <= min(1.0, a + b) + 1e-12


# --- many ----------------------------------------------------------------------------------------


async def test_a_new_client_is_decided_at_once() -> None:
    world = World()
    await world.hear(view(SICK))
    world.gates.client_seen(JOB)
    assert world.gate(JOB).ratio == 1.0


async def test_a_client_whose_event_was_lost_is_found_by_the_next_look() -> None:
    world = World()
    await world.hear(view(SICK))
    world.gates.met([counts(JOB, told=False)])
    assert world.gate(JOB).ratio == 1.0


async def test_a_place_that_is_another_clients_now_is_decided_again() -> None:
    world = World()
    await world.hear(view(SICK))
    world.gates.client_seen(JOB)
    other = client(JOB.index, "web", key=7)
    world.gates.client_seen(other)
    assert world.gate(other) == ClientGate()


async def test_nothing_is_put_while_nothing_changes() -> None:
    world, book = World(), RuleBook()
    for n in range(50):
        world.gates.client_seen(client(10 + n, f"j{n}:etl"))
    await world.hear(view(OK, book=book))
    before = world.relay.puts
    for value in (1.1, 1.2, 1.3):
        await world.clock.advance(0.2)
        await world.hear(view(health((LAG, value)), book=book))
    assert world.relay.puts == before
    await world.clock.advance(ENFORCED.stale_after_s / 2)
    await world.hear(view(OK, book=book))
    assert world.relay.puts == before + 51  # they hold for longer now; and so does their level


async def test_reports_say_which_rule_and_which_metric() -> None:
    world = World()
    world.gates.client_seen(JOB)
    await world.hear(view(SICK, rule(ratio=0.5)))
    outcome = world.gates.explained(JOB)
    assert (outcome.rule.by, outcome.health.by) == ("rule:r1", "lag")
    await world.hear(view(OK))  # over, before the second was told
    outcome = world.gates.explained(JOB)
    assert (outcome.rule.by, outcome.health.by) == ("rule:r1", "lag")
    another = client(JOB.index, "web", key=5)
    world.gates.client_seen(another)
    assert world.gates.explained(another).health.by == ""


# --- names that nobody has seen yet -------------------------------------------------------------


def test_levels_are_each_part_of_a_target_and_all_together_in_order() -> None:
    """R64: rules match tokens, never positions."""
    assert levels_of(["etl", "b:a:b", "all", "*", "others", "é", "x" * 128]) == [
        *("etl", "a", "b", "a:b")
    ]


async def test_what_a_rule_speaks_of_has_a_gate_before_anybody_of_that_name_comes() -> None:
    """R95: else anyone who makes up a name for each statement is never on hold."""
    world = World(GateTerms(("batch:nightly",), GateMode.ENFORCE, Act.BLOCK))
    await world.hear(view(SICK, rule("etl", kind=Kind.HOLD)))
    assert set(world.relay.levels) == {"batch", "nightly", "batch:nightly", "etl"}
    assert world.gate(world.relay.levels["etl"]).cause is ActCause.RULE
    assert world.gate(world.relay.levels["batch:nightly"]).cause is ActCause.HEALTH
    assert world.gate(world.relay.levels["batch"]) == ClientGate()


async def test_a_level_that_no_rule_speaks_of_any_more_is_let_go() -> None:
    world = World(GateTerms())
    await world.hear(view(OK, rule("etl"), Rule("r2", "web", 0.5)))
    await world.hear(view(OK, rule("etl"), Rule("r3", "past", 0.5, expires_at=NOW.wall_s - 1)))
    assert set(world.relay.levels) == {"etl"}
    await world.hear(view(OK, rule("etl", database="elsewhere")))
    assert world.relay.levels == {}


async def test_without_room_for_all_those_that_block_come_first_and_it_is_said() -> None:
    world = World(GateTerms())
    world.relay.places = 1
    exempt, held = Rule("r0", "web", kind=Kind.EXEMPT), rule("etl", kind=Kind.HOLD)
    await world.hear(view(OK, exempt, held))
    assert set(world.relay.levels) == {"etl"}
    assert "1 names in rules have no place" in world.gates.state().summary
    world.relay.places = 2
    await world.gates.refresh()
    assert set(world.relay.levels) == {"etl", "web"}
    assert "no place" not in world.gates.state().summary


async def test_the_report_of_an_earlier_process_counts_until_an_agent_reports() -> None:
    """A restart lifts no hold; what that process kept, and nobody speaks of, is let go then."""
    world = World(GateTerms())
    stale = world.relay.enter("stale")
    assert stale is not None
    world.gates.met([counts(JOB), counts(WEB, told=False), counts(stale, kept=True)])
    assert set(world.relay.gates) == {WEB.index}
    await world.hear(view(OK, rule("etl", kind=Kind.HOLD)))
    world.gates.met([counts(JOB), counts(stale, kept=True)])
    assert world.gate(JOB).cause is ActCause.RULE
    assert set(world.relay.levels) == {"etl"}


@pytest.mark.parametrize(("for_s", "retry_s"), [(60.0, 60.0), (7200.0, 7200.0), (None, 0.0)])
async def test_a_client_on_hold_learns_when_that_is_over(
    for_s: float | None, retry_s: float
) -> None:
    """R143: not at a time at which it is held for sure."""
    expires_at = FOREVER if for_s is None else NOW.wall_s + for_s
    gate = await judged(view(OK, rule(kind=Kind.HOLD, expires_at=expires_at)))
    assert gate.retry_s == pytest.approx(retry_s)


async def test_4096_clients_under_1000_rules_leave_turns_to_others() -> None:
    """How long the loop is away from them: bench/proxy_gates.py."""
    relay, clock = FakeRelay(places=2048), HandClock()
    ticks = itertools.count()

    def now_s() -> float:
        """So that a slice's time is over after three looks at it, however fast the machine is."""
        return NOW.mono_s + next(ticks) * SLICE_S / 2

    gates = Gates(relay, "main", clock, now_s, GateTerms(("*",), GateMode.ENFORCE))
    for n in range(4096):
        gates.client_seen(client(n, f"job{n}:team{n % 40}:batch"))
    book = RuleBook(
        Rule(f"r{n}", f"job{n}" if n % 2 else f"team{n % 40}", ratio=0.1) for n in range(1000)
    )
    gates.hear(snapshot(DatabaseSnapshot(SICK, book)))
    done = asyncio.ensure_future(gates.refresh())
    puts = [relay.puts]
    while not done.done():
        await asyncio.sleep(0)
        puts.append(relay.puts)
    assert sum(index < 4096 for index in relay.gates) == 4096
    assert len(relay.levels) == 520
    most = max(after - before for before, after in itertools.pairwise(puts))
    assert most <= 3 * SLICE
    assert len(puts) > 2 * 4096 / SLICE, "to place all of them, and to put all of their gates"
