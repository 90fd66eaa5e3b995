"""`headgate fleet status`: the fleet on a terminal, once and live."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from rich.console import Console, RenderableType

from headgate.base.keyvalue import Entry
from headgate.cli.api import connect
from headgate.cli.documents import read
from headgate.cli.fleet import PATH
from headgate.cli.render import Canvas
from headgate.cli.render import drawn as drawn_view
from headgate.fleet.picture import FleetLedger, Noted
from headgate.fleet.view import Holders, StoreLink
from headgate.fleet.view_api import FleetDoc, FleetQuery, fleet_doc
from headgate.metrics.samples import Instant
from headgate.present.fleet import fleet_view
from headgate.tui.layout import ViewRequest
from headgate.tui.page import Moment, still
from headgate.tui.paint import Lines
from headgate.tui.poller import ViewFeed
from headgate.tui.sources import Chosen, LastAnswer, Scene
from headgate.tui.trend import Picture
from headgate.tui.views import VIEWS
from tests.builders import NOW
from tests.cli.conftest import Run
from tests.cli.scripted import ScriptedAgent
from tests.fixtures.fleet_sights import entries_of, large_fleet, member_told, shard_told

WIDE, NARROW = Canvas(width=130), Canvas(width=70)


def fleet_document(entries: list[Entry], asked: FleetQuery | None = None) -> dict[str, Any]:
    """As an agent with the role answers."""
    ledger, later = FleetLedger(), Instant(NOW.mono_s + 600, NOW.wall_s + 600)
    ledger.take(Noted(entry.key, entry.value, NOW) for entry in entries)
    picture = ledger.picture(later, grace_s=12.0)
    link = StoreLink("etcd a:2379", 41)
    doc = fleet_doc(
        picture,
        Holders(picture),
        link,
        asked or FleetQuery(),
        agent="view-1",
        wall_s=later.wall_s,
    )
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(doc))
    return found


def fleet_of(entries: list[Entry], asked: FleetQuery | None = None) -> FleetDoc:
    return read(FleetDoc, fleet_document(entries, asked))


def page_of(fleet: FleetDoc, canvas: Canvas = WIDE, **options: Any) -> str:
    return printed(drawn_view(fleet_view(fleet, **options), canvas), canvas.width)


def printed(page: RenderableType, width: int = WIDE.width) -> str:
    screen = Console(width=width, highlight=False, markup=False, emoji=False)
    with screen.capture() as captured:
        screen.print(page)
    return captured.get()


def test_the_unhealthy_come_first_with_why() -> None:
    told = [
        shard_told("a/well", member_told("db-a", "primary")),
        shard_told("a/split", state="unhealthy", problem="two primaries"),
    ]
    page = page_of(fleet_of(entries_of(told=told, n=3)))
    assert "at revision 3" in page
    assert "2 shards: 1 UNHEALTHY, 1 healthy" in page
    assert page.index("a/split") < page.index("a/well")
    assert "two primaries" in page


def test_one_is_not_called_many() -> None:
    told = [shard_told("a/well", member_told("db-a", "primary"))]
    page = page_of(fleet_of(entries_of(told=told, n=3)))
    assert "1 shard: 1 healthy" in page and "1 agent:" in page


@pytest.mark.parametrize("canvas", [WIDE, NARROW])
def test_lagging_shards_and_those_with_a_rule_are_shown(canvas: Canvas) -> None:
    page = page_of(fleet_of(large_fleet(12)), canvas)
    assert "36 agents: 1 BEHIND" in " ".join(page.split())
    assert "behind: at 8 of 12" in page or canvas is NARROW
    assert "35 of 36" in page
    assert "db-00005-c  search/0005-" in page


def test_names_stay_in_one_piece_on_a_narrow_terminal() -> None:
    """They are searched for, and pasted."""
    page = page_of(fleet_of(large_fleet(12)), NARROW)
    for name in ("commerce/0000-", "search/0005-", "f-0a1b2c", "etl-cap@cluster:commerce"):
        assert name in page


def test_only_the_chosen_shards() -> None:
    page = page_of(fleet_of(large_fleet(12)), shards_only=True)
    assert "f-0a1b2c" not in page


def test_a_store_out_of_reach_is_no_empty_place() -> None:
    fleet = msgspec.structs.replace(fleet_of(entries_of(n=50)), source="")
    assert "at revision 50 · STALE: its store does not answer · shown by view-1" in page_of(fleet)


def test_pages_say_how_to_go_on() -> None:
    page = page_of(fleet_of(large_fleet(30), FleetQuery(per_page=10)))
    assert "page 1 of 3: 30 shards" in page
    assert "--page" in page


def test_an_empty_fleet_is_no_blank_page() -> None:
    page = page_of(fleet_of([]))
    assert "nothing was ever set for it" in page
    assert "no shard is known yet" in page


def test_a_servers_message_does_not_steer_the_terminal() -> None:
    told = shard_told("a/0", state="unhealthy", problem="\x1b[2Jgone\x07")
    page = page_of(fleet_of(entries_of(told=[told])))
    assert "\x1b" not in page
    assert "\x07" not in page


# --- the command -------------------------------------------------------------------------------


def test_the_command_requests_what_was_chosen(scripted: ScriptedAgent, run: Run) -> None:
    scripted.says(PATH, fleet_document(large_fleet(12)))
    ran = run("fleet", "status", "--unhealthy", "--shard", "commerce/*", "--page", "2")
    assert ran.code == 0
    assert "UNHEALTHY" in ran.out
    assert scripted.heard[-1].query == {
        "unhealthy": "true", "shard": "commerce/*", "page": "2", "per_page": "100",
        "rules_page": "1",
    }  # fmt: skip


def test_programs_get_the_document(scripted: ScriptedAgent, run: Run) -> None:
    document = fleet_document(large_fleet(3))
    scripted.says(PATH, document)
    assert json.loads(run("fleet", "status", "--json").out) == document


def test_watching_is_not_for_programs(scripted: ScriptedAgent, run: Run) -> None:
    ran = run("fleet", "status", "--json", "--watch")
    assert ran.code == 2
    assert scripted.heard == []


# --- live --------------------------------------------------------------------------------------


def test_what_was_seen_last_stays_with_its_age_when_the_agent_is_gone() -> None:
    agent = ScriptedAgent()
    agent.says(PATH, fleet_document(entries_of(told=[shard_told("a/0")])))
    with agent.serving():
        feed = ViewFeed(connect(agent.url, None), Chosen(fleet={"page": "1"}), lambda: None)
        feed.ask_all(["fleet"])
    seen = feed.told["fleet"]
    assert agent.heard[-1].query == {"page": "1"} and not seen.fault
    feed.ask_all(["fleet"])
    lost = feed.told["fleet"]
    assert lost.value == seen.value and "no agent answers" in lost.fault
    at = Moment(seen.at_s + 30, datetime(2026, 3, 1, tzinfo=UTC))
    (page,) = still(VIEWS["fleet"], Scene(Picture("u"), feed.told), WIDE, 40, at)
    text = printed(page)
    assert "below is what was said 30.0 s ago: no agent answers" in text
    assert "a/0" in text


def test_a_filter_leaves_the_shards_that_match() -> None:
    told = LastAnswer((fleet_of(large_fleet(12)), False), 1.0)
    ask = ViewRequest(WIDE, 60, 1.0, datetime(2026, 3, 1, tzinfo=UTC), filter="search")
    page = VIEWS["fleet"].draw(Scene(Picture("u"), {"fleet": told}), ask)
    text = printed(Lines(page.lines))
    assert "search/" in text and "commerce/" not in text
