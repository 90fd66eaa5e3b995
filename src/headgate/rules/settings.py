"""A rule as it is written down, by an operator or a program.

body ──parse_rule──► RuleSpec (Rule and schedule) ──► RuleKeeper ──► RuleBook
                        └──advise──► what is valid and probably not all that was meant
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from headgate.base.advice import Advice, Severity
from headgate.base.declared import (
    Setting,
    Table,
    amount,
    flag,
    mapping,
    names,
    number,
    one_of,
    or_text,
    parse_date_time,
    parse_for,
    read_table,
    reads,
    settings_schema,
    share,
    table,
    table_of,
    unknown,
)
from headgate.base.declared import text as any_text
from headgate.base.names import MAX_IDENTITY_CHARS, parse_database, parse_identity, parse_metric
from headgate.base.units import SECONDS_PATTERN, SHARE_PATTERN, Amount, amount_text
from headgate.errors import Fault, InvalidName, InvalidSettings
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.settings import limit_of, stored_limit
from headgate.rules.matching import (
    DEFAULT_CEILING,
    EVERYONE,
    FOREVER,
    NO_LIMITS,
    DiceOrder,
    Justification,
    Kind,
    Rule,
    RuleBook,
)
from headgate.rules.times import DAY_S, SCHEDULE_SETTINGS, Schedule, parse_schedule

MAX_REASON_CHARS = 500
MAX_METRICS = 64
MAX_CEILING = 1000.0
MAX_RATIO_OF_ALL = 0.999
"""Above that, a ratio on `all` is a hold by another name."""
MIN_LIMIT_OF_ALL = 0.01
"""Share of the metric's own threshold: a limit on `all` below that is a hold."""
MAX_CHARGED = 100
RESERVED_IDS = frozenset({"favor"})
"""Words that are routes or commands."""

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class KnownMetric(NamedTuple):
    """As much of a configured metric as a rule is held against."""

    threshold: float
    in_default: bool
    missing_on: str = ""
    """A database that the rule applies to, and where the metric is not measured."""
    value: float | None = None
    """As last measured; of several databases the highest. None: unknown."""
    value_on: str = ""
    """The database of that value."""
    at_least: bool = False
    """Whether it breaches at its very threshold."""

    def rejects_now(self, limit: float) -> bool:
        if self.value is None:
            return False
        return self.value > limit or (self.at_least and self.value == limit)


KnownMetrics = Callable[[str], Mapping[str, KnownMetric]]
"""By database; "" is all of them. Empty for one that is not configured here."""


@dataclass(frozen=True, slots=True)
class RuleLimits:
    default_for_s: float = 3600.0
    max_for_s: float = 30 * DAY_S
    max_ratio: float = 1.0
    """A ratio stays below 1 in any case; the rest is for `hold`."""
    max_rules: int = 10_000


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """A rule, and what is known about it."""

    rule: Rule
    """Without windows: they follow from the schedule and the day."""
    schedule: Schedule | None = None
    set_at: float = 0.0
    """Wall-clock seconds at which its end was last set."""
    pair: str = ""
    """The rule that was set together with it, and is lifted with it."""
    suspended: str = ""
    """Why an exemption is suspended; empty: it is not."""
    lifted_by: str = ""
    ruled_at: float | None = None
    """The same as set_at in the rules' own time, which never goes back (changes/time.py)."""
    charged: Mapping[str, float] = field(default_factory=lambda: NO_LIMITS)
    """Of an exemption: for how many seconds it has starved each client; `database client` → s."""
    starts_at: float | None = None
    """Wall-clock seconds; None: at once."""

    @property
    def id(self) -> str:
        return self.rule.id


# --- readers -------------------------------------------------------------------------------


@reads({"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$", "not": {"const": "favor"}})
def _id(value: object) -> str:
    given = any_text()(value)
    if not _ID.fullmatch(given) or given in RESERVED_IDS:
        raise ValueError(f"is {given!r}, must be 1–63 of a–z, 0–9, ., _ and -, and not reserved")
    return given


_LEVEL = r"[\w.@+=/~%-]{1,128}"


