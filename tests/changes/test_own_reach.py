"""How far a change reaches where there is no store that all agents share: the table of it."""

from __future__ import annotations

import pytest

from headgate.changes.exchange import own_reach
from headgate.changes.reach import HERE, Reach, parse_reach
from headgate.errors import InvalidRequest

LEADS = {"commerce/-80": "", "commerce/80-": "ask https://db-x:8087"}
"""By shard of this agent: where else its changes are made."""
ONE, OTHER = parse_reach("shard:commerce/-80"), parse_reach("shard:commerce/80-")
MINE, THEIRS, NONE = {"commerce/-80"}, {"commerce/80-"}, {""}


@pytest.mark.parametrize(
    ("given", "concerned", "has_fleet", "reach"),
    [
        # What nobody said.
        (None, MINE, False, ONE),
        (None, THEIRS, False, HERE),
        (None, NONE, False, HERE),
        (None, set(), False, HERE),
        (None, MINE | THEIRS, False, HERE),
        (None, MINE | NONE, False, HERE),
        (None, {"elsewhere"}, False, HERE),
        (None, MINE, True, HERE),
        # What someone said.
        ("host", MINE, False, HERE),
        ("host:db-a", MINE, False, HERE),
        ("host:db-a", MINE, True, HERE),
        ("host:db-b", MINE, False, parse_reach("host:db-b")),
        ("shard:commerce/-80", MINE, False, ONE),
        ("shard:commerce/-80", NONE, False, ONE),
        ("shard:commerce/80-", MINE, False, "ask https://db-x:8087"),
        ("shard:commerce/80-", MINE, True, OTHER),
        ("shard:commerce/-80", MINE, True, ONE),
        ("shard:elsewhere", MINE, False, parse_reach("shard:elsewhere")),
        ("shard:commerce/*", MINE, False, parse_reach("shard:commerce/*")),
        ("fleet", MINE, False, parse_reach("fleet")),
        ("region:eu", MINE, True, parse_reach("region:eu")),
    ],
)
def test_the_table(
    given: str | None, concerned: set[str], has_fleet: bool, reach: Reach | str
) -> None:
    said = None if given is None else parse_reach(given)

    def worked_out() -> Reach:
        return own_reach(said, concerned, LEADS, host="db-a", has_fleet=has_fleet)

    if isinstance(reach, Reach):
        assert worked_out() == reach
        return
    with pytest.raises(InvalidRequest, match=reach) as rejected:
        worked_out()
    assert (rejected.value.status, rejected.value.field) == (409, "reach")


@pytest.mark.parametrize("name", ["with space", "star*", "-begins", "ü"])
def test_a_shard_whose_name_is_no_reach_has_changes_of_its_agents_alone(name: str) -> None:
    assert own_reach(None, {name}, {name: ""}, host="db-a", has_fleet=False) == HERE
