"""The form of a rule.   query, form's fields ──body_of──► the API's body; its faults ──► fields

Fields are named as the API names them, so that a fault finds its field, and any page can link to a
form that is filled in: /rules/new?kind=hold&target=etl&reason=INC-1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from headgate.base.declared import parse_date_time
from headgate.page.api import ApiRejected
from headgate.page.shell import in_zone, zone
from headgate.present.rules import schedule_text
from headgate.rules.api import RuleDoc
from headgate.rules.settings import RULE_SETTINGS, limit_told
from headgate.rules.times import DAYS

FAVOR = "favor"
DEFAULT_FOR = "1h"
FOR_CHOICES = ("15m", "30m", "1h", "2h", "4h", "1d", "7d")
Fields = Mapping[str, str]


class RuleKind(NamedTuple):
    name: str
    title: str
    does: str
    """For an operator who has not set one before."""
    fields: frozenset[str]
    """What it has besides what every rule has."""
    needs_reason: bool = False


KINDS = {
    one.name: one
    for one in (
        RuleKind(
            "hold",
            "Hold",
            "Rejects every check of a client until it ends.",
            frozenset({"lock_out"}),
            needs_reason=True,
        ),
        RuleKind(
            "ratio",
            "Throttle by ratio",
            "Rejects a random share of a client's checks; the others must pass the metrics.",
            frozenset({"ratio", "order"}),
        ),
        RuleKind(
            FAVOR,
            "Favor",
            "Turns all others down and leaves one client to the metrics: two rules that are set "
            "and lifted together.",
            frozenset({"over", "ratio"}),
        ),
        RuleKind(
            "exempt",
            "Exempt",
            "Admits a client although metrics reject. Others pay for it, so it does not apply "
            "above its ceiling, and is suspended once it starves another client.",
            frozenset({"justification", "ceiling", "metrics"}),
            needs_reason=True,
        ),
        RuleKind(
            "metrics",
            "Choose metrics",
            "Applies these metrics alone to a client; it is exempt from all others.",
            frozenset({"metrics"}),
        ),
        RuleKind(
            "thresholds",
            "Threshold",
            "Applies stricter thresholds to a client than to all others.",
            frozenset({"thresholds"}),
        ),
    )
}
JUSTIFICATIONS = {
    "incident": "fixes an incident",
    "transient": "is starved for a short while",
    "system": "is light, and essential",
}
_NUMBERS = ("ratio", "ceiling")
_OF_SOME = frozenset(field for kind in KINDS.values() for field in kind.fields)
_LAID_OUT = {"id", "target", "kind", "reason", "database", "for", "expires_at", "schedule"}
OTHERS = tuple(row for name, row in RULE_SETTINGS.items() if name not in _LAID_OUT | _OF_SOME)
"""Settings that the form has no layout for: each is a field by its name and meaning."""
MOMENTS = frozenset(row.name for row in OTHERS if row.read is parse_date_time)
"""Those of them that are a date and time: the form has them in the browser's zone."""
_TEXTS = (
    *("id", "target", "over", "order", "justification", "reason", "database", "reach"),
    *(row.name for row in OTHERS),
)


# --- fields to body -----------------------------------------------------------------------------


def body_of(fields: Fields) -> dict[str, Any]:
    """What the API is sent: only what was filled in, and of its kind. The API validates it."""
    kind = kind_of(fields)
    said = {name: value.strip() for name, value in fields.items() if value.strip()}
    body: dict[str, Any] = {} if kind.name == FAVOR else {"kind": kind.name}
    body |= {name: said[name] for name in _TEXTS if name in said and _has(kind, name)}
    body |= {name: in_zone(said[name]) for name in MOMENTS if name in said}
    body |= {name: number(said[name]) for name in _NUMBERS if name in said and _has(kind, name)}
    if "metrics" in kind.fields and (names := _below("metrics", said)):
        body["metrics"] = list(names)
    if "thresholds" in kind.fields and (limits := _below("thresholds", said)):
        body["thresholds"] = {name: number(limit) for name, limit in limits.items()}
    if "lock_out" in said and _has(kind, "lock_out"):
        body["lock_out"] = True
    return body | _schedule(said) | end_of(said)


def kind_of(fields: Fields) -> RuleKind:
    return KINDS.get(fields.get("kind", ""), KINDS["ratio"])


def _has(kind: RuleKind, name: str) -> bool:
    if name == "id":
        return kind.name != FAVOR
    return name not in _OF_SOME or name in kind.fields