@reads(
    {"type": "string", "pattern": f"^{_LEVEL}(:{_LEVEL}){{0,7}}$", "maxLength": MAX_IDENTITY_CHARS}
)
def parse_target(value: object) -> str:
    """A client, one or several of its levels, or `all`."""
    given = any_text()(value)
    if not given:
        raise ValueError("is empty: name a client, a level of it, several (a:b), or all")
    levels = given.split(":")
    for place, level in enumerate(levels, start=1):
        _check_level(given, place, level)
    parse_identity(given)
    if EVERYONE in levels and given != EVERYONE:
        raise ValueError(f"is {given!r}: `{EVERYONE}` is every client: give it alone")
    return given


def _check_level(given: str, place: int, level: str) -> None:
    if not level:
        raise ValueError(f"is {given!r}: level {place} is empty")
    with suppress(InvalidName):
        parse_identity(level)
        return
    for index, char in enumerate(level, start=1):
        try:
            parse_identity(char)
        except InvalidName:
            raise ValueError(
                f"is {given!r}: level {place}, {level!r}, holds {char!r} at its character {index}; "
                "a level is made of letters, digits and ._@+=/~%-"
            ) from None


_METRIC = "^[a-z][a-z0-9_-]{0,62}$"


@reads(
    {
        "type": "array",
        "items": {"type": "string", "pattern": _METRIC},
        "maxItems": MAX_METRICS,
    }
)
def _metrics(value: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(parse_metric, names(MAX_METRICS)(value))))


_AMOUNT = amount(0, 1e18, above_low=True)
_NUMBER = {"type": "number", "exclusiveMinimum": 0, "maximum": 1e18}
_BY_UNIT: Mapping[str, Mapping[str, Any]] = {
    "s": {"type": "string", "pattern": SECONDS_PATTERN},
    "ratio": or_text({**_NUMBER, "maximum": 1}, SHARE_PATTERN),
}


@reads(
    {
        "type": "object",
        "propertyNames": {"pattern": _METRIC},
        "properties": {one.name: _BY_UNIT.get(one.unit, _NUMBER) for one in BUILTINS.values()},
        "additionalProperties": _NUMBER,
        "maxProperties": MAX_METRICS,
    }
)
def _thresholds(value: object) -> Mapping[str, float]:
    return _limits(value, _limit)


def _limits(value: object, read: Callable[[str, object], float]) -> Mapping[str, float]:
    given = mapping(value)
    if len(given) > MAX_METRICS:
        raise ValueError(f"has {len(given)} entries, at most {MAX_METRICS}")
    limits = {}
    for name, limit in given.items():
        try:
            limits[parse_metric(name)] = read(name, limit)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return MappingProxyType(limits)


def _limit(metric: str, given: object) -> float:
    limit, builtin = _AMOUNT(given), BUILTINS.get(metric)
    if builtin is not None:
        return limit_of(limit, builtin.unit, builtin)
    if isinstance(limit, Amount):  # Its unit is set where it is measured, and not known here.
        raise ValueError(f"is {limit.text!r}, must be a number in the unit of {metric}")
    return float(limit)


def _stored_limit(metric: str, given: object) -> float:
    """Earlier versions stored bare numbers, in the unit of the metric."""
    limit = _AMOUNT(given)
    if isinstance(limit, Amount):
        return _limit(metric, given)
    return float(stored_limit(limit, BUILTINS.get(metric)))


def limit_told(metric: str, limit: float) -> str:
    text = limit_text(metric, limit)
    return text if isinstance(text, str) else f"{text:g}"


def limit_text(metric: str, limit: float) -> float | str:
    """As a rule takes it: `2s` of lag, 80 of threads_running."""
    return amount_text(limit, BUILTINS[metric].unit) if metric in BUILTINS else limit


_ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f]*$"


@reads({"type": "string", "maxLength": MAX_REASON_CHARS, "pattern": _ONE_LINE})
def _reason(value: object) -> str:
    given = any_text(MAX_REASON_CHARS)(value).strip()
    if not given.isprintable():
        raise ValueError("has a line break or another control character; write one line")
    return given


