"""The page /rules: what is in force and for how long, and new rules, previewed before they are set.

form ──body_of──► dry run and replay of the last hour ──► preview ──the same form──► POST /v1/rules
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from headgate.core.rule_times import DAYS
from headgate.http.page.api import NO_QUERY, Query, Refused
from headgate.http.page.rules_acts import RuleActs, done_path, told_done
from headgate.http.page.rules_form import (
    FAVOR,
    FOR_CHOICES,
    JUSTIFICATIONS,
    KINDS,
    NO_FAULTS,
    OTHERS,
    Faults,
    Fields,
    RuleKind,
    body_of,
    faults_of,
    fields_of,
    kind_of,
    seal,
    shown_fields,
)
from headgate.http.page.rules_view import Replayed, acts_of, ended_rules, replayed, rule_list
from headgate.http.page.shell import Visit, moved, page, part
from headgate.present.rules import RuleRow
from headgate.wire.fleet_reach import ReachedDoc
from headgate.wire.history import ReplayDoc
from headgate.wire.rules import RuleDoc, RulesDoc
from headgate.wire.status import ClientsDoc, MetricsDoc, MetricView

RULES = "/v1/rules"
MAX_SUGGESTED = 300
REPLAYED = "1h"
_NOT_ALLOWED = (401, 403)
_CHANGED_SINCE = "the form was changed after its preview: this is the new one, and nothing was set"
_NO_DATABASE = "this agent has no database, so nobody asks it, and there is nothing to replay"


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be set, and what it would have changed."""

    rules: Sequence[RuleRow]
    reached: ReachedDoc | None
    past: Replayed | None
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
        """Whom a reach meets, while it is typed."""
        given = visit.query.get("reach", "").strip()
        try:
            told = await _reached(visit, given) if given else None
        except Refused as refused:
            return part(visit, "rules_reach.html", reached=None, fault=refused.detail)
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
        except Refused as refused:
            return await _refused(visit, refused)
        return moved(visit, done_path("set", docs))

    async def _previewed(self, visit: Visit, body: Mapping[str, Any], note: str = "") -> Response:
        kind = kind_of(visit.form)
        try:
            docs, reached = await _posted(visit, kind, body, {"dry_run": True})
        except Refused as refused:
            return await _refused(visit, refused)
        past, no_past = await _replayed(visit, kind, body, docs)
        shown = Preview(list(map(RuleRow, docs)), reached, past, no_past, seal(body))
        return await _form(visit, visit.form, preview=shown, note=note)


# --- steps --------------------------------------------------------------------------------------


async def _form(
    visit: Visit,
    fields: Fields,
    *,
    faults: Faults = NO_FAULTS,
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
        around=await _around(visit),
        faults=faults,
        preview=preview,
        note=note,
    )


async def _refused(visit: Visit, refused: Refused) -> Response:
    """At its field, in the form that was sent; what this person may not do is no fault of it."""
    if refused.status in _NOT_ALLOWED:
        raise refused
    kind, around = kind_of(visit.form), await _around(visit)
    faults = faults_of(refused, shown_fields(kind, around.names))
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
) -> tuple[Replayed | None, str]:
    if docs[0].clients_total is None:
        return None, _NO_DATABASE
    rule = {key: value for key, value in body.items() if key != "reach"}
    if kind.name == FAVOR:
        # Of both rules it is the second that refuses; whom the first leaves alone, it spares.
        rule = {key: value for key, value in rule.items() if key != "over"}
        rule |= {"kind": "ratio", "target": docs[1].target, "ratio": docs[1].ratio}
    try:
        told = await visit.api.send(
            "POST", "/v1/replay", ReplayDoc, {"rule": rule, "since": REPLAYED}
        )
    except Refused as refused:
        return None, refused.detail
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
    except Refused as refused:
        return refused.status not in (404, 409)
    return True


async def _reached(visit: Visit, reach: str) -> ReachedDoc:
    return await visit.api.get("/v1/fleet/reach", ReachedDoc, {"reach": reach})