def number(text: str) -> float | str:
    """As a number where it is one (`90%` is 0.9), else as it was typed: the API says what is
    wrong with it."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def _below(place: str, said: Fields) -> dict[str, str]:
    """`thresholds.lag` of the form: lag."""
    prefix = f"{place}."
    return {name.removeprefix(prefix): v for name, v in said.items() if name.startswith(prefix)}


def _schedule(said: Fields) -> dict[str, Any]:
    given = _below("schedule", said)
    days = [day for day in DAYS if f"days.{day}" in given]
    times = {name: given[name] for name in ("from", "to") if name in given}
    if not days and not times:
        return {}
    zone = {"zone": given["zone"]} if "zone" in given else {}
    return {"schedule": ({"days": days} if days else {}) | times | zone}


def end_of(said: Fields) -> dict[str, str]:
    """By the one of both that was chosen."""
    if said.get("end") == "until":
        return {"expires_at": in_zone(said.get("expires_at", ""))}
    return {"for": said["for"]} if "for" in said else {}


def seal(body: Mapping[str, Any]) -> str:
    """Of what was previewed: nothing else is set by the button below it."""
    return hashlib.sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()[:24]


# --- links to fields ----------------------------------------------------------------------------


def fields_of(query: Fields) -> dict[str, str]:
    """Of a link: what has several parts may be said in one word, `metrics=lag,pool_usage`."""
    fields = {name: value for name, value in query.items() if name not in _SPREAD}
    for name in ("metrics", "thresholds"):
        for part in filter(None, query.get(name, "").split(",")):
            metric, _, limit = part.partition("=")
            fields[f"{name}.{metric.strip()}"] = limit.strip() or "on"
    fields |= _spread_schedule(query.get("schedule", ""))
    fields.setdefault("end", "until" if fields.get("expires_at") else "for")
    fields.setdefault("for", DEFAULT_FOR)
    for name in ("expires_at", *MOMENTS):
        fields[name] = _local(fields.get(name, ""))
    return fields


_SPREAD = frozenset({"metrics", "thresholds", "schedule"})


def _spread_schedule(text: str) -> dict[str, str]:
    """`mon-fri 07:00-09:30 Europe/Berlin`, as far as it can be read."""
    found: dict[str, str] = {}
    for word in text.split():
        begin, dash, end = word.partition("-")
        if ":" in begin and dash:
            found |= {"schedule.from": begin, "schedule.to": end}
        elif begin in DAYS:
            found |= {f"schedule.days.{day}": "on" for day in _days(word)}
        else:
            found["schedule.zone"] = word
    return found


def _days(text: str) -> Iterable[str]:
    for item in text.split(","):
        begin, dash, end = item.partition("-")
        if begin in DAYS and (not dash or end in DAYS):
            first, last = DAYS.index(begin), DAYS.index(end if dash else begin)
            yield from (DAYS[(first + step) % 7] for step in range((last - first) % 7 + 1))


def _local(text: str) -> str:
    """As a field for date and time takes it: in the browser's zone, to the second."""
    if not text.endswith("Z"):
        return text
    return datetime.fromisoformat(text).astimezone(zone()).strftime("%Y-%m-%dT%H:%M:%S")


def link_to(doc: RuleDoc, pair: RuleDoc | None = None) -> str:
    """To a form that would set it once more: until the same end."""
    if pair is not None:
        first, other = (doc, pair) if doc.ratio == 0 else (pair, doc)
        said = {"kind": FAVOR, "target": first.target, "over": other.target, "ratio": other.ratio}
        return _link(said | _shared(doc))
    said = {
        "kind": doc.kind,
        "target": doc.target,
        "ratio": doc.ratio,
        "order": doc.order,
        "justification": doc.justification,
        "ceiling": doc.ceiling,
        "metrics": ",".join(doc.metrics),
        "thresholds": ",".join(f"{of}={limit_told(of, n)}" for of, n in doc.thresholds.items()),
        "lock_out": "on" if doc.kind == "hold" and doc.target == "all" else None,
    }
    return _link(said | _shared(doc))


def _shared(doc: RuleDoc) -> dict[str, Any]:
    return {
        "reason": doc.reason,
        "database": doc.database,
        "expires_at": doc.expires_at,
        "schedule": schedule_text(doc.schedule),
        "reach": doc.reach,
        **others_of(doc),
    }


def others_of(doc: RuleDoc) -> dict[str, str]:
    return {row.name: getattr(doc, row.name) for row in OTHERS}


def _link(said: Mapping[str, Any]) -> str:
    given = {name: value for name, value in said.items() if value not in (None, "")}
    return f"/rules/new?{urlencode(given)}"


# --- faults -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RuleFormFaults:
    """What the API finds wrong: at its field where it names one, else above the form."""

    by_field: Mapping[str, str]
    others: tuple[str, ...] = ()

    def at(self, field: str) -> str:
        return self.by_field.get(field, "")

    def __bool__(self) -> bool:
        return bool(self.by_field or self.others)


NO_FAULTS = RuleFormFaults({})


def faults_of(rejected: ApiRejected, shown: Iterable[str]) -> RuleFormFaults:
    """`shown`: the fields that the form has; a fault of none of them must not be lost."""
    places, by_field, others = frozenset(shown), dict[str, str](), list[str]()
    told = rejected.faults or (f"{rejected.field or ''}: {rejected.detail}",)
    for fault in told:
        place, _, message = fault.partition(": ")
        field = _field(place, places)
        if field and field not in by_field:
            by_field[field] = message
        else:
            others.append(fault if place else message)
    return RuleFormFaults(by_field, tuple(others))


def _field(place: str, places: frozenset[str]) -> str:
    """`rule.thresholds.lag` is the form's thresholds.lag; of a place within a field, that."""
    first, _, rest = place.partition(".")
    name = rest if first in ("rule", FAVOR, "suspend") else place
    while name and name not in places:
        name = name.rpartition(".")[0]
    return name


def shown_fields(kind: RuleKind, metrics: Iterable[str]) -> list[str]:
    every = ["target", "reason", "database", "for", "expires_at", "reach", *_ID.get(kind.name, ())]
    schedule = [f"schedule.{name}" for name in ("from", "to", "zone", "days")]
    limits = [f"thresholds.{name}" for name in metrics] if "thresholds" in kind.fields else []
    return [*every, "schedule", *schedule, *kind.fields, *limits, *(row.name for row in OTHERS)]


_ID: Mapping[str, tuple[str, ...]] = {name: ("id",) for name in KINDS if name != FAVOR}