@reads({"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9_.-]{0,62})?$"})
def _database(value: object) -> str:
    given = any_text()(value)
    return parse_database(given) if given else ""


_WINDOW = settings_schema(SCHEDULE_SETTINGS, required=("from", "to"))


@reads({"anyOf": [_WINDOW, {"type": "string", "examples": ["mon-fri 07:00-09:30 UTC"]}]})
def _schedule(value: object) -> object:
    """Read by parse_schedule, with the place of each fault."""
    return value


# --- the table -----------------------------------------------------------------------------

RULE_SETTINGS = table(
    (
        Setting("id", "Name of the rule.", _id, shown_default="made up"),
        Setting(
            "target", "Clients it applies to: a name, a level, several (`a:b`), `all`.",
            parse_target,
        ),
        Setting(
            "kind",
            "`ratio`, `hold`, `exempt`, `metrics` or `thresholds`.",
            one_of(Kind),
            default=Kind.RATIO,
        ),
        Setting(
            "ratio", "With `ratio`: share of checks to reject, 0 up to below 1 (`50%`).",
            share(0, 1),
        ),
        Setting(
            "order",
            "With `ratio`: roll the dice `before` the metrics are compared, or `after`.",
            one_of(DiceOrder),
            default=DiceOrder.BEFORE,
        ),
        Setting(
            "metrics",
            "With `metrics`: the metrics that decide. With `exempt`: the metrics to ignore.",
            _metrics,
            default=(),
            shown_default="with `exempt`: all",
        ),
        Setting(
            "thresholds", 'With `thresholds`: stricter limits, by metric (`lag = "2s"`).',
            _thresholds,
        ),
        Setting(
            "justification",
            "With `exempt`: `transient`, `incident` or `system`. Required there.",
            one_of(Justification),
        ),
        Setting("reason", "Why. Required with `hold` and `exempt`.", _reason, default=""),
        *table_of(Rule).values(),  # What needs no words here: its reader says it all.
        Setting(
            "ceiling",
            "With `exempt`: the rule is suspended above this many times a threshold.",
            number(1, MAX_CEILING),
            default=DEFAULT_CEILING,
        ),
        Setting(
            "database", "The one database that it applies to.", _database, default="",
            shown_default="every database",
        ),
        Setting(
            "for", "How long it lasts: `30m`, `2h`, `7d`.", parse_for,
            shown_default="`rule_default_s`: 1h",
        ),
        Setting("expires_at", "Instead of `for`: when it ends (RFC 3339).", parse_date_time),
        Setting(
            "starts_at", "When it starts (RFC 3339); `for` counts from then.", parse_date_time,
            shown_default="at once",
        ),
        Setting(
            "schedule",
            "Recurring window, `days`, `from`, `to`, `zone`: `mon-fri 07:00-09:30 Europe/Berlin`.",
            _schedule,
        ),
        Setting(
            "lock_out", "With `hold` on `all`: `true` confirms that every client is locked out.",
            flag, default=False,
        ),
    )
)  # fmt: skip

_ONLY_WITH: Mapping[str, frozenset[Kind]] = {
    "ratio": frozenset({Kind.RATIO}),
    "order": frozenset({Kind.RATIO}),
    "metrics": frozenset({Kind.METRICS, Kind.EXEMPT}),
    "thresholds": frozenset({Kind.THRESHOLDS}),
    "justification": frozenset({Kind.EXEMPT}),
    "ceiling": frozenset({Kind.EXEMPT}),
    "lock_out": frozenset({Kind.HOLD}),
}
OF_A_KIND = frozenset({"id", "target", "kind", *_ONLY_WITH})
FAVOR_RATIO = 0.9
FAVOR_SETTINGS = table(
    (
        Setting("target", "Client to prioritize, or a level of its name.", parse_target),
        Setting("over", "Clients to throttle.", parse_target, default=EVERYONE),
        Setting("ratio", "Share of their checks to reject: `50%`.", share(0, 1), FAVOR_RATIO),
        *(row for name, row in RULE_SETTINGS.items() if name not in OF_A_KIND),
    )
)
"""Two rules that are set together; what they share is as in any rule."""
FIXED = ("id", "target", "kind", "database")
"""What a rule is; another one is another rule."""
PAIRED = ("for", "expires_at")
"""What is changed for both rules of a pair."""


