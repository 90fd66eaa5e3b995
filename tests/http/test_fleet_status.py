"""How an agent stands with its fleet: status, readiness and metrics say it, and nobody waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headgate.changes.follower import FollowState
from headgate.changes.mirror import WentBack
from headgate.fleet.status import MAX_TOLD, FleetLook, amiss
from headgate.fleet.view import FleetCounts
from headgate.metrics.samples import Instant
from tests.http.serving import LOOPS, Plan, Served, serving
from tests.http.test_exposition import ONLY_FLEET

NOW = Instant(wall_s=1_700_000_000.0, mono_s=500.0)
FRESH = FollowState(
    source="etcd 10.0.0.1:2379",
    direct=True,
    store_id="s",
    revision=812,
    n=14,
    heard_at=Instant(wall_s=1_699_999_999.0, mono_s=499.0),
    stale_since=None,
    stale_for_s=0.0,
    from_cache_of=None,
    fault="",
    went_back=None,
    shards=37,
    entries=5,
    connects_total=2,
    losses_total=1,
    listings_total=1,
)
STALE = replace(
    FRESH, source="", stale_since=1_699_999_900.0, stale_for_s=100.0, fault="etcd: no answer in 2 s"
)
FROM_DISK = replace(
    STALE, heard_at=None, from_cache_of=1_699_990_000.0, stale_since=1_699_990_000.0,
    stale_for_s=10_000.0,
)  # fmt: skip
UNKNOWN = replace(STALE, store_id="", revision=0, n=0, heard_at=None)
EMPTY = replace(FRESH, revision=0, n=0, entries=0)
BEHIND = replace(FRESH, went_back=WentBack(1_699_999_000.0, 14, 3, 2))


@dataclass
class Follower:
    told: FollowState

    def state(self) -> FollowState:
        return self.told


class View:
    counts = FleetCounts(shards=3, unhealthy=1, silent=1, healthy=1, agents=9, behind=2, stale=1)


def look(state: FollowState, **more: Any) -> FleetLook:
    return FleetLook(Follower(state), **more)


def test_a_fleet_that_is_followed_is_one_quiet_line() -> None:
    doc = look(FRESH).doc(NOW)
    assert doc.says == "n 14 from etcd 10.0.0.1:2379, last seen 1.0 s ago"
    assert (doc.last_seen_s_ago, doc.stale_for_s, doc.kept) == (1.0, None, 0)
    assert look(FRESH).advice() == []


def test_a_fleet_that_is_out_of_reach_is_reported_with_what_stays_in_force() -> None:
    (told,) = look(STALE).advice()
    assert "no contact for" in told and "etcd: no answer in 2 s" in told
    assert "n 14 stay in force" in told
    assert "STALE for" in look(STALE).doc(NOW).says


def test_what_is_from_the_disk_says_how_old_it_is() -> None:
    doc = look(FROM_DISK).doc(NOW)
    assert doc.from_cache_of == "2023-11-14T19:26:40Z"
    assert "from this host's disk, of 2023-11-14T19:26:40Z, STALE for 2.8 h" in doc.says


def test_knowing_nothing_is_not_said_to_be_nothing_set() -> None:
    assert "nothing is known of the fleet yet: etcd: no answer" in look(UNKNOWN).doc(NOW).says
    (told,) = look(UNKNOWN).advice()
    assert "not in force here until it has" in told


def test_a_fleet_for_which_nothing_was_ever_set_is_known_to_be_so() -> None:
    assert look(EMPTY).doc(NOW).says == "n 0 from etcd 10.0.0.1:2379, last seen 1.0 s ago"
    assert look(EMPTY).advice() == []


def test_a_store_that_went_back_is_loud_and_says_what_to_do() -> None:
    (told,) = look(BEHIND).advice()
    assert "went back from n 14 to 3" in told and "2 items that stay in force" in told
    assert "`headgate changes restore --fleet --dry-run`" in told
    assert look(BEHIND).doc(NOW).kept == 2


def test_items_deleted_by_hand_are_not_called_a_store_that_went_back() -> None:
    by_hand = replace(FRESH, went_back=WentBack(1_699_999_000.0, 14, 14, 1))
    (told,) = look(by_hand).advice()
    assert "items were deleted from its store by hand (n 14 as before)" in told
    assert "1 item that stay in force" in told


def test_what_others_have_by_the_same_names_is_reported_and_bounded() -> None:
    told = amiss(
        {"db-a": "https://copy:8087"}, {"ghost": "it does not count"}, {"c/0": "db-x at u"}
    )
    assert "another agent at https://copy:8087 also registers db-a" in told[0]
    assert "shard c/0 is also reported by db-x at u" in told[1]
    assert told[2:] == ["it does not count"]
    assert amiss({}, {}, {}) == []
    many = amiss({}, {str(at): f"why {at}" for at in range(20)}, {})
    assert len(many) == MAX_TOLD + 1 and many[-1] == f"{20 - MAX_TOLD} more of this kind"


def test_what_else_is_wrong_is_reported() -> None:
    """A beat that cannot be written, a copy that cannot be kept: nothing else would show it."""
    assert look(FRESH, notes=lambda: ["the disk is full"]).advice() == ["fleet: the disk is full"]


# --- served ------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(LOOPS["asyncio"], tmp_path, Plan()) as served:
        yield served


def stand(served: Served, fleet: FleetLook) -> None:
    served.call(setattr, served.views, "parts", replace(served.views.parts, fleet=fleet))


def scraped(served: Served) -> dict[tuple[str, str], float]:
    body = served.ask("GET", "/metrics").body.decode()
    families = text_string_to_metric_families(body)
    samples = [sample for family in families for sample in family.samples]
    return {
        (one.name, next(iter(one.labels.values()), "")): one.value
        for one in samples
        if one.name.startswith("headgate_fleet_")
    }


def test_an_agent_stays_ready_while_its_fleet_is_away(served: Served) -> None:
    """No check waits for it, and none is to be sent elsewhere for it."""
    stand(served, look(STALE))
    ready = served.ask("GET", "/readyz")
    assert ready.status == 200 and ready.json["ready"]
    assert "no contact for" in ready.json["notes"][0]
    status = served.ask("GET", "/v1/status").json
    assert status["fleet"]["source"] is None and status["fleet"]["n"] == 14
    assert any("no contact for" in advice for advice in status["advice"])


def test_an_agent_of_no_fleet_reports_nothing_of_one(served: Served) -> None:
    assert served.ask("GET", "/v1/status").json["fleet"] is None
    assert served.ask("GET", "/readyz").json["notes"] == []
    assert scraped(served) == {}


def test_every_series_of_a_fleet_is_there_with_few_labels(served: Served) -> None:
    stand(served, look(BEHIND, requests={"ok": 7, "conflict": 1}, view=View()))
    samples = scraped(served)
    assert {name for name, _ in samples} == ONLY_FLEET
    assert samples["headgate_fleet_n", "s"] == 14
    assert samples["headgate_fleet_revision", ""] == 812
    assert samples["headgate_fleet_stale_seconds", ""] == 0
    assert samples["headgate_fleet_kept_items", ""] == 2
    assert samples["headgate_fleet_store_requests_total", "conflict"] == 1
    assert samples["headgate_fleet_agents_behind", ""] == 2
    assert samples["headgate_fleet_shards", "unhealthy"] == 1
    sources = {label: value for (name, label), value in samples.items() if name.endswith("_source")}
    assert sources == {"store": 1, "agent": 0, "nobody": 0}
    assert len(samples) < 40


def test_what_is_not_known_has_no_series_instead_of_a_0(served: Served) -> None:
    stand(served, look(UNKNOWN))
    samples = scraped(served)
    assert "headgate_fleet_n" not in {name for name, _ in samples}
    assert ("headgate_fleet_revision", "") not in samples
    assert samples["headgate_fleet_stale_seconds", ""] == 100
    assert samples["headgate_fleet_source", "nobody"] == 1
