"""The fleet as a page and as a document: what is shown, in which part, and what nobody slips in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.base.keyvalue import Entry
from headgate.errors import InvalidRequest
from headgate.fleet.picture import FleetView, StoreLink
from headgate.fleet.routes import FLEET_VIEW_ROUTES, FleetViewing
from headgate.http.auth import Gatekeeper, Peer
from headgate.http.control import description
from headgate.http.control import serving as serving_route
from headgate.http.routes import read_call
from headgate.page.api import ApiRejected, PageApi
from headgate.page.fleet import PAGE_ROWS, FleetPage
from headgate.page.shell import Site, Visit, made, static_file
from tests.changes import verbs
from tests.changes.changebook_world import COMMERCE, HALF, BookWorld
from tests.fixtures.fakes import HandClock
from tests.fixtures.fleet_sights import (
    T0,
    budget_item,
    entries_of,
    large_fleet,
    member_told,
    metric_told,
    mirror_of,
    registered,
    rule_item,
    shard_told,
)

EVIL = "<script>alert(1)</script>"


async def serving(entries: Iterable[Entry], *, later_s: float = 600.0, **link: Any) -> FleetViewing:
    clock, listed = HandClock(), list(entries)
    told = StoreLink("etcd a:2379", 41, **link)
    mirror = mirror_of(listed, clock)
    view = FleetView(mirror, clock, link=lambda: told, spread_s=lambda: 0.5)
    view.note(entry.key for entry in listed)
    await view.look()
    await clock.advance(later_s)
    return FleetViewing(view, clock, agent="view-1")


(FLEET,) = FLEET_VIEW_ROUTES
NOBODY = Gatekeeper(())


def request(query: str = "") -> Request:
    return Request(
        {"type": "http", "method": "GET", "path": "/fleet", "headers": [],
         "query_string": query.encode()}
    )  # fmt: skip


async def visited(viewing: FleetViewing, query: str, *, script: bool = False) -> Response:
    """The page over the API, as the agent has it."""
    app = Starlette(routes=[Route("/v1/fleet", serving_route(FLEET, viewing.document, NOBODY))])
    asked = request(query)
    if script:
        asked.scope["headers"] = [(b"hx-request", b"true")]
    site = Site("view-1", "1.0", has_fleet=True, has_operators=True, tour=None)
    api = PageApi(lambda: app, Peer("127.0.0.1", None))
    return await made(await FleetPage().page(Visit(asked, api, None, site, {})))


async def page(
    entries: Iterable[Entry], query: str = "", *, script: bool = False, **link: Any
) -> tuple[str, Response]:
    response = await visited(await serving(entries, **link), query, script=script)
    return bytes(response.body).decode(), response


async def document(entries: Iterable[Entry], query: str = "", **link: Any) -> dict[str, Any]:
    call = await read_call(FLEET, request(query), NOBODY)
    response = await (await serving(entries, **link)).document(call)
    found: dict[str, Any] = json.loads(bytes(response.body))
    return found


class Tags(HTMLParser):
    """Every tag that was opened must be closed, but for those that have no end."""

    VOID = frozenset({"meta", "link", "input", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value for name, value in attrs if name == "href" and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# --- the page ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [0, 3, 120])
async def test_the_page_is_whole_and_needs_no_script(shards: int) -> None:
    text, response = await page(large_fleet(shards))
    tags = Tags(text)
    assert tags.open == []
    assert not tags.names & {"style", "iframe", "object"}
    assert not [name for name in tags.attributes if name.startswith("on") or name == "style"]
    assert text.count("commerce/0000-") > 0 or not shards
    assert response.headers["content-type"].startswith("text/html")


async def test_a_script_loads_the_changing_part_only() -> None:
    """Else focus and scroll were lost with every look."""
    text, _ = await page(large_fleet(3), "region=eu-*", script=True)
    assert "<html" not in text
    assert "<form" not in text, "what somebody types is left alone"
    assert 'id="fleet" data-live hx-get="/fleet?region=eu-%2A"' in text
    assert Tags(text).open == []


async def test_an_agent_s_name_leads_to_its_own_page() -> None:
    seat = member_told("db-a", "primary", url="https://db-a:8087")
    text, _ = await page(entries_of(told=[shard_told("a/0", seat)]))
    assert 'href="https://db-a:8087/"' in text
    assert "/v1/status" not in text


async def test_nothing_from_elsewhere_is_loaded_or_run() -> None:
    _, response = await page([])
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_the_unhealthy_are_read_first_and_why() -> None:
    told = [
        shard_told("a/well"),
        shard_told("a/late", state="unhealthy", metrics=(metric_told(14.2),), rejected=0.62),
        shard_told("a/split", state="unhealthy", since=T0, problem="two primaries"),
    ]
    text, _ = await page(entries_of(told=told))
    assert text.index("a/late") < text.index("a/split") < text.index("a/well")
    assert "shard/lag is 14.2 s, limit 1 s" in text
    assert "two primaries" in text
    assert "62%" in text


async def test_an_empty_fleet_says_what_to_do() -> None:
    text, _ = await page([])
    assert "No shard is known yet" in text
    assert "Nothing is set for the fleet" in text


async def test_what_agents_report_is_text_and_never_markup() -> None:
    """Anyone who can write to the store could otherwise act in an operator's browser."""
    seat = member_told(EVIL, "primary", url="javascript:alert(1)", problem=EVIL)
    told = shard_told(EVIL, seat, state="unhealthy", problem=EVIL, region=EVIL, agent=EVIL)
    members = [registered(EVIL, EVIL, 1, url="javascript:alert(2)", host=EVIL, version=EVIL)]
    items = [
        replace(rule_item("f-1", "fleet", 9, reason=EVIL, target="etl"), set_by=EVIL),
        replace(budget_item("cap", "fleet", 8), value={"name": EVIL, "mode": EVIL}),
    ]
    entries = entries_of(told=[told], members=members, items=items, n=9)
    text, _ = await page(entries, stale_since_wall_s=T0, fault=EVIL)
    assert "&lt;script&gt;" in text
    tags = Tags(text)
    assert "<script>" not in text
    assert not [link for link in tags.links if link.startswith("javascript")]