# --- parsing -------------------------------------------------------------------------------


def without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    """In a request, null is the same as leaving a setting out."""
    return {key: value for key, value in body.items() if value is not None}


def parse_rule(
    raw: object,
    *,
    rule_id: str,
    author: str,
    wall_s: float,
    known_metrics: KnownMetrics,
    limits: RuleLimits = RuleLimits(),
    place: str = "rule",
) -> RuleSpec:
    """The rule, or InvalidSettings with every fault. `rule_id` is for one that names none."""
    values, faults = read_table(raw, RULE_SETTINGS, place=place)
    if faults:
        raise InvalidSettings(faults)
    assert isinstance(raw, Mapping)
    faults = [
        *_misplaced(raw, values["kind"], place),
        *_missing(values, place),
        *_ratio_faults(values, limits, place),
        *_lock_out_faults(values, place),
        *_metric_faults(values, known_metrics(values["database"]), place),
        *_unmeetable_faults(values, known_metrics(values["database"]), place),
        *_expiry_faults(raw, values, wall_s, limits, place),
    ]
    schedule = None
    if values["schedule"] is not None:
        try:
            schedule = parse_schedule(values["schedule"], place=f"{place}.schedule")
        except InvalidSettings as error:
            faults += error.faults
    if faults:
        raise InvalidSettings(faults)
    expires_at = _expires_at(values, wall_s, limits)
    rule = _rule(values, values["id"] or rule_id, expires_at)
    rule = replace(rule, created_at=wall_s, created_by=author)
    return RuleSpec(rule, schedule, wall_s, starts_at=values["starts_at"])


RULE_FIELDS = frozenset(one.name for one in fields(Rule))


def _rule(values: Mapping[str, Any], rule_id: str, expires_at: float) -> Rule:
    """Each field as the setting of its name says, or as the model has it by default."""
    said = {key: one for key, one in values.items() if key in RULE_FIELDS and one not in (None, {})}
    return Rule(**{**said, "id": rule_id, "expires_at": expires_at})


def _misplaced(raw: Mapping[str, Any], kind: Kind, place: str) -> list[Fault]:
    return [
        Fault(f"{place}.{key}", f"has no effect in a rule of kind {kind.value!r}; leave it out")
        for key, kinds in _ONLY_WITH.items()
        if key in raw and kind not in kinds
    ]


_NEEDED: Mapping[Kind, Mapping[str, str]] = {
    Kind.RATIO: {"ratio": "is missing: say which share of checks to reject, such as 0.9 or 90%"},
    Kind.HOLD: {"reason": "is missing: a hold needs a reason, for the person on call"},
    Kind.EXEMPT: {
        "justification": "is missing: an exemption is for a transient starvation (transient), an "
        "incident's fix (incident), or an essential component with little load (system)",
        "reason": "is missing: say why the exemption is needed",
    },
    Kind.METRICS: {"metrics": "is missing: name the metrics that decide"},
    Kind.THRESHOLDS: {"thresholds": 'is missing: give a limit, such as lag = "2s"'},
}


def rule_schema(more: Table) -> dict[str, Any]:
    """By kind: what a rule of it needs, and what says nothing in it."""
    variants = []
    for kind in Kind:
        rows = {**RULE_SETTINGS, **more}
        rows = {k: row for k, row in rows.items() if kind in _ONLY_WITH.get(k, Kind)}
        implied = ["kind"] if kind is not Kind.RATIO else []
        needed = ("target", *implied, *_NEEDED[kind])
        schema = settings_schema(rows, nullable=True, required=needed)
        schema["properties"]["kind"] = {"enum": [kind.value, *([] if implied else [None])]}
        for name in _NEEDED[kind]:
            schema["properties"][name] = {**schema["properties"][name], **_SOME}
        variants.append({"title": kind.value, **schema, **ONE_END})
    return {"oneOf": variants}


