"""What is done about a rule that is there: extend, change, lift, suspend it here, resume it.

dialog ──► preview (a dry run, on the revision that was seen) ──► the change ──► flash with its undo
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from headgate.base.declared import parse_for
from headgate.base.problems import Problem
from headgate.check.api import AuditsDoc
from headgate.errors import InvalidRequest
from headgate.fleet.api import ReachedDoc
from headgate.page.api import NO_QUERY, ApiRejected, Query, in_path
from headgate.page.changes import copies_made, copies_query
from headgate.page.rules_form import (
    NO_FAULTS,
    OTHERS,
    Fields,
    RuleFormFaults,
    faults_of,
    link_to,
    number,
    others_of,
    seal,
)
from headgate.page.shell import Visit, in_zone, moved, page, zone
from headgate.present.rules import RuleRow
from headgate.rules.api import RuleDoc, RulesDoc
from headgate.rules.settings import limit_text, limit_told

RULES = "/v1/rules"
AUDIT_LOOKED_AT = 200
CHANGED_EVENT = "rules-changed"
_NOT_ALLOWED = (401, 403)


class RuleAction(NamedTuple):
    name: str
    title: str
    method: str
    below: str
    done: str
    undo: str
    """Which act, or `set`, takes it back."""
    undo_label: str

    @property
    def answers_many(self) -> bool:
        return self.method != "PATCH"


ACTS = {
    one.name: one
    for one in (
        RuleAction("extend", "Extend", "PATCH", "", "now ends at {ends}", "extend", "Undo"),
        RuleAction("change", "Change", "PATCH", "", "is changed: {says}", "change", "Undo"),
        RuleAction("lift", "Lift", "DELETE", "", "is lifted", "set", "Set it again"),
        RuleAction(
            "suspend",
            "Suspend here",
            "PUT",
            "/suspension",
            "is suspended here",
            "resume",
            "Resume it",
        ),
        RuleAction(
            "resume",
            "Resume",
            "DELETE",
            "/suspension",
            "counts again here",
            "suspend",
            "Suspend it",
        ),
    )
}
_SET = RuleAction("set", "Set", "POST", "", "is set: it {says}, until {ends}", "lift", "Lift it")


class Changed(NamedTuple):
    """Another operator was faster."""

    by: str
    what: str
    at: str


@dataclass(frozen=True, slots=True)
class Done:
    """What happened, and the way back."""

    text: str
    undo_path: str
    undo_label: str


@dataclass(frozen=True, slots=True)
class Tried:
    """What would become of it."""

    rules: Sequence[RuleRow]
    reached: ReachedDoc | None
    seal: str


class RuleActs:
    """Handlers of the rules page."""

    async def show(self, visit: Visit) -> Response:
        act, doc = await _known(visit)
        if not visit.may_change:
            return _dialog(visit, act, doc, {})
        fields = _filled(act, doc, visit.query)
        if act.name in ("lift", "resume"):
            return await self._tried(visit, act, doc, fields)
        return _dialog(visit, act, doc, fields)

    async def preview(self, visit: Visit) -> Response:
        act, doc = await _known(visit)
        # With a button's value in the field beside it.
        quick = visit.form.get("quick")
        pressed = {"by": quick, "expires_at": ""} if quick else {}
        return await self._tried(visit, act, doc, {**visit.form, **pressed})

    async def do(self, visit: Visit) -> Response:
        act, doc = await _known(visit)
        try:
            body = _body(act, doc, visit.form)
            if visit.form.get("seal") != _seal(act, body):
                return await self._tried(visit, act, doc, visit.form)
            docs, _ = await _sent(visit, act, body)
        except ApiRejected as rejected:
            return await _rejected(visit, act, doc, rejected)
        return _done(visit, act, doc, docs)

    async def _tried(self, visit: Visit, act: RuleAction, doc: RuleDoc, fields: Fields) -> Response:
        try:
            body = _body(act, doc, fields)
            docs, reached = await _sent(visit, act, body, {"dry_run": True})
        except ApiRejected as rejected:
            return await _rejected(visit, act, doc, rejected)
        tried = Tried(list(map(RuleRow, docs)), reached, _seal(act, body))
        return _dialog(visit, act, doc, fields, tried=tried)


# --- steps --------------------------------------------------------------------------------------


async def _known(visit: Visit) -> tuple[RuleAction, RuleDoc]:
    act = ACTS.get(visit.path["act"])
    if act is None:
        message = f"a rule is not {visit.path['act'][:40]!r}; there are: {', '.join(ACTS)}"
        raise InvalidRequest(message, status=404)
    return act, await visit.api.get(_path(visit), RuleDoc)


def _path(visit: Visit) -> str:
    return f"{RULES}/{in_path(visit.path['rule'])}"


def _dialog(
    visit: Visit,
    act: RuleAction,
    doc: RuleDoc,
    fields: Fields,
    *,
    tried: Tried | None = None,
    faults: RuleFormFaults = NO_FAULTS,
    changed: Changed | None = None,
) -> Response:
    return page(
        visit,
        "rules_act.html" if visit.by_script else "rules_act_page.html",
        status=412 if changed else 422 if faults else 200,
        act=act,
        row=RuleRow(doc),
        fields=fields,
        tried=tried,
        faults=faults,
        changed=changed,
        others=OTHERS,
        path=f"/rules/{in_path(doc.id)}/{act.name}",
        by_script_asked=visit.by_script,
    )


async def _sent(
    visit: Visit, act: RuleAction, body: Mapping[str, Any] | None, query: Query = NO_QUERY
) -> tuple[Sequence[RuleDoc], ReachedDoc | None]:
    seen = visit.form.get("revision", "")
    told = await visit.api.ask(
        act.method,
        _path(visit) + act.below,
        body,
        query=query,
        # What the person saw, once there was something to see.
        revision=int(seen) if seen.isdecimal() and len(seen) < 18 and not act.below else None,
    )
    if act.answers_many:
        both = msgspec.json.decode(told, type=RulesDoc)
        return both.rules, both.reached
    doc = msgspec.json.decode(told, type=RuleDoc)
    return [doc], doc.reached


def _seal(act: RuleAction, body: Mapping[str, Any] | None) -> str:
    return seal({"act": act.name, "body": body})


async def _rejected(visit: Visit, act: RuleAction, doc: RuleDoc, rejected: ApiRejected) -> Response:
    """At its field; where another operator was faster, with who, and the rule as it is now."""
    if rejected.status in _NOT_ALLOWED:
        raise rejected
    if rejected.status == 412:
        changed, fields = await _changed(visit, doc), _filled(act, doc, {})
        tried = await _as_it_stands(visit, act, doc)
        return _dialog(visit, act, doc, fields, tried=tried, changed=changed)
    shown = (*_FIELDS[act.name], *(f"thresholds.{name}" for name in doc.thresholds))
    return _dialog(visit, act, doc, visit.form, faults=faults_of(rejected, shown))


_FIELDS: Mapping[str, tuple[str, ...]] = {
    "extend": ("by", "expires_at"),
    "change": ("ratio", "reason", "ceiling", "metrics", *(row.name for row in OTHERS)),
    "lift": (),
    "suspend": ("reason",),
    "resume": (),
}


async def _as_it_stands(visit: Visit, act: RuleAction, doc: RuleDoc) -> Tried | None:
    """What lifting it would do now; of what has fields, those are to be looked at first."""
    if act.name != "lift" or doc.state == "ended":
        return None
    query = {"dry_run": True}
    told = await visit.api.send(act.method, _path(visit), RulesDoc, query=query)
    return Tried(list(map(RuleRow, told.rules)), told.reached, _seal(act, None))


async def _changed(visit: Visit, doc: RuleDoc) -> Changed:
    told = await visit.api.get("/v1/audit", AuditsDoc, {"limit": AUDIT_LOOKED_AT})
    last = next((entry for entry in told.audit if entry.target == doc.id), None)
    if last is None:
        return Changed("somebody", "changed", "")
    return Changed(last.who, last.action.removeprefix("rule."), last.at)


# --- fields and bodies --------------------------------------------------------------------------


def _filled(act: RuleAction, doc: RuleDoc, query: Fields) -> dict[str, str]:
    """As it is, or as a link wants it: an undo is a form that is filled in."""
    if act.name == "extend":
        until = query.get("expires_at", "")
        filled = {"by": "" if until else "1h", "expires_at": until.removesuffix("Z")[:19]}
    elif act.name == "change":
        filled = {"reason": doc.reason, "metrics": ", ".join(doc.metrics), **others_of(doc)}
        filled |= {"ratio": _plain(doc.ratio), "ceiling": _plain(doc.ceiling)}
        filled |= {f"thresholds.{name}": limit_told(name, n) for name, n in doc.thresholds.items()}
        filled |= {name: value for name, value in query.items() if name in filled}
    else:
        filled = {"reason": query.get("reason", "")}
    return filled


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"


def _body(act: RuleAction, doc: RuleDoc, fields: Fields) -> dict[str, Any] | None:
    match act.name:
        case "extend":
            return {"expires_at": _new_end(doc, fields)}
        case "change":
            return _differences(doc, fields)
        case "suspend":
            return {"reason": fields.get("reason", "").strip()}
    return None


def _new_end(doc: RuleDoc, fields: Fields) -> str:
    if until := fields.get("expires_at", "").strip():
        return in_zone(until)
    try:
        more_s = parse_for(fields.get("by", "").strip())
        end = datetime.fromisoformat(doc.expires_at) + timedelta(seconds=more_s)
    except ValueError as error:
        raise _at_field("by", str(error)) from None
    except OverflowError:
        raise _at_field("by", "is more than a calendar holds") from None
    return end.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _at_field(field: str, message: str) -> ApiRejected:
    return ApiRejected(422, Problem("about:blank", "", 422, message, field=field))


def _differences(doc: RuleDoc, fields: Fields) -> dict[str, Any]:
    """Only what is not as it was: a changed ratio says nothing of its reason."""
    said: dict[str, Any] = {}
    before: dict[str, Any] = {"reason": doc.reason, **others_of(doc)}
    said |= {name: fields[name].strip() for name in before if name in fields}
    for name, value in (("ratio", doc.ratio), ("ceiling", doc.ceiling)):
        if value is not None and name in fields:
            said[name], before[name] = number(fields[name].strip()), value
    if doc.metrics and "metrics" in fields:
        said["metrics"] = [m.strip() for m in fields["metrics"].split(",") if m.strip()]
        before["metrics"] = list(doc.metrics)
    limits = {name: fields.get(f"thresholds.{name}", "").strip() for name in doc.thresholds}
    if any(limits.values()):
        said["thresholds"] = {name: number(limit) for name, limit in limits.items() if limit}
        before["thresholds"] = {name: limit_text(name, n) for name, n in doc.thresholds.items()}
    changed = {name: value for name, value in said.items() if value != before[name]}
    if not changed:
        message = "the form says what the rule says already: there is nothing to change yet"
        raise ApiRejected(422, Problem("about:blank", "", 422, message))
    return changed


# --- afterwards ---------------------------------------------------------------------------------


def _done(visit: Visit, act: RuleAction, before: RuleDoc, docs: Sequence[RuleDoc]) -> Response:
    undo = _undo_query(act, before, docs)
    if not visit.by_script:
        return moved(visit, done_path(act.name, docs, undo))
    response = page(visit, "rules_done.html", done=_told(act, docs, undo, _has_copies(docs)))
    response.headers["HX-Trigger"] = CHANGED_EVENT
    return response


def done_path(act: str, docs: Sequence[RuleDoc], undo: str = "") -> str:
    """The page that says what happened."""
    said = {"done": act, "rule": docs[0].id, **({"undo": undo} if undo else {})}
    return f"/rules?{urlencode(said | copies_query(docs[0].copies))}"


def _has_copies(docs: Sequence[RuleDoc]) -> str:
    copies = docs[0].copies
    return "" if copies is None else f" It is {copies.says}."


def _undo_query(act: RuleAction, before: RuleDoc, docs: Sequence[RuleDoc]) -> str:
    if act.name == "extend":
        return urlencode({"expires_at": before.expires_at})
    if act.name == "change":
        was = _filled(act, before, {})
        return urlencode({name: was[name] for name in was if was[name]})
    if act.name == "lift":
        pair = docs[1] if len(docs) > 1 and before.ratio is not None else None
        end = {"expires_at": before.expires_at}
        first = msgspec.structs.replace(docs[0], **end)
        return link_to(first, pair).partition("?")[2]
    return ""


def _told(act: RuleAction, docs: Sequence[RuleDoc], undo: str, copies: str = "") -> Done:
    first = docs[0]
    ends = datetime.fromisoformat(first.expires_at).astimezone(zone()).strftime("%-d %b %H:%M:%S")
    names = " and ".join(f"{doc.id} on {doc.target}" for doc in docs)
    verbs = act.done.format(ends=ends, says=first.says)
    text = f"Rule {names} {verbs}." if len(docs) == 1 else f"Rules {names}: each {verbs}."
    path = "/rules/new" if act.undo == "set" else f"/rules/{in_path(first.id)}/{act.undo}"
    return Done(text + copies, f"{path}?{undo}" if undo else path, act.undo_label)


async def told_done(visit: Visit) -> Done | None:
    """After a redirect: what its address says happened, where the rule says so as well."""
    act = _SET if visit.query.get("done") == "set" else ACTS.get(visit.query.get("done", ""))
    if act is None:
        return None
    try:
        doc = await visit.api.get(f"{RULES}/{in_path(visit.query.get('rule', ''))}", RuleDoc)
    except ApiRejected:
        return None
    if (doc.state == "ended") is not (act.name == "lift"):
        return None
    copies = copies_made(visit)
    return _told(act, [doc], visit.query.get("undo", ""), f" {copies}" if copies else "")
