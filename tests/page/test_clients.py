"""The pages of clients: the tree, which are throttled and by what, remedies, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from headgate.check.api import ClientDoc
from headgate.errors import StoreUnavailable
from headgate.history.alerts import Alerts
from headgate.history.api import (
    BinDoc,
    ByDoc,
    ClientsSumsDoc,
    ClientSumsDoc,
    RunsDoc,
    SpanDoc,
    SumsDoc,
    TimelineDoc,
)
from headgate.history.keeper import MetricMinutes
from headgate.history.records import Tally
from headgate.history.rogues import Rogues
from headgate.history.sessions import SessionGroup
from headgate.history.starvation import StarvationFinding, Starved
from headgate.history.watch import Watch
from headgate.page.clients import HistorySubject, fold_href, sentences, strip_of, wanted_of
from headgate.page.shell import unbroken
from headgate.present.clients import (
    Branch,
    CheckCounts,
    ClientRow,
    ClientSummary,
    Wanted,
    added,
    grown,
    listing,
    seen_of,
    sums_of,
    throttled_by,
)
from headgate.present.history import runs_words
from headgate.present.starvation import remedies
from tests.fixtures.memory_store import MemoryStore
from tests.http.serving import LOOPS, OPERATOR, VIEWER, Plan, Served, serving
from tests.http.test_watching import STARVED
from tests.page.visiting import Visitor, signed_in, text_of

NOBODY = CheckCounts()


MAX_ROWS, MAX_BELOW = Wanted().max_rows, Wanted().max_below


def seen(name: str, throttled_s: float | None = None, **more: object) -> ClientSummary:
    known = ClientSummary(
        name=name,
        databases=("main",),
        throttled_s=throttled_s,
        by="lag" if throttled_s is not None else "",
        is_paced=False,
        seen_s_ago=1.0,
        rates=CheckCounts(1, 0, 0),
        hour=CheckCounts(600, 0, 0),
    )
    return known._replace(**more)  # type: ignore[arg-type]


def drawn(nodes: Sequence[Branch], depth: int = 0) -> list[str]:
    """As an indented list, in the order of names."""
    lines = []
    for node in sorted(nodes, key=lambda one: one.app):
        lines += ["  " * depth + node.app, *drawn(node.below, depth + 1)]
    return lines


def apps(rows: Sequence[ClientRow]) -> list[str]:
    return [row.app for row in rows]


# --- the tree -----------------------------------------------------------------------------------


def test_a_level_that_more_clients_have_is_further_up_at_any_position() -> None:
    """R64: rules match levels, never positions, and so does the tree."""
    names = ("a1:etl:nightly", "b2:etl:nightly", "etl:hourly", "web")
    assert drawn(grown(names)) == [
        "etl",
        "  etl:hourly",
        "  etl:nightly",
        "    a1:etl:nightly",
        "    b2:etl:nightly",
        "web",
    ]


def test_levels_that_all_share_are_shown_as_one_and_a_client_may_be_a_level() -> None:
    names = ("a1:etl:nightly", "b2:etl:nightly", "etl:nightly")
    assert drawn(grown(names)) == [
        "etl:nightly",
        "  a1:etl:nightly",
        "  b2:etl:nightly",
        "  etl:nightly",
    ]
    assert drawn(grown(("b:a", "a:b"))) == ["b:a", "  a:b", "  b:a"]
    assert drawn(grown(())) == []


def client_doc(client: str, database: str, **more: object) -> ClientDoc:
    said = {"admitted": 1, "rejected": 0, "last_verdict": "OK", "last_seen_s_ago": 1.0}
    said |= {"rejected_for_s": None, "rejected_by": ""}
    return ClientDoc(client=client, database=database, **{**said, **more})  # type: ignore[arg-type]


def sums(admitted: int, **rejected: int) -> SumsDoc:
    by = [ByDoc("lag" if reason == "metric" else reason, n) for reason, n in rejected.items()]
    total = sum(rejected.values())
    return SumsDoc(admitted + total, admitted, 0, total, rejected, by)


def test_a_client_of_several_databases_is_one_row_throttled_where_it_is_longest() -> None:
    held = {"last_verdict": "THRESHOLD_EXCEEDED", "rejected_by": "lag"}
    docs = [
        client_doc("etl", "a"),
        client_doc("etl", "b", rejected_for_s=60.0, **held),
        client_doc("etl", "c", rejected_for_s=90.0, **{**held, "rejected_by": "shard/lag"}),
    ]
    minute = ClientsSumsDoc("", "", 60.0, [ClientSumsDoc("etl", "a", sums(5, metric=2))], True)
    hour = ClientsSumsDoc("", "", 3600.0, [ClientSumsDoc("etl", "b", sums(7, paced=3))], True)
    [one] = seen_of(docs, sums_of(minute), sums_of(hour))
    assert (one.databases, one.throttled_s, one.by) == (("a", "b", "c"), 90.0, "shard/lag")
    assert one.rates is not None and one.hour is not None
    assert one.rates[:3] == (5 / 60, 2 / 60, 0) and one.hour[:3] == (7, 0, 3)
    assert one.hour.throttled_share == 0.3 and NOBODY.throttled_share is None
    assert [place.throttled_s for place in one.places] == [None, 60.0, 90.0]
    [_, *places] = listing([one], Wanted(by_database=True)).rows
    assert [row.label for row in places] == ["on a", "on b", "on c"]
    assert [row.key for row in places] == ["etl a", "etl b", "etl c"]


def test_a_client_that_flickers_or_is_silent_is_not_throttled() -> None:
    flickers = client_doc("a", "main", rejected_for_s=0.4)
    gone = client_doc("b", "main", rejected_for_s=500.0, last_seen_s_ago=400.0)
    assert [one.throttled_s for one in seen_of([flickers, gone])] == [None, None]


def test_what_is_not_known_of_one_is_not_known_of_their_level() -> None:
    assert added([CheckCounts(1, 2, 3), None]) is None
    assert added([CheckCounts(1, 2, 3, (("lag", 2),)), CheckCounts(1, 0, 0)]) == (
        2,
        2,
        3,
        (("lag", 2),),
    )


@pytest.mark.parametrize(
    ("verdict", "by", "words"),
    [
        ("THRESHOLD_EXCEEDED", "shard/lag", "shard/lag"),
        ("REJECTED_BY_RATIO", "rule:r7", "ratio rule r7"),
        ("ON_HOLD", "rule:r7", "rule r7"),
        ("ON_HOLD", "", "the agent: no client name, or its state is lost"),
        ("PACED", "", "pacing"),
        ("OVER_BUDGET", "budget:etl", "budget etl"),
        ("", "PACED", "pacing"),
    ],
)
def test_what_throttles_a_client_is_said_in_words(verdict: str, by: str, words: str) -> None:
    assert throttled_by(verdict, by) == words


# --- rows ---------------------------------------------------------------------------------------


def test_throttled_clients_come_first_and_longest_first() -> None:
    clients = [
        seen("a"),
        seen("b", 10.0),
        seen("c", 700.0),
        seen("d", None, rates=CheckCounts(1, 3, 0, (("lag", 3),))),
    ]
    found = listing(clients, Wanted())
    assert apps(found.rows) == ["c", "b", "a", "d"]
    words = ["throttled 12 min", "throttled 10 s", "admitted", "75% throttled"]
    assert [row.state.word for row in found.rows] == words
    assert (found.clients, found.throttled, found.left_out) == (4, 2, 0)
    assert apps(listing(clients, Wanted(sort="rejected")).rows)[0] == "d"
    assert apps(listing(clients, Wanted(throttled_only=True)).rows) == ["c", "b"]
    assert apps(listing(clients, Wanted(text="throttled LAG")).rows) == ["c", "b", "d"]


def test_of_500_clients_a_bounded_part_is_shown_and_the_rest_counted() -> None:
    many = [seen(f"j{n}:{'etl' if n % 2 else 'web'}") for n in range(500)]
    folded = listing(many, Wanted())
    assert sorted(apps(folded.rows)) == ["etl", "web"] and folded.left_out == 0
    opened = listing(many, Wanted(opened=("etl",)))
    assert len(opened.rows) == 2 + MAX_BELOW + 1 and opened.left_out == 250 - MAX_BELOW
    wide = [seen(f"j{n}:lv{n % 10}") for n in range(200)]
    cut = listing(wide, Wanted(text="j"))
    told = sum(len(row.clients) for row in cut.rows if not row.is_level)
    assert len(cut.rows) == MAX_ROWS and told + cut.left_out == 200
    flat = listing([seen(f"j{n}") for n in range(500)], Wanted())
    assert len(flat.rows) == MAX_ROWS and flat.left_out == 500 - MAX_ROWS


def test_a_level_is_folded_and_unfolded_by_its_link() -> None:
    many = [seen(f"j{n}:etl") for n in range(35)]
    wanted = Wanted(sort="name")
    [row] = listing(many, wanted).rows
    href = fold_href(wanted, row)
    assert not row.is_open and href == "/clients?sort=name&open=etl"
    wanted = wanted_of({name: v[0] for name, v in parse_qs(urlsplit(href).query).items()})
    row, *below = listing(many, wanted).rows
    assert row.is_open and len(below) == MAX_BELOW + 1 and below[-1].more == 5
    assert fold_href(wanted, row) == "/clients?sort=name&shut=etl"
    assert row.rates is not None and row.rates[:3] == (35.0, 0.0, 0.0)
    assert below[0].parts == (("j0", False), ("etl", True)) and below[0].label == "j0"


def test_without_sums_there_are_no_rates_rather_than_zeros() -> None:
    [row] = listing([seen("a", None, rates=None, hour=None)], Wanted()).rows
    assert row.rates is None and row.hour is None and row.state.word == "admitted"


# --- remedies -----------------------------------------------------------------------------------


def starved(**more: object) -> Starved:
    return replace(STARVED, **more)  # type: ignore[arg-type]


def test_the_proposed_remedy_leads_into_the_form_filled_in() -> None:
    """R90"""
    lift, favour = remedies(starved())
    assert lift.href == "/rules/r7/lift"
    asked = parse_qs(urlsplit(favour.href).query)
    assert asked["kind"] == ["favor"] and asked["target"] == ["etl"] and asked["for"] == ["30m"]
    turn_down, _ = remedies(starved(proposal="headgate rule ratio web 0.5 --database all --for 1h"))
    asked = parse_qs(urlsplit(turn_down.href).query)
    assert asked.pop("reason") and asked == {
        "kind": ["ratio"],
        "target": ["web"],
        "ratio": ["0.5"],
        "for": ["1h"],
        "database": ["main"],
    }
    command = "headgate rule metrics web --database all lag pool --for 1h"
    alike, _ = remedies(starved(proposal=command))
    assert parse_qs(urlsplit(alike.href).query)["metrics"] == ["lag,pool"]
    look, _ = remedies(starved(proposal="headgate clients --rogue"))
    assert look.href == "/clients#rogues" and not look.is_change
    assert len(remedies(starved(proposal="headgate clients"))) == 1


# --- the strip ----------------------------------------------------------------------------------

BAD = sums(8, metric=92)
TIMELINE = TimelineDoc(
    app="etl",
    since="2026-03-01T07:00:00Z",
    until="2026-03-01T08:00:00Z",
    step_minutes=15,
    total=sums(300, metric=92, dice=8),
    bins=[
        BinDoc("2026-03-01T07:00:00Z", 15, BAD),
        BinDoc("2026-03-01T07:45:00Z", 15, sums(192, dice=8)),
    ],
    spans=[SpanDoc("2026-03-01T07:03:00Z", "2026-03-01T07:25:00Z", "shard/lag", 0.92, BAD)],
    children=[],
    whole=True,
    more_spans=0,
)


def test_the_strip_shows_each_bin_by_pattern_and_words() -> None:
    strip = strip_of(TIMELINE, HistorySubject("etl", "main"))
    first, last = strip.columns
    assert (first.x, first.width, last.x, last.width) == (0.0, 25.0, 75.0, 25.0)
    assert [piece.reason for piece in first.pieces] == ["metric"]
    assert first.title == "07:00–07:15: 92% of 100 checks throttled, mostly by lag"
    assert first.href == "/explain?app=etl&database=main&at=2026-03-01T07%3A03Z"
    assert last.href.endswith("07%3A45Z")
    assert [(tick.words, tick.x) for tick in strip.ticks][:2] == [("07:00", 0.0), ("07:10", 16.667)]
    assert [(name, count) for name, _, count in strip.reasons] == [("metric", 92), ("dice", 8)]
    assert strip.summary == "25% of 400 checks throttled, mostly by lag; mostly throttled once."


def test_when_it_was_throttled_is_said_in_sentences() -> None:
    """R91"""
    [told] = sentences(TIMELINE, HistorySubject("etl", "main"))
    assert f"{told.when} {told.words}" == (
        "07:03–07:25 mostly throttled by shard/lag (92% of 100 checks)"
    )
    assert "at=2026-03-01T07%3A03%3A00Z" in told.href


def test_a_run_is_compared_with_earlier_ones() -> None:
    runs = RunsDoc("2026-03-01T06:00:00Z", "2026-03-01T07:55:00Z", True, 115, 4, 54.0, 55, True)
    told = runs_words(runs, UTC)
    assert told.endswith("its 4 runs before took 54 min typically, 55 min at most.")
    few = runs_words(
        RunsDoc("2026-03-01T06:00:00Z", "2026-03-01T07:55:00Z", False, 115, 1, None, 9, False),
        UTC,
    )
    assert "only 1 earlier" in few and few.startswith("It last ran 1 Mar 06:00–07:55")


# --- over HTTP ----------------------------------------------------------------------------------


class CutStore(MemoryStore):
    """Sums are away while `cut`."""

    cut = False

    async def client_sums(self, *args: object, **more: object) -> Sequence[Tally]:
        if self.cut:
            raise StoreUnavailable("the disk is full")
        return await super().client_sums(*args, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("clients")
    with serving(LOOPS["asyncio"], folder, Plan(store=CutStore())) as served:
        yield served


@pytest.fixture
def served(_served: Served) -> Served:
    _served.reset()
    return _served


@pytest.fixture
def watching(served: Served) -> Iterator[Served]:
    """With a starved client, and a rogue one."""
    before = served.views.parts

    class Listed:
        async def read(self) -> list[SessionGroup]:
            return [SessionGroup("alice", "p&sql", "10.0.0.9", 2, 2)]

    async def attach() -> None:
        rules, minutes = (lambda: served.checker.rules), MetricMinutes()
        parts = (served.recorder, served.board, served.clock, Alerts(served.clock))
        watch = Watch(*parts, rules=rules, minutes=minutes)
        watch._findings["main"] = (StarvationFinding(STARVED, 10.0),)
        listed = {"main": Listed()}
        rogues = Rogues(served.recorder, served.demands, served.clock, listed.get)
        await rogues.look()
        served.views.parts = replace(
            before, watchers=replace(before.watchers, watch=watch, rogues=rogues)
        )

    served.run_there(attach)
    yield served
    served.call(setattr, served.views, "parts", before)


def check(served: Served, app: str, database: str = "main") -> None:
    assert served.ask("GET", f"/v1/check?app={app}&database={database}").status < 500


def keep(served: Served, *tallies: tuple[int, str, str, str, int]) -> None:
    """(minutes ago, client, verdict, by, count)"""
    now = int(served.call(served.clock.now).wall_s // 60)
    rows = [Tally(now - ago, "main", who, what, by, n) for ago, who, what, by, n in tallies]
    served.run_there(lambda: served.store.history.add_tallies(rows))


def test_the_empty_page_says_how_to_check(serve_alone: Served) -> None:
    shown = text_of(Visitor(serve_alone).get("/clients"))
    assert "No client has checked yet." in shown and "headgate check --as etl:nightly" in shown
    assert "Starvation is not watched here" in shown and "does not list the sessions" in shown


@pytest.fixture
def serve_alone(tmp_path: Path) -> Iterator[Served]:
    with serving(LOOPS["asyncio"], tmp_path) as served:
        yield served


def test_clients_are_listed_with_their_rates_and_the_part_is_the_list_alone(
    served: Served, ann: Visitor
) -> None:
    for app in ("rt:one", "rt:two"):
        check(served, app)
    keep(served, (0, "rt:one", "OK", "", 600), (0, "rt:one", "PACED", "", 1200))
    part = ann.get("/clients", script=True, q="rt").body.decode()
    assert part.lstrip().startswith('<div id="clients-live"') and "<html" not in part
    shown = text_of(ann.get("/clients", q="rt"))
    assert "rt 2 clients" in shown and "67% throttled lately, mostly by pacing" in shown
    assert "Rates are over the last minute." in shown
    nothing = text_of(ann.get("/clients", q="no-such-client"))
    assert "clients matches “no-such-client”" in nothing


def test_hostile_names_are_text_and_never_markup(served: Served, ann: Visitor) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    for path in ("/clients", "/clients/%3Cimg%20src%3Dx%3E", "/explain", "/audit"):
        reply = ann.get(path, q=hostile, app=hostile, who=hostile, database="main")
        assert "<img src=x" not in reply.body.decode().replace('<img src="/static', "")
    rejected = ann.get("/clients/%3Cimg%20src%3Dx%3E")
    assert rejected.status == 400 and "must be 1–128 letters" in text_of(rejected)


def test_who_is_starved_comes_with_its_remedy_and_viewers_see_why_not(watching: Served) -> None:
    ann, vic = signed_in(watching, OPERATOR), signed_in(watching, VIEWER)
    shown = ann.get("/clients").body.decode()
    assert 'href="/rules/r7/lift"' in shown and "kind=favor&amp;target=etl" in shown
    assert "/budgets/main/new?username=alice&amp;application_name=p%26sql" in shown
    assert "etl (2 clients) on main is rejected by lag for 15 min, 25% of its runtime" in text_of(
        ann.get("/clients")
    )
    seen_by_vic = vic.get("/clients").body.decode()
    assert 'href="/rules/r7/lift"' not in seen_by_vic and "eve may look, not change" in seen_by_vic
    assert "<button disabled" in seen_by_vic
    assert "Starved: etl (2 clients) on main" in text_of(ann.get("/clients/etl"))


def test_periods_without_a_throttler_are_shown(served: Served, ann: Visitor) -> None:
    period = {"id": "c" * 32, "ended_ago_ms": 1200, "duration_ms": 53_000, "pieces": 421}
    body = {"app": "gone:astray", "databases": ["main"], "periods": [period]}
    raw = json.dumps(body).encode()
    told = served.ask("POST", "/v1/unthrottled", body=raw, Content_Type="application/json")
    assert told.status == 200
    assert "421 jobs started meanwhile" in text_of(ann.get("/clients"))


def test_a_store_that_is_away_leaves_no_zeros(served: Served, ann: Visitor) -> None:
    check(served, "cut:one")
    store = served.store
    assert isinstance(store, CutStore)
    store.cut = True
    try:
        shown = text_of(ann.get("/clients", q="cut"))
    finally:
        store.cut = False
    assert "Rates and sums are not known" in shown and "the disk is full" in shown
    assert "– rates are not known" in shown and "cut:one" in shown


def test_a_client_has_its_answer_rules_history_and_rejections(served: Served, ann: Visitor) -> None:
    rule = {"target": "own", "kind": "hold", "reason": "INC-1"}
    raw = json.dumps(rule).encode()
    made = served.ask("POST", "/v1/rules", body=raw, unix=True, Content_Type="application/json")
    check(served, "own:page")
    keep(served, (3, "own:page", "OK", "", 8), (3, "own:page", "THRESHOLD_EXCEEDED", "lag", 92))
    reply = ann.get("/clients/own:page", since="1h")
    shown, whole_page = text_of(reply), reply.body.decode()
    served.ask("DELETE", f"/v1/rules/{made.json['id']}", unix=True)
    assert "rejected ON_HOLD" in shown and made.json["id"] in shown and "INC-1" in shown
    assert "mostly throttled by lag (92% of 100 checks)" in shown
    assert "Last rejections" in shown and "rejects every check of own" in shown
    assert "1 × rule" in shown and f"/rules/{made.json['id']}/lift" in whole_page
    whole = ann.get("/clients/own", since="24h").body.decode()
    assert "/rules/new?kind=hold&amp;target=own" in whole and 'href="/clients/own:page' in whole


@pytest.mark.parametrize("part", ["now", "history", "rejections"])
def test_each_live_part_of_a_client_comes_alone(ann: Visitor, part: str) -> None:
    shown = ann.get("/clients/etl", script=True, part=part, since="7d").body.decode()
    assert shown.lstrip().startswith(("<div id=", "<section id=")) and "<html" not in shown
    assert f"part={part}" in shown and "since=7d" in shown


def test_an_unknown_client_is_reported_as_unknown(ann: Visitor) -> None:
    shown = text_of(ann.get("/clients/never/seen", since="14d"))
    assert "No client has checked as never/seen" in shown
    assert "History has no check of never/seen in that time." in shown


def test_no_line_ends_within_the_id_of_a_rule() -> None:
    shown = unbroken("mostly by rule r-1a2b3c, <b>")
    assert shown == 'mostly by rule <span class="nowrap">r-1a2b3c</span>, &lt;b&gt;'