_SOME = {"minLength": 1, "minItems": 1, "minProperties": 1}
"""Whichever it is of text, a list and a table."""
ONE_END = {"not": {"required": ["for", "expires_at"]}}


def settings_of(kind: Kind) -> list[Setting]:
    """What a rule of it may say, besides its kind."""
    others = (row for name, row in RULE_SETTINGS.items() if name != "kind")
    return [row for row in others if kind in _ONLY_WITH.get(row.name, Kind)]


def needed_by(kind: Kind) -> tuple[str, ...]:
    return ("target", *_NEEDED[kind])


def _missing(values: Mapping[str, Any], place: str) -> list[Fault]:
    needed = dict(_NEEDED[values["kind"]])
    if values["target"] is None:
        message = "is missing: name a client, a level of it, several (a:b), or all"
        return [Fault(f"{place}.target", message)]
    return [
        Fault(f"{place}.{key}", message)
        for key, message in needed.items()
        if values[key] is None or (key != "ratio" and not values[key])
    ]


def _ratio_faults(values: Mapping[str, Any], limits: RuleLimits, place: str) -> list[Fault]:
    ratio = values["ratio"]
    if ratio is None or values["kind"] is not Kind.RATIO:
        return []
    if ratio >= 1:
        message = "is 1, which rejects every check: set a hold, with a reason"
        return [Fault(f"{place}.ratio", message)]
    if ratio > limits.max_ratio:
        message = f"is {ratio:g}, at most {limits.max_ratio:g} here; to reject more, use a hold"
        return [Fault(f"{place}.ratio", message)]
    if values["target"] == EVERYONE and ratio > MAX_RATIO_OF_ALL:
        message = (
            f"is {ratio:.10g} on `{EVERYONE}`, at most {MAX_RATIO_OF_ALL:g}: more locks out every "
            f"client; {LOCK_OUT}"
        )
        return [Fault(f"{place}.ratio", message)]
    return []


LOCK_OUT = "if you want that, set a hold on `all` with lock_out = true (--lock-out)"


def _lock_out_faults(values: Mapping[str, Any], place: str) -> list[Fault]:
    everybody = values["target"] == EVERYONE and values["kind"] is Kind.HOLD
    if values["lock_out"] and not everybody:
        return [Fault(f"{place}.lock_out", f"is only for a hold on {EVERYONE!r}")]
    if everybody and not values["lock_out"]:
        message = (
            "a hold on `all` locks out every client; if you want that, set lock_out = true "
            "(--lock-out)"
        )
        return [Fault(f"{place}.target", message)]
    return []


def _metric_faults(
    values: Mapping[str, Any], known: Mapping[str, KnownMetric], place: str
) -> list[Fault]:
    """Only where the database is known: elsewhere nobody here can tell."""
    if not known:
        return []
    named = [
        *((f"{place}.metrics", name) for name in values["metrics"]),
        *((f"{place}.thresholds.{name}", name) for name in values["thresholds"] or ()),
    ]
    faults = [
        Fault(where, unknown(name, known).replace("setting", "metric"))
        for where, name in named
        if name not in known
    ]
    return faults or _unmeasured_faults(values, known, place)


def _unmeasured_faults(
    values: Mapping[str, Any], known: Mapping[str, KnownMetric], place: str
) -> list[Fault]:
    """A metric that is not measured rejects every check, and a hold has to say that."""
    if values["kind"] is not Kind.METRICS:
        return []
    return [
        Fault(
            f"{place}.metrics",
            f"{name} is not measured on {known[name].missing_on}, so every check of "
            f"{values['target']} there would be rejected: name a database, or use a hold",
        )
        for name in values["metrics"]
        if known[name].missing_on
    ]


