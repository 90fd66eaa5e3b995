"""What is proposed against starvation, as links into the forms that do it. Pure."""

from __future__ import annotations

import shlex
from typing import NamedTuple
from urllib.parse import quote, urlencode

from headgate.wire.starvation import StarvedDoc, SuspectDoc

FAVOR_FOR = "30m"


class Link(NamedTuple):
    words: str
    href: str
    is_change: bool = True
    """Leads to a form that changes something."""


def rule_form(**fields: str) -> str:
    """The form for a new rule, filled in; fields are named as in the API."""
    return f"/rules/new?{urlencode({name: value for name, value in fields.items() if value})}"


def remedies(starved: StarvedDoc) -> list[Link]:
    """The proposed one first; favouring is always one."""
    favour = rule_form(
        kind="favor",
        target=starved.client,
        database=starved.database,
        reason=f"starved by {starved.metric}",
        **{"for": FAVOR_FOR},
    )
    found = [_proposed(starved)] if starved.proposal else []
    return [link for link in found if link is not None] + [Link(f"Favour {starved.client}", favour)]


def _proposed(starved: StarvedDoc) -> Link | None:
    said = {"database": starved.database, "reason": f"{starved.client} is starved by it"}
    match shlex.split(starved.proposal):
        case ["headgate", "rule", "lift", rule]:
            return Link(f"Lift rule {rule}", f"/rules/{quote(rule, safe='')}/lift")
        case ["headgate", "rule", "ratio", target, ratio, "--database", "all", "--for", lasts]:
            fields = {"kind": "ratio", "target": target, "ratio": ratio, "for": lasts}
            return Link(f"Turn {target} down", rule_form(**fields, **said))
        case ["headgate", "rule", "metrics", target, "--database", "all", *metrics, "--for", lasts]:
            named = ",".join(metrics)
            fields = {"kind": "metrics", "target": target, "metrics": named, "for": lasts}
            return Link(f"Judge {target} alike", rule_form(**fields, **said))
        case ["headgate", "clients", "--rogue"]:
            return Link("Who never asks", "/clients#rogues", is_change=False)
    return None


def for_client(app: str, database: str) -> list[Link]:
    """What can be done to, or for, a client."""
    shared = {"target": app, "database": database}
    return [
        Link("Hold", rule_form(kind="hold", **shared, **{"for": FAVOR_FOR})),
        Link("Slow down", rule_form(kind="ratio", ratio="0.5", **shared, **{"for": FAVOR_FOR})),
        Link("Favour", rule_form(kind="favor", **shared, **{"for": FAVOR_FOR})),
        Link("Exempt", rule_form(kind="exempt", **shared, **{"for": FAVOR_FOR})),
    ]


def budget_form(suspect: SuspectDoc) -> str:
    who = {"username": suspect.user, "application_name": suspect.application}
    told = urlencode({name: value for name, value in who.items() if value})
    return f"/budgets/{quote(suspect.database, safe='')}/new?{told}"
