"""A settings file that lacks something it had is not followed unless someone says so (B8)."""

from __future__ import annotations

import pytest

from headgate.http.reloading import NOTHING, Confirmed, Judged, reload_faults

TWO = "[databases.a]\nx = 1\n[databases.b]\ny = 1\n[databases.b.metrics.lag]\n[[tokens]]\n"
JUDGED: Judged = {"a": {"lag"}, "b": {"lag", "commits"}}
ONE: Judged = {"a": {"lag"}}


def faults(
    new: str, judged: Judged = JUDGED, confirmed: Confirmed = NOTHING, old: str = TWO
) -> list[str]:
    return [str(fault) for fault in reload_faults(JUDGED, old, judged, new, confirmed)]


@pytest.mark.parametrize("new", [TWO, TWO + "# more\n", TWO.replace("1", "2"), "x = 1\n" + TWO])
def test_a_file_that_has_all_of_them_is_followed(new: str) -> None:
    assert faults(new) == []
    assert faults(new, {**JUDGED, "c": {"lag"}}) == []


def test_a_lost_database_is_named_with_the_way_to_confirm_it() -> None:
    (fault,) = faults("z = 1\n", ONE)
    assert fault.startswith("databases.b: is no longer in the file.")
    assert "headgate reload --drop b" in fault
    assert len(faults("z = 1\n", {})) == 2


def test_a_drop_that_is_confirmed_is_followed_and_no_other() -> None:
    assert faults("z = 1\n", ONE, Confirmed(frozenset({"b"}))) == []
    assert len(faults("z = 1\n", {}, Confirmed(frozenset({"b"})))) == 1
    assert faults(TWO + "z = 1\n", JUDGED, Confirmed(frozenset({"b"}))) == []


@pytest.mark.parametrize("new", [TWO[:-1], TWO[:-3], "[databases.a]\nx = 7"])
def test_a_file_that_ends_within_a_line_is_rejected(new: str) -> None:
    (fault,) = faults(new)
    assert "cut short" in fault and "headgate reload --whole" in fault
    assert faults(new, confirmed=Confirmed(whole=True)) == []


def test_a_file_that_is_the_beginning_of_what_it_was_loses_no_metric() -> None:
    without: Judged = {"a": {"lag"}, "b": {"commits"}}
    beginning = TWO.partition("[databases.b.metrics")[0]
    (fault,) = faults(beginning, without)
    assert "cut short" in fault
    assert faults(beginning, without, Confirmed(whole=True)) == []
    assert faults("# edited\n" + beginning, without) == [], "somebody took it out"


def test_a_file_that_is_the_beginning_of_what_it_was_loosens_no_threshold() -> None:
    """The metric is still there, and its threshold is the one by default."""
    strict, default = {"a": {"lag": 1.0}}, {"a": {"lag": 5.0}}
    old = "[databases.a]\n[databases.a.metrics.lag]\nthreshold = 1\n"
    new = old.removesuffix("threshold = 1\n")
    (fault,) = reload_faults(strict, old, default, new)
    assert "cut short" in str(fault)
    assert reload_faults(strict, old, default, new, Confirmed(whole=True)) == []
    assert reload_faults(strict, old, default, "# edited\n" + new) == [], "somebody took it out"


def test_a_token_at_the_end_is_revoked_without_further_ado() -> None:
    assert faults(TWO.partition("[[tokens")[0]) == []


def test_a_file_that_never_ended_its_last_line_is_no_news() -> None:
    assert faults("x = 2", old="x = 1") == []