def _unmeetable_faults(
    values: Mapping[str, Any], known: Mapping[str, KnownMetric], place: str
) -> list[Fault]:
    """Limits for all clients that always breach lock out every client, and that is a hold's to
    say. Of a recurring rule what is measured just now says nothing: its window is another time."""
    if values["kind"] is not Kind.THRESHOLDS or values["target"] != EVERYONE:
        return []
    recurs = values["schedule"] is not None
    told = {
        name: _unmeetable(name, limit, known[name], recurs=recurs)
        for name, limit in (values["thresholds"] or {}).items()
        if name in known and limit < known[name].threshold
    }
    return [Fault(f"{place}.thresholds.{name}", why) for name, why in told.items() if why]


def _unmeetable(name: str, limit: float, metric: KnownMetric, *, recurs: bool) -> str:
    lowest = MIN_LIMIT_OF_ALL * metric.threshold
    if limit < lowest:
        return (
            f"is {limit_told(name, limit)} for all clients, less than {MIN_LIMIT_OF_ALL:.0%} of "
            f"the metric's threshold of {limit_told(name, metric.threshold)}, which locks out "
            f"every client: set {limit_told(name, lowest)} or more; {LOCK_OUT}"
        )
    if metric.value is not None and metric.rejects_now(limit) and not recurs:
        return (
            f"is {limit_told(name, limit)} for all clients, and {name} is "
            f"{limit_told(name, metric.value)} on {metric.value_on} now, so the agent would reject "
            f"every check: set a limit above that; {LOCK_OUT}"
        )
    return ""


def _expiry_faults(
    raw: Mapping[str, Any], values: Mapping[str, Any], wall_s: float, limits: RuleLimits, place: str
) -> list[Fault]:
    if values["for"] is not None and values["expires_at"] is not None:
        return [Fault(f"{place}.expires_at", "give `for` or `expires_at`, not both")]
    given = "expires_at" if values["expires_at"] is not None else "for"
    left_s = _expires_at(values, wall_s, limits) - wall_s
    if left_s <= 0:
        message = f"is {raw[given]!r}, which is in the past: a rule ends after it begins"
        return [Fault(f"{place}.{given}", message)]
    if left_s > limits.max_for_s:
        message = (
            f"is {left_s / DAY_S:.3g} days from now, at most {limits.max_for_s / DAY_S:g}: "
            "longer rules are forgotten; extend it when it is still needed"
        )
        return [Fault(f"{place}.{given}", message)]
    return []


def _expires_at(values: Mapping[str, Any], wall_s: float, limits: RuleLimits) -> float:
    if values["expires_at"] is not None:
        return float(values["expires_at"])
    start_s = max(wall_s, values["starts_at"] or 0.0)
    return start_s + float(values["for"] or limits.default_for_s)


_TEXTS = tuple(key for key, row in RULE_SETTINGS.items() if row.default == "")


# --- as it is kept -------------------------------------------------------------------------


def written(rule: Rule, schedule: Schedule | None) -> dict[str, Any]:
    """As parse_rule takes it, without an end: only what is said outright."""
    given: dict[str, Any] = {"target": rule.target, "kind": rule.kind.value}
    if rule.kind is Kind.RATIO:
        given |= {"ratio": rule.ratio, "order": rule.order.value}
    if rule.metrics:
        given["metrics"] = list(rule.metrics)
    if rule.thresholds:
        given["thresholds"] = {name: limit_text(name, n) for name, n in rule.thresholds.items()}
    if rule.kind is Kind.EXEMPT:
        given["ceiling"] = rule.ceiling
    if rule.justification is not None:
        given["justification"] = rule.justification.value
    if rule.kind is Kind.HOLD and rule.target == EVERYONE:
        given["lock_out"] = True
    given |= {key: text for key in _TEXTS if (text := getattr(rule, key))}
    return given if schedule is None else given | {"schedule": schedule.written()}


def with_limit_units(stored: Mapping[str, Any]) -> dict[str, Any]:
    """As people write it, of a rule that a log has."""
    if not stored.get("thresholds"):
        return dict(stored)
    limits = _limits(stored["thresholds"], _stored_limit)
    return {**stored, "thresholds": {name: limit_text(name, n) for name, n in limits.items()}}


def _charged(value: object) -> Mapping[str, float]:
    given = mapping(value)
    kept = list(given.items())[:MAX_CHARGED]
    return MappingProxyType({any_text()(who): number(0, 1e12)(spent) for who, spent in kept})


