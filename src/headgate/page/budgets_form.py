"""A budget as a form: fields ◄──► settings, faults at their fields, a proposal. Pure.

BudgetDoc.settings ─► BudgetForm ─► fields ─(sent)──► BudgetForm ──settings_of──► the API's document
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.budgets.api import PatternDoc
from headgate.budgets.limits import (
    BUDGET_SETTINGS,
    MAX_COMMENT_CHARS,
    MAX_SERVER_SECONDS,
    LimitSetting,
    amount_of,
    amount_told,
)
from headgate.budgets.policy import MAX_CONDITIONS, SYSTEM_KEYS, is_tag

MAX_RULES_SHOWN = 12
MAX_CONDITIONS_SHOWN = 5
MAX_FIELD_CHARS = 2000
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,9})?")
_PLACE = re.compile(r"(?:budgets\[\d+\])?\.?([^:]*): (.*)", re.DOTALL)
_RULE = re.compile(r"rules\[(\d+)\]")
_NOT_NAME = re.compile(r"[^a-z0-9._-]+")
SETTLES_S = 10.0
"""What a proposed bucket holds: so long at its rate."""
HEADROOM = 1.5


@dataclass(frozen=True, slots=True)
class FieldGroup:
    title: str
    about: str
    names: tuple[str, ...]


FIRST = FieldGroup(
    "Limits",
    "Blank: unlimited. 0 blocks everything. A burst limit of 2s is two seconds of all CPUs.",
    ("rate", "capacity", "max_workers"),
)
"""What most budgets need; the others are below "More"."""
MORE = (
    FieldGroup("Other limits", "", ("burst", "concurrency", "warning_threshold")),
    FieldGroup(
        "A statement that does not fit",
        "",
        ("max_delay_s", "penalty_s", "max_delayed", "in_transaction", "epoch"),
    ),
    FieldGroup("When it applies", "", ("when", "expires_at", "comment")),
)
LABELS = {
    "rate": "server share",
    "capacity": "burst limit",
    "burst": "per-query limit",
    "max_workers": "statements at once",
    "concurrency": "statements at once, as a share",
    "warning_threshold": "warn from",
    "max_delay_s": "delay at most",
    "penalty_s": "penalty of a blocked session",
    "max_delayed": "delayed sessions at most",
    "in_transaction": "inside a transaction",
    "epoch": "epoch",
    "expires_at": "ends at",
}
UNITS = dict.fromkeys(("rate", "capacity", "burst"), "of all CPUs") | {"max_workers": ""}
KEYS = (*SYSTEM_KEYS, "tag.controller", "tag.action", "tag.job")


@dataclass(frozen=True, slots=True)
class BudgetRuleForm:
    conditions: tuple[tuple[str, str], ...] = ()
    each: str = ""
    is_everything: bool = False

    @property
    def is_blank(self) -> bool:
        filled = any(key or value for key, value in self.conditions)
        return not (filled or self.each or self.is_everything)

    @property
    def document(self) -> dict[str, Any]:
        match = {key: value for key, value in self.conditions if key or value}
        each = [key.strip() for key in self.each.split(",") if key.strip()]
        return {**({"match": match} if match else {}), **({"each": each} if each else {})}

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """With one to fill in, where there is room."""
        room = len(self.conditions) < min(MAX_CONDITIONS, MAX_CONDITIONS_SHOWN)
        return (*self.conditions, ("", "")) if room else self.conditions


@dataclass(frozen=True, slots=True)
class BudgetForm:
    name: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    """By setting, as typed."""
    lasts: str = ""
    """From now, such as 2h: instead of `expires_at`."""
    rules: tuple[BudgetRuleForm, ...] = ()
    keeps_rules: bool = False
    """They do not fit into a form: they stay as they are."""

    def value(self, name: str) -> str:
        return self.values.get(name, "")


@dataclass(frozen=True, slots=True)
class BudgetFormFaults:
    """Where what is wrong is reported: at its field, at its rule, or on top."""

    by_field: Mapping[str, str] = field(default_factory=dict)
    by_rule: Mapping[int, str] = field(default_factory=dict)
    others: Sequence[str] = ()

    @property
    def any(self) -> bool:
        return bool(self.by_field or self.by_rule or self.others)


# --- from what is there --------------------------------------------------------------------------


def draft_of(settings: Mapping[str, Any]) -> BudgetForm:
    """Of a budget as it is."""
    values = {
        name: _shown(amount_told(name, settings[name]))
        for name in BUDGET_SETTINGS
        if name in settings and name != "name"
    }
    raw_rules = list(settings.get("rules", ()))
    rules = tuple(_rule_of(raw) for raw in raw_rules)
    fits = len(rules) <= MAX_RULES_SHOWN and all(
        len(rule.conditions) <= MAX_CONDITIONS_SHOWN for rule in rules
    )
    shown = rules if fits else ()
    return BudgetForm(str(settings.get("name", "")), values, "", shown, keeps_rules=not fits)


def _rule_of(raw: Mapping[str, Any]) -> BudgetRuleForm:
    match = {str(key): str(value) for key, value in raw.get("match", {}).items()}
    return BudgetRuleForm(tuple(match.items()), ", ".join(raw.get("each", ())), not match)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def draft_from(form: Mapping[str, str]) -> BudgetForm:
    """Of a form as it was sent."""
    values = {
        name: form[f"s.{name}"].strip()[:MAX_FIELD_CHARS]
        for name in BUDGET_SETTINGS
        if form.get(f"s.{name}", "").strip()
    }
    count = min(_whole(form.get("rules", "0")), MAX_RULES_SHOWN)
    rules = tuple(_rule_from(form, at) for at in range(count))
    name, lasts = form.get("name", "").strip(), form.get("lasts", "").strip()
    return BudgetForm(
        name[:100], values, lasts[:100], rules, keeps_rules=form.get("keeps") == "rules"
    )


def _rule_from(form: Mapping[str, str], at: int) -> BudgetRuleForm:
    pairs = []
    for row in range(MAX_CONDITIONS_SHOWN):
        key = form.get(f"rule.{at}.key.{row}", "").strip()[:200]
        value = form.get(f"rule.{at}.value.{row}", "").strip()[:MAX_FIELD_CHARS]
        if key or value:
            pairs.append((key, value))
    each = form.get(f"rule.{at}.each", "").strip()[:MAX_FIELD_CHARS]
    return BudgetRuleForm(tuple(pairs), each, f"rule.{at}.all" in form)


def _whole(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,3}", text) else 0


def stepped(draft: BudgetForm, step: str) -> BudgetForm:
    """With a rule more or less, as a button says."""
    action, _, at = step.partition(".")
    if action == "add" and len(draft.rules) < MAX_RULES_SHOWN:
        return replace(draft, rules=(*draft.rules, BudgetRuleForm()))
    if action == "drop":
        kept = tuple(rule for n, rule in enumerate(draft.rules) if n != _whole(at))
        return replace(draft, rules=kept)
    return draft


# --- to the API ----------------------------------------------------------------------------------


def settings_of(draft: BudgetForm) -> dict[str, Any]:
    """As PUT takes it."""
    found: dict[str, Any] = {
        name: _typed(BUDGET_SETTINGS[name], text) for name, text in draft.values.items()
    }
    if draft.lasts:
        found["for"] = draft.lasts
    if not draft.keeps_rules:
        found["rules"] = [rule.document for rule in _filled(draft)]
    return {"name": draft.name, **found}


def _filled(draft: BudgetForm) -> list[BudgetRuleForm]:
    return [rule for rule in draft.rules if not rule.is_blank]


def _typed(setting: LimitSetting, text: str) -> Any:
    if setting.low is None:
        return text
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    try:
        return amount_of(setting.kind, text)
    except (KeyError, ValueError):
        return text  # Its reader says what it should be.


def changes_of(draft: BudgetForm, before: Mapping[str, Any]) -> dict[str, Any]:
    """As PATCH takes it: what differs; null for what was taken out."""
    after = {key: value for key, value in settings_of(draft).items() if key != "name"}
    kept = {"name", "mode", *(["rules"] if draft.keeps_rules else [])}
    gone = {key: None for key in before if key not in after and key not in kept}
    if "for" in after:
        gone.pop("expires_at", None)
        after.pop("expires_at", None)
    return {**gone, **{key: value for key, value in after.items() if before.get(key) != value}}


def faults_of(told: Iterable[str], draft: BudgetForm) -> BudgetFormFaults:
    """`budgets[2].rate: 120 is more than 100` belongs to the field `rate`."""
    by_field: dict[str, str] = {}
    by_rule: dict[int, str] = {}
    others = []
    rows = [at for at, rule in enumerate(draft.rules) if not rule.is_blank]
    for fault in told:
        found = _PLACE.fullmatch(fault)
        place, message = (found[1], found[2]) if found else ("", fault)
        rule = _RULE.match(place)
        if rule is not None and int(rule[1]) < len(rows):
            where = place[rule.end() :].lstrip(".")
            by_rule[rows[int(rule[1])]] = f"{where}: {message}" if where else message
        elif place in BUDGET_SETTINGS or place in ("for", "rules"):
            by_field[place] = message
        else:
            others.append(fault)
    return BudgetFormFaults(by_field, by_rule, others)


# --- a proposal ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Used:
    """What a client took, by which limits are proposed."""

    share: float | None
    """Of the server's CPU."""
    running: float | None = None
    dearest: float = 0.0
    """One statement's cost, in seconds of the whole server."""