async def test_it_reloads_itself_unless_switched_off() -> None:
    text, _ = await page([])
    assert '<meta http-equiv="refresh" content="10">' in text
    text, _ = await page([], "refresh=30")
    assert 'content="30"' in text
    text, _ = await page([], "refresh=0")
    assert "http-equiv" not in text


async def test_ten_thousand_shards_are_paged_and_links_keep_what_was_chosen() -> None:
    entries = large_fleet(160)
    text, _ = await page(entries, "region=eu-*&refresh=60&page=2")
    assert text.count('<th scope="row" data-label="shard">') == PAGE_ROWS
    chosen = {"region": ["eu-*"], "refresh": ["60"]}
    queries = [parse_qs(urlsplit(link).query) for link in Tags(text).links]
    assert chosen in queries, "the page before"
    assert {**chosen, "page": ["3"]} in queries


async def test_a_page_beyond_the_last_is_the_last() -> None:
    assert (await document(large_fleet(3), "page=999"))["page"] == 1


async def test_a_store_that_is_away_is_said_first_and_loudly() -> None:
    text, _ = await page(large_fleet(3), stale_since_wall_s=T0 - 300, fault="connect timeout")
    assert "no contact with the store for 15 min (connect timeout)" in text
    assert text.index("connect timeout") < text.index("data-label")
    text, _ = await page(large_fleet(3), went_back=True)
    assert "headgate changes restore --fleet" in text


def test_its_style_takes_nothing_from_elsewhere() -> None:
    css = static_file("fleet.css")[0].decode()
    assert "url(" not in css
    assert not re.search(r"https?:", css)


# --- the document ------------------------------------------------------------------------------