_KEPT_ROWS = {
    **RULE_SETTINGS,
    **table(
        (
            Setting("thresholds", "", lambda value: _limits(value, _stored_limit)),
            Setting("created_at", "", parse_date_time),
            Setting("created_by", "", any_text()),
            Setting("set_at", "", parse_date_time),
            Setting("pair", "", any_text(), default=""),
            Setting("suspended", "", any_text(2048), default=""),
            Setting("lifted_by", "", any_text(), default=""),
            Setting("ruled_at", "", number(-1e12, 1e12)),
            Setting("charged", "", _charged, default=MappingProxyType({})),
        )
    ),
}
_KEPT_NEEDS = ("target", "expires_at", "created_at", "created_by")


def parse_kept(rule_id: str, value: object, revision: int) -> RuleSpec:
    """As the store has it. It was validated when it was set: limits may have changed since, and an
    end in the past is no fault."""
    place = f"rule {rule_id}"
    values, faults = read_table(value, _KEPT_ROWS, place=place)
    faults += [Fault(f"{place}.{key}", "is missing") for key in _KEPT_NEEDS if not values.get(key)]
    if faults:
        raise InvalidSettings(faults)
    raw_schedule = values["schedule"]
    schedule = parse_schedule(raw_schedule, place=place) if raw_schedule is not None else None
    rule = replace(_rule(values, rule_id, values["expires_at"]), revision=revision)
    return RuleSpec(
        rule,
        schedule,
        values["set_at"] or rule.created_at,
        values["pair"],
        values["suspended"],
        values["lifted_by"],
        values["ruled_at"],
        values["charged"],
        values["starts_at"],
    )


# --- advice (R80, R144): what, why, and what to do instead; it changes nothing ---------------

MAX_SHADOWS_TOLD = 3


def advise(
    spec: RuleSpec, others: Iterable[Rule], known: Mapping[str, KnownMetric], wall_s: float
) -> list[Advice]:
    rule = spec.rule
    return [
        *_unknown_database(rule, known),
        *_partial_exemption(rule, known),
        *_laxer_thresholds(rule, known),
        *_shadows(spec, others, wall_s),
    ]


