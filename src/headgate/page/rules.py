"""The page /rules: what is in force and for how long, and new rules, previewed before they are set.

form ──body_of──► dry run and replay of the last hour ──► preview ──the same form──► POST /v1/rules
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from headgate.check.api import ClientsDoc, MetricsDoc, MetricView
from headgate.fleet.api import ReachedDoc
from headgate.history.api import ReplayDoc, ReplayRowDoc
from headgate.page.api import NO_QUERY, ApiRejected, Query
from headgate.page.rules_acts import RuleActs, done_path, told_done
from headgate.page.rules_form import (
    FAVOR,
    FOR_CHOICES,
    JUSTIFICATIONS,
    KINDS,
    MOMENTS,
    NO_FAULTS,
    OTHERS,
    Fields,
    RuleFormFaults,
    RuleKind,
    body_of,
    faults_of,
    fields_of,
    kind_of,
    seal,
    shown_fields,
)
from headgate.page.shell import Visit, moved, page, part
from headgate.present.rules import RuleRow, rows_of
from headgate.present.words import some
from headgate.rules.api import RuleDoc, RulesDoc
from headgate.rules.times import DAYS

RULES = "/v1/rules"
MAX_SUGGESTED = 300
REPLAYED = "1h"
_NOT_ALLOWED = (401, 403)
_CHANGED_SINCE = "the form was changed after its preview: this is the new one, and nothing was set"
_NO_DATABASE = "this agent has no database, so there is nothing to replay"


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be set, and what it would have changed."""

    rules: Sequence[RuleRow]
    reached: ReachedDoc | None
    past: ReplayView | None
    no_past: str
    """Why there is no replay."""
    seal: str


@dataclass(frozen=True, slots=True)
class Around:
    """What a form suggests."""

    clients: Sequence[str]
    databases: Sequence[str]
    metrics: Sequence[MetricView]
    """Each once; of several databases the first."""
    in_fleet: bool

    @property
    def names(self) -> list[str]:
        return [view.metric for view in self.metrics]


class RulesPage:
    routes = (
        ("GET", "/rules", "page"),
        ("GET", "/rules/list", "live"),
        ("GET", "/rules/ended", "ended"),
        ("GET", "/rules/new", "form"),
        ("GET", "/rules/reach", "reach"),
        ("POST", "/rules/preview", "preview"),
        ("POST", "/rules", "set_rule"),
        ("GET", "/rules/{rule}/{act}", "act"),
        ("POST", "/rules/{rule}/{act}/preview", "try_act"),
        ("POST", "/rules/{rule}/{act}", "do_act"),
    )

    def __init__(self) -> None:
        acts = RuleActs()
        self.act, self.try_act, self.do_act = acts.show, acts.preview, acts.do

    # --- looking ----------------------------------------------------------------------------

    async def page(self, visit: Visit) -> Response:
        told = await visit.api.get(RULES, RulesDoc)
        done = await told_done(visit)
        found = rule_list(told, visit.query.get("q", ""))
        with_ended = visit.query.get("all") == "true"
        ended = await _ended(visit) if with_ended else None
        return page(
            visit,
            "rules.html",
            found=found,
            done=done,
            ended=ended,
            kinds=KINDS,
            acts_of=acts_of,
        )

    async def live(self, visit: Visit) -> Response:
        found = rule_list(await visit.api.get(RULES, RulesDoc), visit.query.get("q", ""))
        return part(visit, "rules_list.html", found=found, kinds=KINDS, acts_of=acts_of)

    async def ended(self, visit: Visit) -> Response:
        return part(visit, "rules_ended.html", ended=await _ended(visit))

    async def reach(self, visit: Visit) -> Response:
        """Which agents a reach has, while it is typed."""
        given = visit.query.get("reach", "").strip()
        try:
            told = await _reached(visit, given) if given else None
        except ApiRejected as rejected:
            return part(visit, "rules_reach.html", reached=None, fault=rejected.detail)
        return part(visit, "rules_reach.html", reached=told, fault="")

    # --- a new one --------------------------------------------------------------------------

    async def form(self, visit: Visit) -> Response:
        return await _form(visit, fields_of(visit.query))

    async def preview(self, visit: Visit) -> Response:
        return await self._previewed(visit, body_of(visit.form))

    async def set_rule(self, visit: Visit) -> Response:
        fields, body = visit.form, body_of(visit.form)
        if fields.get("seal") != seal(body):
            return await self._previewed(visit, body, _CHANGED_SINCE)
        try:
            docs, _ = await _posted(visit, kind_of(fields), body)
        except ApiRejected as rejected:
            return await _rejected(visit, rejected)
        return moved(visit, done_path("set", docs))

    async def _previewed(self, visit: Visit, body: Mapping[str, Any], note: str = "") -> Response:
        kind = kind_of(visit.form)
        try:
            docs, reached = await _posted(visit, kind, body, {"dry_run": True})
        except ApiRejected as rejected:
            return await _rejected(visit, rejected)
        past, no_past = await _replayed(visit, kind, body, docs)
        shown = Preview(list(map(RuleRow, docs)), reached, past, no_past, seal(body))
        return await _form(visit, visit.form, preview=shown, note=note)


