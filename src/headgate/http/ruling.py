"""Rules over HTTP.   Control ──► Ruling ──► RuleKeeper (judges, keeps, puts in force)"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headgate.agent.rulebook import FAVOR_RATIO, RuleKeeper
from headgate.agent.rulesteps import RuleEntry
from headgate.core.names import Identity
from headgate.core.rules import EVERYONE, Rule, RuleBook
from headgate.core.settings import Setting, number, read_table, table, text
from headgate.errors import InvalidRequest, InvalidSettings
from headgate.http.auth import Gatekeeper
from headgate.http.changes import etag, expected_revision, is_dry_run
from headgate.http.documents import UnderWay, json_object, json_response
from headgate.http.views import Views
from headgate.wire.rules import RuleDoc, RulesDoc, matched_clients, rule_doc

FAVOR_SETTINGS = table(
    (
        Setting("target", "Who is favored: a client, or a level of it.", text()),
        Setting("over", "Over whom.", text(), default=EVERYONE),
        Setting(
            "ratio",
            "Share of the others' checks to refuse.",
            number(0, 1),
            default=FAVOR_RATIO,
        ),
    )
)
RULES_AT_A_TIME = 200
FAVOR_SHARED = frozenset({"for", "expires_at", "schedule", "database", "reason"})
"""Of both rules, as a rule has them."""


class Ruling:
    """Handlers, as Control's."""

    def __init__(self, views: Views, gatekeeper: Gatekeeper, rules: RuleKeeper | None) -> None:
        self._views = views
        self._gatekeeper = gatekeeper
        self._given = rules
        self._under_way = UnderWay()

    # --- looking ---------------------------------------------------------------------------

    async def rules(self, request: Request) -> Response:
        ended = _wants_all(request)
        pairs, meant = self._rules.entries(), matched_clients(self._rules.book, self._clients())
        docs: list[RuleDoc] = []
        for start in range(0, len(pairs), RULES_AT_A_TIME):
            docs += self._docs(pairs[start : start + RULES_AT_A_TIME], meant)
            await asyncio.sleep(0)  # Checks come in between.
        return json_response(RulesDoc([doc for doc in docs if ended or doc.state != "ended"]))

    async def rule(self, request: Request) -> Response:
        entry = self._rules.entry(request.path_params["rule"])
        (doc,) = self._docs([pair for pair in self._rules.entries() if pair[0].id == entry.id])
        return json_response(doc, headers=etag(doc.revision))

    # --- changing --------------------------------------------------------------------------

    async def add_rule(self, request: Request) -> Response:
        who, dry_run = self._operator(request)
        body = _settings(await _body(request))
        docs = await self._changed(self._rules.put(body, who=who, dry_run=dry_run))
        return _one(docs, created=not dry_run)

    async def favor(self, request: Request) -> Response:
        who, dry_run = self._operator(request)
        body = _settings(await _body(request))
        values, faults = read_table(body, FAVOR_SETTINGS, place="favor", sections=FAVOR_SHARED)
        if faults:
            raise InvalidSettings(faults)
        shared = {key: value for key, value in body.items() if key in FAVOR_SHARED}
        target = values["target"] or ""
        change = self._rules.favor(
            target,
            over=values["over"],
            ratio=values["ratio"],
            more=shared,
            who=who,
            dry_run=dry_run,
        )
        return json_response(RulesDoc(await self._changed(change)), status=200 if dry_run else 201)

    async def change_rule(self, request: Request) -> Response:
        who, dry_run = self._operator(request)
        rule_id, body = request.path_params["rule"], await _body(request)
        change = self._rules.patch(
            rule_id, body, who=who, expect=expected_revision(request), dry_run=dry_run
        )
        return _one(await self._changed(change))

    async def lift_rule(self, request: Request) -> Response:
        """Answers with what was lifted: both, where two were set together."""
        who, dry_run = self._operator(request)
        change = self._rules.lift(
            request.path_params["rule"],
            who=who,
            expect=expected_revision(request),
            dry_run=dry_run,
        )
        return json_response(RulesDoc(await self._changed(change)))

    # --- steps -----------------------------------------------------------------------------

    def _operator(self, request: Request) -> tuple[str, bool]:
        who = self._gatekeeper.who_changes(request.state.peer, request.headers.get("authorization"))
        return who, is_dry_run(request)

    async def _changed(self, change: Awaitable[list[RuleEntry]]) -> list[RuleDoc]:
        entries = await self._under_way.finish(change)
        now = self._views.parts.clock.now()
        return self._docs([(entry, entry.in_book(now)) for entry in entries])

    def _docs(
        self,
        pairs: Sequence[tuple[RuleEntry, Rule]],
        meant: Mapping[str, Sequence[str]] | None = None,
    ) -> list[RuleDoc]:
        """With who is meant. What is only proposed is in no book but its own."""
        wall_s = self._views.parts.clock.now().wall_s
        if meant is None:
            meant = matched_clients(RuleBook(rule for _, rule in pairs), self._clients())
        return [
            rule_doc(
                entry.spec,
                rule,
                wall_s,
                clients=meant.get(rule.id, ()),
                advice=[str(advice) for advice in entry.advice or self._rules.advice(entry.spec)],
            )
            for entry, rule in pairs
        ]

    def _clients(self) -> list[tuple[Identity, str]]:
        """Who asked lately, newest first."""
        seen = self._views.clients().clients
        return [(Identity(c.client, tuple(c.client.split(":"))), c.database) for c in seen]

    @property
    def _rules(self) -> RuleKeeper:
        if self._given is None:
            raise InvalidRequest("this agent keeps no rules", status=404)
        return self._given


_RULES = "/v1/rules"
RULING_ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", _RULES, "rules"),
    ("POST", _RULES, "add_rule"),
    ("POST", f"{_RULES}/favor", "favor"),
    ("GET", f"{_RULES}/{{rule}}", "rule"),
    ("PATCH", f"{_RULES}/{{rule}}", "change_rule"),
    ("DELETE", f"{_RULES}/{{rule}}", "lift_rule"),
)


def _one(docs: Sequence[RuleDoc], *, created: bool = False) -> Response:
    """The rule that was asked about; of a pair, the other one follows along."""
    doc = docs[0]
    headers = etag(doc.revision)
    if created:
        headers["Location"] = f"{_RULES}/{doc.id}"
    return json_response(doc, status=201 if created else 200, headers=headers)


async def _body(request: Request) -> dict[str, Any]:
    """One that says a setting twice is refused: which of both was meant, nobody can tell."""
    body = await json_object(request)
    json.loads(await request.body(), object_pairs_hook=_once)
    return body


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise InvalidRequest(f"the body says {twice!r} twice; say it once", field=twice)
    return found


def _settings(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}


def _wants_all(request: Request) -> bool:
    given = request.query_params.get("all", "false")
    if given not in ("true", "false"):
        raise InvalidRequest(f"all is {given!r}, must be true or false", field="all")
    return given == "true"