class Sparing:
    """Rules that may override a hold, by their target: so that each of thousands of holds is not
    compared with all rules."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._all = [rule for rule in rules if _may_spare(rule)]
        self._by_token: dict[str, list[Rule]] = {}
        for rule in self._all:
            for token in set(rule.tokens):
                self._by_token.setdefault(token, []).append(rule)

    def of(self, rule: Rule) -> Sequence[Rule]:
        """Those on clients that this one means: all that are spared, and others."""
        if rule.target == EVERYONE:
            return self._all
        return min((self._by_token.get(token, ()) for token in set(rule.tokens)), key=len)


def _may_spare(rule: Rule) -> bool:
    return (
        rule.kind in _COMPETING
        and rule.kind is not Kind.HOLD
        and rule.target != EVERYONE
        and not (rule.kind is Kind.EXEMPT and rule.metrics)
    )


def not_held(rule: Rule, others: Iterable[Rule], wall_s: float) -> list[Advice]:
    """Clients that a hold does not apply to: a rule on fewer clients overrides it, such as the
    ratio of 0 that favors them, or an exemption."""
    if rule.kind is not Kind.HOLD:
        return []
    mine = set() if rule.target == EVERYONE else set(rule.tokens)
    spared = [
        other
        for other in others
        if _may_spare(other)
        and mine < set(other.tokens)
        and other.expires_at > wall_s
        and other.windows != ()
    ]
    if not spared:
        return []
    named = ", ".join(f"{other.target} (rule {other.id})" for other in spared[:MAX_SHADOWS_TOLD])
    more = f" and {len(spared) - MAX_SHADOWS_TOLD:,} more" * (len(spared) > MAX_SHADOWS_TOLD)
    message = (
        f"does not hold {named}{more}: a more specific rule decides; lift it, or hold them by name"
    )
    return [_warning("not-held", rule, "", message)]


def partial_exemption(rule: Rule, known: Mapping[str, KnownMetric]) -> tuple[str, ...]:
    """Default metrics that do not apply to a client with metrics of its own."""
    if rule.kind is not Kind.METRICS:
        return ()
    return tuple(
        name for name, of in sorted(known.items()) if of.in_default and name not in rule.metrics
    )


def _warning(code: str, rule: Rule, key: str, message: str) -> Advice:
    return Advice(Severity.WARNING, code, f"rule {rule.id}.{key}" if key else rule.id, message)


def _unknown_database(rule: Rule, known: Mapping[str, KnownMetric]) -> list[Advice]:
    if known or not rule.database:
        return []
    message = f"no database {rule.database!r} is configured here: the rule has no effect for now"
    return [_warning("rule-elsewhere", rule, "database", message)]


def _partial_exemption(rule: Rule, known: Mapping[str, KnownMetric]) -> list[Advice]:
    left_out = partial_exemption(rule, known)
    if not left_out:
        return []
    message = (
        f"partial exemption from {', '.join(left_out)}: load of {rule.target} that its own metrics "
        "miss throttles all others; add these metrics, or use an exemption"
    )
    return [_warning("partial-exemption", rule, "metrics", message)]


def _laxer_thresholds(rule: Rule, known: Mapping[str, KnownMetric]) -> list[Advice]:
    return [
        _warning(
            "laxer-threshold",
            rule,
            f"thresholds.{name}",
            f"{limit_told(name, limit)} says nothing: the threshold of {name} is "
            f"{limit_told(name, known[name].threshold)} already, and a rule can only lower it",
        )
        for name, limit in rule.thresholds.items()
        if name in known and limit >= known[name].threshold
    ]


def _shadows(spec: RuleSpec, others: Iterable[Rule], wall_s: float) -> list[Advice]:
    """For the first few: enough for hundreds of rules on one target."""
    rule, advice = spec.rule, list[Advice]()
    alike = [o for o in others if o.id != rule.id and set(o.tokens) == set(rule.tokens)]
    for other in alike:
        may_hide = _outlasts(other, rule, wall_s)
        may_be_hidden = spec.schedule is None and _outlasts(rule, other, wall_s)
        hidden = _hidden(rule, other) if may_hide or may_be_hidden else None
        if hidden is rule and may_hide:
            message = f"rule {other.id} decides as long as this one lasts: it has no effect"
            advice.append(_warning("shadowed", rule, "", message))
        elif hidden is other and may_be_hidden:
            message = f"rule {other.id} has no effect while this one is in force; lift it"
            advice.append(_warning("shadows", rule, "", message))
        if len(advice) == MAX_SHADOWS_TOLD:
            break
    return advice


def _hidden(a: Rule, b: Rule) -> Rule | None:
    """Which of two rules on the same clients never applies beside the other."""
    if a.database and b.database and a.database != b.database:
        return None
    if a.kind is not b.kind and not {a.kind, b.kind} <= _COMPETING:
        return None
    always = [_for_ever(a), _for_ever(b)]
    where = a.database or b.database
    applied = RuleBook(always).applied(parse_identity(a.target), where, 0.0)
    shadowed = {one.rule.id for one in applied.shadowed}
    return a if a.id in shadowed else b if b.id in shadowed else None


_COMPETING = {Kind.RATIO, Kind.HOLD, Kind.EXEMPT}
"""Rules of these kinds may hide each other."""


def _for_ever(rule: Rule) -> Rule:
    return Rule(
        rule.id, rule.target, rule.ratio, FOREVER, rule.kind,
        metrics=rule.metrics, thresholds=rule.thresholds, database=rule.database,
    )  # fmt: skip


def _outlasts(first: Rule, other: Rule, wall_s: float) -> bool:
    """Whether `first` is in force wherever and whenever `other` is, from now on."""
    everywhere = first.database in ("", other.database)
    always = first.windows is None and first.in_force(wall_s)
    return everywhere and always and first.expires_at >= other.expires_at > wall_s