def proposed(name: str, match: Mapping[str, str], used: Used, about: str = "") -> BudgetForm:
    """One and a half times of what it takes now; it only warns until an operator says otherwise."""
    values = {"comment": about} if about else {}
    if used.share is not None:
        rate = min(100.0, max(1.0, math.ceil(round(HEADROOM * used.share * 1000, 6)) / 10))
        holds = min(MAX_SERVER_SECONDS, max(rate * SETTLES_S, math.ceil(400 * used.dearest)))
        limits = {"rate": rate, "capacity": holds}
        values |= {name: amount_told(name, value) for name, value in limits.items()}
    if used.running is not None:
        # An average says nothing about two at the same time.
        values["max_workers"] = str(max(2, math.ceil(HEADROOM * used.running)))
    return BudgetForm(name, values, rules=(BudgetRuleForm(tuple(match.items())),))


def used_by(pattern: PatternDoc, cpus: float | None) -> Used:
    dearest = pattern.cpu_mean_ms / 1000 / cpus if cpus else 0.0
    return Used(pattern.cpu_share, pattern.running, dearest)


def comment_of(pattern: PatternDoc) -> str:
    """The statement itself, for those who find the budget: a number means nothing to them."""
    text = pattern.text or ""
    fits = text if len(text) <= MAX_COMMENT_CHARS else f"{text[: MAX_COMMENT_CHARS - 1]}…"
    return fits if fits.isprintable() else ""


def match_of(query: Mapping[str, str]) -> dict[str, str]:
    """What a link wants a budget for: keys of rules, and nothing else."""
    known = {key: value for key, value in query.items() if key in SYSTEM_KEYS or is_tag(key)}
    return {key: value[:MAX_FIELD_CHARS] for key, value in list(known.items())[:4] if value}


def name_for(match: Mapping[str, str]) -> str:
    """One that names the client."""
    told = next(iter(match.values()), "") if match else ""
    prefix = "query-" if set(match) & {"query", "fingerprint"} else ""
    told = f"{prefix}{told.lstrip('-')}".lower()
    return _NOT_NAME.sub("-", told).strip("-._")[:40] or "budget"


def free_name(name: str, taken: Iterable[str]) -> str:
    known = set(taken)
    names = (name, *(f"{name}-{n}" for n in range(2, 2 + len(known))))
    return next(one for one in names if one not in known)
