"""Rogue client: works in the database, never checks (R138)."""

from __future__ import annotations

import pytest

from headgate.history.sessions import GONE_LOOKS, MAX_GROUPS, Presence, SessionGroup, suspects

ETL = SessionGroup("etl_rw", "etl:nightly", "10.0.0.1", 4, 2)
ROGUE = SessionGroup("alice", "psql", "10.0.0.9", 1, 1)
NOBODY: frozenset[str] = frozenset()


def looked(*groups: SessionGroup, times: int = 10) -> Presence:
    presence = Presence()
    for _ in range(times):
        presence = presence.after(groups, keep=0.98)
    return presence


def test_who_never_checked_is_suspected_with_its_share() -> None:
    [found] = suspects(looked(ETL, ROGUE), frozenset({"etl", "nightly"}))
    assert found.who.user == "alice" and found.sessions == 1
    assert found.share == pytest.approx(1 / 3) and found.active_mean == pytest.approx(1.0)


@pytest.mark.parametrize("token", ["alice", "psql", "PSQL"])
def test_a_client_that_calls_itself_as_its_sessions_do_is_known(token: str) -> None:
    assert suspects(looked(ROGUE), frozenset({token})) == ()


def test_who_only_sits_there_is_no_suspect() -> None:
    assert suspects(looked(ROGUE._replace(active=0)), NOBODY) == ()


def test_our_own_sessions_are_none() -> None:
    assert suspects(looked(ROGUE._replace(application="headgate")), NOBODY) == ()


def test_a_program_that_has_gone_is_no_suspect_however_active_it_was() -> None:
    presence = looked(ROGUE, times=500)
    for _ in range(GONE_LOOKS - 1):
        presence = presence.after((), keep=0.98)
    assert suspects(presence, NOBODY), "between two of its connections"
    assert suspects(presence.after((ROGUE,), keep=0.98), NOBODY)
    gone = presence.after((), keep=0.98)
    assert suspects(gone, NOBODY) == () and not gone.active and not gone.unseen


def test_groups_are_bounded() -> None:
    presence = Presence()
    for look in range(5):
        crowd = [ROGUE._replace(host=f"h{look}-{n}") for n in range(2 * MAX_GROUPS)]
        presence = presence.after(crowd, keep=0.98)
    assert len(presence.active) <= MAX_GROUPS
