"""Which servers a proxy goes along with: terms, old primaries, unfit replicas, addresses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.proxy.following import (
    BACK_AFTER_S,
    Led,
    ServerUse,
    ShardReport,
    ToldMember,
    ToldReading,
    elect,
    fitness_of,
    host_port,
    place_of,
)


def member(name: str, role: str | None = "replica", **more: Any) -> ToldMember:
    quiet = ToldMember(
        name, f"https://{name}:8087", role, None, True, "", False, "", None, {}, (), {}
    )
    return quiet._replace(**more)


def telling(primary: str | None, *members: ToldMember, agent: str = "", **more: Any) -> ShardReport:
    told = ShardReport(agent or f"agent of {primary}", "s", "leading", primary, "", members)
    return told._replace(**more)


def says(primary: str, term: int | None = None, *replicas: str, **more: Any) -> ShardReport:
    others = [member(name) for name in replicas]
    return telling(primary, member(primary, "primary", term=term), *others, **more)


A1, B2 = says("a", 1, "b"), says("b", 2)


def test_the_first_primary_that_is_reported_is_followed() -> None:
    found = elect(Led(), [A1], 0.0)
    assert (found.led, found.by) == (Led("a", 1), A1)


def test_a_newer_term_wins_whichever_is_contacted_first() -> None:
    for order in ([A1, B2], [B2, A1]):
        assert elect(Led(), order, 0.0).led == Led("b", 2)


def test_an_old_primary_that_is_cut_off_does_not_pull_traffic_back() -> None:
    found = elect(Led("b", 2), [A1], 0.0)
    assert (found.led, found.by) == (Led("b", 2), None)
    assert "this report is outdated" in found.doubt


def test_two_primaries_in_one_term_change_nothing() -> None:
    found = elect(Led("a", 1), [says("b", 2), says("c", 2)], 0.0)
    assert (found.led, found.by) == (Led("a", 1), None)
    same_term = elect(Led("a", 1), [says("b", 1)], 0.0)
    assert (same_term.led, same_term.by) == (Led("a", 1), None)


@pytest.mark.parametrize(
    "told",
    [
        A1._replace(standing="unled"),
        A1._replace(primary=None),
        says("a", 1)._replace(members=(member("a", "primary", reachable=False),)),
        says("a", 1)._replace(members=(member("a", "replica"),)),
    ],
    ids=["unled", "none", "not reached", "no primary by its own word"],
)
def test_who_may_not_say_so_is_not_believed(told: ShardReport) -> None:
    assert elect(Led("x", None), [told], 0.0).led == Led("x", None)


def test_the_primarys_own_agent_says_who_the_members_are() -> None:
    follower = A1._replace(standing="following", members=A1.members[:1])
    assert elect(Led(), [follower, A1], 0.0).by is A1


# --- without terms (MySQL, MariaDB) ---------------------------------------------------------


def test_without_terms_a_failover_is_followed() -> None:
    assert elect(Led("a"), [says("b", None, "a")], 0.0).led == Led("b", None, past="a")


def test_without_terms_two_that_are_claimed_change_nothing() -> None:
    assert elect(Led("b", None, "a"), [says("a"), says("b")], 0.0).led == Led("b", None, "a")


def test_without_terms_the_old_primary_has_to_see_the_new_one_follow() -> None:
    lost = telling("a", member("a", "primary"), member("b", None, reachable=False))
    found = elect(Led("b", None, "a"), [lost], 10.0)
    assert (found.led.primary, found.by) == ("b", None)
    follows = says("a", None, "b")
    assert elect(Led("b", None, "a"), [follows], 10.0).led.primary == "a"


def test_without_terms_a_claim_that_nobody_contradicts_for_long_is_believed() -> None:
    lost = telling("a", member("a", "primary"), member("b", None, reachable=False))
    led = elect(Led("b", None, "a"), [lost], 10.0).led
    assert elect(led, [lost], 10.0 + BACK_AFTER_S - 1).led.primary == "b"
    assert elect(led, [lost], 10.0 + BACK_AFTER_S).led.primary == "a"
    heard_again = elect(led, [says("b", None, "a")], 20.0).led
    assert heard_again.back_since is None


NAMES = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.lists(st.builds(says, NAMES, st.integers(1, 6)), max_size=3), max_size=12))
def test_a_term_never_goes_back_and_has_one_primary(rounds: list[list[ShardReport]]) -> None:
    led, primaries = Led(), dict[int, str]()
    for now, tellings in enumerate(rounds):
        found = elect(led, tellings, float(now)).led
        assert (found.term or 0) >= (led.term or 0)
        if found.term is not None:
            assert primaries.setdefault(found.term, found.primary) == found.primary
        led = found


# --- replicas -------------------------------------------------------------------------------

LAGGING = (ToldReading("lag", "s", "breached"),)


@pytest.mark.parametrize(
    ("told", "standing"),
    [
        (member("b"), ServerUse.TAKES),
        (member("b", readings=(ToldReading("lag", "s", "healthy"),)), ServerUse.TAKES),
        (member("b", readings=LAGGING), ServerUse.RESTS),
        (member("b", readings=(ToldReading("lag", "s", "unavailable"),)), ServerUse.RESTS),
        (
            member("b", readings=(ToldReading("disk_used", "ratio", "unavailable"),)),
            ServerUse.TAKES,
        ),
        (member("b", None, reachable=False), ServerUse.RESTS),
        (member("b", None), ServerUse.RESTS),
        (member("b", skipped=True), ServerUse.GONE),
        (member("b", problem="it is on timeline 1, the primary on 2"), ServerUse.GONE),
    ],
)
def test_a_replica_is_used_rested_or_left(told: ToldMember, standing: ServerUse) -> None:
    """An agent's silence or a lag ends no session; following another one does."""
    assert fitness_of(told).standing is standing


def test_one_that_is_skipped_for_its_lag_takes_no_sessions() -> None:
    told = member(
        "b", readings=(ToldReading("lag", "s", "healthy"),), skipped_metrics={"lag": "too far"}
    )
    assert fitness_of(told).why == "lag: too far"


# --- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("db:5432", ("db", 5432)),
        ("db", ("db", 5)),
        ("[::1]:5432", ("::1", 5432)),
        ("::1", ("::1", 5)),
        ("db:0", None),
        ("db:x", None),
        (":5432", None),
        ("", None),
    ],
)
def test_a_place_is_a_host_and_a_port(text: str, place: tuple[str, int] | None) -> None:
    assert host_port(text, 5) == place


def test_where_a_member_listens_is_its_label_its_agents_host_or_what_replicas_say() -> None:
    labelled = member("a", labels={"address": "10.0.0.1:6000"})
    assert place_of(labelled, telling("a"), 5432) == ("10.0.0.1", 6000)
    assert place_of(member("a"), telling("a"), 5432) == ("a", 5432)
    below = member("b", upstream="10.1.1.1:7000", upstream_member="a")
    assert place_of(member("a"), telling("a", below), None) == ("10.1.1.1", 7000)
    assert place_of(member("a", url="unix:///run/a.sock"), telling("a"), 5432) is None