# --- steps --------------------------------------------------------------------------------------


async def _form(
    visit: Visit,
    fields: Fields,
    *,
    faults: RuleFormFaults = NO_FAULTS,
    preview: Preview | None = None,
    note: str = "",
) -> Response:
    template = "rules_form.html" if visit.by_script else "rules_new.html"
    return page(
        visit,
        template,
        status=422 if faults else 200,
        fields=fields,
        kind=kind_of(fields),
        kinds=KINDS,
        justifications=JUSTIFICATIONS,
        for_choices=FOR_CHOICES,
        days=DAYS,
        others=OTHERS,
        moments=MOMENTS,
        around=await _around(visit),
        faults=faults,
        preview=preview,
        note=note,
    )


async def _rejected(visit: Visit, rejected: ApiRejected) -> Response:
    """At its field, in the form that was sent; what this person may not do is no fault of it."""
    if rejected.status in _NOT_ALLOWED:
        raise rejected
    kind, around = kind_of(visit.form), await _around(visit)
    faults = faults_of(rejected, shown_fields(kind, around.names))
    return await _form(visit, visit.form, faults=faults)


async def _posted(
    visit: Visit, kind: RuleKind, body: Mapping[str, Any], query: Query = NO_QUERY
) -> tuple[Sequence[RuleDoc], ReachedDoc | None]:
    if kind.name == FAVOR:
        both = await visit.api.send("POST", f"{RULES}/favor", RulesDoc, body, query=query)
        return both.rules, both.reached
    doc = await visit.api.send("POST", RULES, RuleDoc, body, query=query)
    return [doc], doc.reached


async def _replayed(
    visit: Visit, kind: RuleKind, body: Mapping[str, Any], docs: Sequence[RuleDoc]
) -> tuple[ReplayView | None, str]:
    if docs[0].clients_total is None:
        return None, _NO_DATABASE
    rule = {key: value for key, value in body.items() if key != "reach"}
    if kind.name == FAVOR:
        # The second of the two rules rejects; it spares the clients of the first.
        rule = {key: value for key, value in rule.items() if key != "over"}
        rule |= {"kind": "ratio", "target": docs[1].target, "ratio": docs[1].ratio}
    try:
        told = await visit.api.send(
            "POST", "/v1/replay", ReplayDoc, {"rule": rule, "since": REPLAYED}
        )
    except ApiRejected as rejected:
        return None, rejected.detail
    return replayed(told, docs[0].target if kind.name == FAVOR else ""), ""


async def _ended(visit: Visit) -> Sequence[RuleRow]:
    return ended_rules(await visit.api.get(RULES, RulesDoc, {"all": True}))


async def _around(visit: Visit) -> Around:
    clients = await visit.api.get("/v1/clients", ClientsDoc)
    told = await visit.api.get("/v1/metrics", MetricsDoc)
    by_name = {view.metric: view for view in reversed(told.metrics)}
    databases = sorted({view.database for view in told.metrics})
    metrics = [by_name[name] for name in sorted(by_name)]
    return Around(_suggested(clients), databases, metrics, await _is_in_fleet(visit))


def _suggested(told: ClientsDoc) -> list[str]:
    """Whole names, and each level that several of them share."""
    names = list(dict.fromkeys(client.client for client in told.clients))
    levels = [level for name in names if ":" in name for level in name.split(":")]
    shared = sorted({level for level in levels if levels.count(level) > 1 or len(names) < 20})
    return list(dict.fromkeys(["all", *shared, *names]))[:MAX_SUGGESTED]


async def _is_in_fleet(visit: Visit) -> bool:
    """Of one whose store cannot be reached just now, too."""
    try:
        await _reached(visit, "fleet")
    except ApiRejected as rejected:
        return rejected.status not in (404, 409)
    return True


async def _reached(visit: Visit, reach: str) -> ReachedDoc:
    return await visit.api.get("/v1/fleet/reach", ReachedDoc, {"reach": reach})


MAX_ROWS = 100
FEW_RULES = 200
SLOWLY_S = 10
"""Between two looks at more than a few: each takes time that checks wait for."""
MAX_ENDED = 50
MAX_CLIENTS = 12
BAR_WIDTH = 200.0


# --- the list -----------------------------------------------------------------------------------


def acts_of(doc: RuleDoc) -> Sequence[str]:
    """What can be done about it."""
    if doc.state == "ended":
        return ()
    if doc.kind == "unreadable":
        return ("lift",)
    of_fleet = doc.reach is not None
    here = ("resume",) if of_fleet and doc.suspended else ("suspend",) if of_fleet else ()
    return ("extend", "change", "lift", *here)


@dataclass(frozen=True, slots=True)
class RuleList:
    rows: Sequence[RuleRow]
    loud: Sequence[RuleRow]
    """Exemptions in force: said above all else, whatever the list is filtered by."""
    rejected: Sequence[str]
    more: int
    counts: tuple[int, int, int]
    """In force, waiting, suspended; of all."""
    total: int
    q: str

    def poll_s(self, usual_s: int) -> int:
        return usual_s if self.total <= FEW_RULES else SLOWLY_S

    @property
    def live_path(self) -> str:
        return f"/rules/list?{urlencode({'q': self.q})}" if self.q else "/rules/list"