async def test_a_program_gets_the_same_as_a_person() -> None:
    told = shard_told("a/0", member_told("db-a", "primary"), member_told("db-b"))
    members = [registered("a/0", "db-a", 9), registered("a/0", "db-b", 4)]
    items = [rule_item("f-1", "shard:a/*", 9), budget_item("cap", "fleet", 3)]
    doc = await document(entries_of(told=[told], members=members, items=items, n=9))
    assert (doc["agent"], doc["n"], doc["revision"], doc["source"]) == (
        "view-1", 9, 41, "etcd a:2379",
    )  # fmt: skip
    [shard] = doc["shards"]
    assert (shard["condition"], shard["rules"], shard["checks"]) == ("healthy", 2, 1200)
    assert shard["reported_s_ago"] == 620
    assert [(agent["host"], agent["progress"]) for agent in shard["agents"]] == [
        ("db-a", "current"),
        ("db-b", "behind"),
    ]
    rule, budget = doc["items"]
    assert rule["says"] == "rejects 50% of the checks of etl"
    assert (rule["agents"], rule["have"], rule["without"], rule["left_s"]) == (2, 1, 1, 1200)
    assert (budget["kind"], budget["have"], budget["left_s"]) == ("budget", 2, None)
    assert [agent["member"] for agent in doc["behind"]] == ["db-b"]
    assert "1 agent is behind" in doc["advice"][0]


async def test_a_rule_as_the_log_writes_it_says_how_long_it_is_still_in_force() -> None:
    world = BookWorld()
    await verbs.put_rule(world.book, HALF, reach=COMMERCE, who="ada")
    entries = (await world.store.list(("",))).entries
    left_s = world.wall_s + 7200 - (T0 + 600)
    assert (await document(entries))["items"][0]["left_s"] == left_s


async def test_a_silent_shard_says_who_is_still_there() -> None:
    doc = await document(entries_of(members=[registered("a/0", "db-a"), registered("a/0", "db-b")]))
    assert doc["shards"][0]["condition"] == "silent"
    assert doc["shards"][0]["why"].startswith("2 agents are registered, but none reports")


async def test_a_rule_of_a_newer_version_is_listed_all_the_same() -> None:
    item = replace(rule_item("f-1", "fleet", 9), value={"kind": "levitate", "expires_at": T0 + 9e3})
    doc = await document(entries_of(items=[item]))
    assert doc["items"][0]["says"] == "cannot be read by this version"


async def test_only_what_was_requested_is_sent() -> None:
    doc = await document(large_fleet(200), "unhealthy=true&per_page=1")
    assert len(doc["shards"]) == 1
    assert doc["matching"] == doc["pages"] == doc["counts"]["unhealthy"] + doc["counts"]["silent"]


@pytest.mark.parametrize(
    "query",
    ["unhealthy=yes", "page=0", "page=-1", "page=1e9", "page=²", "per_page=501", "rules_page=x",
     "shard=a%20b", "region=%3Cscript%3E", "cluster=" + "x" * 200, "colour=red", "refresh=1"],
)  # fmt: skip
async def test_a_query_that_cannot_be_answered_says_why(query: str) -> None:
    with pytest.raises(InvalidRequest, match=r".+") as rejected:
        await document(large_fleet(3), query)
    assert rejected.value.status == 400
    text, response = await page(large_fleet(3), query)
    assert response.status_code == 400
    assert 'role="alert"' in text
    assert "<script>" not in text
    assert "commerce/0000-" in text, "and the fleet is there all the same"


async def test_an_agent_without_the_role_says_what_to_set() -> None:
    viewing = FleetViewing(None, HandClock(), agent="db-a")
    with pytest.raises(InvalidRequest, match="view = true") as rejected:
        await viewing.document(await read_call(FLEET, request(), NOBODY))
    assert rejected.value.status == 404
    with pytest.raises(ApiRejected, match="view = true") as shown:
        await visited(viewing, "")
    assert shown.value.status == 404


def test_every_route_has_a_handler_and_the_document_its_schema() -> None:
    assert all(hasattr(FleetViewing, route.handler) for route in FLEET_VIEW_ROUTES)
    assert "FleetDoc" in description()["components"]["schemas"]