def rule_list(told: RulesDoc, q: str) -> RuleList:
    rows = rows_of(told.rules)
    found = [row for row in rows if _meant(row.doc, q)]
    states = [row.doc.state for row in rows]
    return RuleList(
        found[:MAX_ROWS],
        [row for row in rows if row.doc.loud],
        told.rejected,
        max(0, len(found) - MAX_ROWS),
        (states.count("in_force"), states.count("waiting"), states.count("suspended")),
        len(rows),
        q,
    )


def ended_rules(told: RulesDoc) -> Sequence[RuleRow]:
    ended = [RuleRow(doc) for doc in told.rules if doc.state == "ended"]
    return sorted(ended, key=lambda row: row.doc.expires_at, reverse=True)[:MAX_ENDED]


def _meant(doc: RuleDoc, q: str) -> bool:
    words = (doc.id, doc.target, doc.kind, doc.says, doc.reason, doc.created_by, doc.database or "")
    return not q or any(q.lower() in word.lower() for word in (*words, *doc.clients))


# --- a replay -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdmittedRange:
    """Admitted checks: between these two."""

    low: float
    high: float

    def __str__(self) -> str:
        low, high = some(self.low), some(self.high)
        return low if low == high else f"{low}\N{EN DASH}{high}"


@dataclass(frozen=True, slots=True)
class ReplayLine:
    """Of one client, or of all: what was, and what would have been."""

    client: str
    checks: int
    before: int
    after: AdmittedRange
    how: str = ""
    scale: float = 1.0
    """Checks that are as wide as the picture."""

    @property
    def before_width(self) -> float:
        return _width(self.before, self.scale)

    @property
    def low_width(self) -> float:
        return _width(self.after.low, self.scale)

    @property
    def open_width(self) -> float:
        """From the least to the most that it may be."""
        return _width(self.after.high - self.after.low, self.scale)

    @property
    def checks_width(self) -> float:
        return _width(self.checks, self.scale)


@dataclass(frozen=True, slots=True)
class ReplayView:
    since: str
    until: str
    total: ReplayLine
    clients: Sequence[ReplayLine]
    more: int
    notes: Sequence[str]


_HOW = {
    "exact": "exact",
    "expected": "on average: dice decide",
    "bounded": "between these: history keeps minutes, not single checks",
    "unknown": "cannot tell",
}


def replayed(doc: ReplayDoc, spared: str = "") -> ReplayView:
    """`spared`: the client that another rule, set with this one, leaves alone (favor sets two)."""
    hit = [row for row in doc.rows if not _is_spared(row, spared)]
    left_out = [row for row in doc.rows if _is_spared(row, spared)]
    low = doc.total.admitted_low + sum(r.admitted_before - r.admitted_low for r in left_out)
    high = doc.total.admitted_high + sum(r.admitted_before - r.admitted_high for r in left_out)
    clients = _by_client(hit)
    total = doc.total
    return ReplayView(
        doc.since,
        doc.until,
        ReplayLine(
            "all", total.checks, total.admitted_before, AdmittedRange(low, high), "", total.checks
        ),
        clients[:MAX_CLIENTS],
        max(0, len(clients) - MAX_CLIENTS),
        doc.notes,
    )


def _is_spared(row: ReplayRowDoc, spared: str) -> bool:
    return bool(spared) and set(spared.split(":")) <= set(row.client.split(":"))


def _by_client(rows: Iterable[ReplayRowDoc]) -> list[ReplayLine]:
    """Of all hours and databases, those that change most first."""
    grouped: dict[str, list[ReplayRowDoc]] = {}
    for row in rows:
        grouped.setdefault(row.client, []).append(row)
    scale = max((sum(r.checks for r in some) for some in grouped.values()), default=1)
    found = [_shown(client, some, scale) for client, some in grouped.items()]
    return sorted(
        found,
        key=lambda one: -max(abs(one.after.low - one.before), abs(one.after.high - one.before)),
    )


def _shown(client: str, rows: Sequence[ReplayRowDoc], scale: float) -> ReplayLine:
    after = AdmittedRange(sum(r.admitted_low for r in rows), sum(r.admitted_high for r in rows))
    before = sum(row.admitted_before for row in rows)
    return ReplayLine(client, sum(row.checks for row in rows), before, after, _how(rows), scale)


def _how(rows: Sequence[ReplayRowDoc]) -> str:
    first = sorted({row.shadowed_by for row in rows if row.shadowed_by})
    told = [f"as before: rule {rule} comes first" for rule in first]
    ways = {row.how for row in rows if not row.shadowed_by}
    told += [words for way, words in _HOW.items() if way in ways and (way != "exact" or not told)]
    return "; ".join(told)


def _width(count: float, scale: float) -> float:
    return round(BAR_WIDTH * max(0.0, count) / max(scale, 1.0), 1)
