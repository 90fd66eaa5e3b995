"""A metric as it is written down, in the settings file or in a runtime change.

file or API  ──parse_metric_settings──►  MetricSpec  ──►  Sampler, Health
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headgate.base.declared import (
    Setting,
    amount,
    flag,
    mapping,
    names,
    one_of,
    read_table,
    reads,
    seconds,
    share,
    table,
    text,
    unknown,
)
from headgate.base.names import parse_metric
from headgate.base.units import Amount, amount_text, in_unit
from headgate.errors import Fault, InvalidName, InvalidSettings
from headgate.metrics.builtins import BUILTINS, BuiltinMetric
from headgate.metrics.model import (
    AbsencePolicy,
    Builtin,
    Command,
    Comparison,
    Debounce,
    Engine,
    Http,
    MetricMode,
    MetricSpec,
    Plugin,
    Source,
    Sql,
)
from headgate.pacing.model import default_target
from headgate.shard.settings import ROLLUP_SETTINGS, rollup_faults, rollup_of, scope_of

MAX_QUERY_CHARS = 8192
SOURCE_KEYS = ("sql", "url", "command", "plugin")

_DEBOUNCE = re.compile(r"(\d{1,2}) of (\d{1,2})")
# `/*!` and `/*M!` are no comments: MySQL and MariaDB run what is in them.
_LEADING_COMMENTS = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*(?!M?!).*?\*/)+", re.DOTALL)
_QUERY = re.compile(r"(select|with|show|values|table)\b", re.IGNORECASE)
_URL = re.compile(r"https?://[^\s/]+(/\S*)?")


@reads({"type": "string", "pattern": "^[0-9]{1,2} of [0-9]{1,2}$", "examples": ["3 of 5"]})
def _debounce(value: object) -> Debounce:
    match = _DEBOUNCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"is {value!r}, must read like '3 of 5'")
    breaches, readings = int(match[1]), int(match[2])
    if not 1 <= breaches <= readings <= 60:
        raise ValueError(f"is {value!r}, must be M of N with 1 ≤ M ≤ N ≤ 60")
    return Debounce(breaches, readings)


@reads({"type": "string", "maxLength": MAX_QUERY_CHARS})
def _query(value: object) -> str:
    query = text(MAX_QUERY_CHARS)(value).strip().rstrip(";").strip()
    if comments := _LEADING_COMMENTS.match(query):
        query = query[comments.end() :]
    if not _QUERY.match(query):
        raise ValueError(
            "must be one SELECT, or SHOW GLOBAL STATUS LIKE …, that answers one number"
        )
    return query


@reads({"type": "string", "pattern": f"^{_URL.pattern}$", "maxLength": 2048})
def _url(value: object) -> str:
    url = text(2048)(value)
    if not _URL.fullmatch(url):
        # Not quoted: it may hold a password.
        raise ValueError("must be an http:// or https:// address")
    return url


@reads({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 32})
def _command(value: object) -> tuple[str, ...]:
    argv = names(32)(value)
    if not argv:
        raise ValueError("must name a program and its arguments, as a list of strings")
    return argv


METRIC_SETTINGS = table(
    (
        Setting(
            "threshold",
            'Value beyond which checks are rejected. Times and sizes have a unit (`"50ms"`, '
            '`"4 GiB"`), shares may be percentages (`"80%"`), all else is a number. 0 restores '
            "the default; required if the metric has none.",
            amount(0, 1e18),
            shown_default="the metric's own",
        ),
        Setting(
            "comparison",
            "`>` rejects above the threshold, `>=` at it, too.",
            one_of(Comparison),
            shown_default="the metric's own, else `>`",
        ),
        Setting(
            "interval_s",
            "Time between two probes.",
            seconds(0.01, 3600),
            shown_default="the metric's own, else 1s",
        ),
        Setting(
            "timeout_s",
            "Time after which a probe is given up, here and on the server.",
            seconds(0.01, 60),
            shown_default="the metric's own, else 500ms",
        ),
        Setting(
            "max_age_s",
            "Age beyond which a value is stale.",
            seconds(0.02, 7200),
            shown_default="2 × interval_s + timeout_s",
        ),
        Setting(
            "debounce",
            "`M of N`: reject only when M of the last N values breach.",
            _debounce,
            default=Debounce(),
            shown_default="off",
        ),
        Setting(
            "absence",
            "What a missing value means: `reject`, `hold` the last value for hold_s, or `ignore`.",
            one_of(AbsencePolicy),
            default=AbsencePolicy.REJECT,
        ),
        Setting(
            "hold_s",
            "With `absence` = `hold`: how long the last value still counts.",
            seconds(0.1, 3600),
            shown_default="30s if `absence` is `hold`",
        ),
        Setting(
            "reject_for_s",
            "How long a missing value rejects checks. After it the metric is ignored until it has "
            "a value again; checks admitted without it are counted.",
            seconds(1, 7 * 86_400),
            shown_default="until there is a value",
        ),
        Setting(
            "mode",
            "`gauge` takes the number as it is, `rate` its increase per second.",
            one_of(MetricMode),
            default=MetricMode.GAUGE,
        ),
        Setting(
            "unit", "Unit to show beside the value.", text(16), shown_default="the metric's own"
        ),
        Setting(
            "sql",
            "Custom metric: one SELECT (or SHOW GLOBAL STATUS LIKE …) that answers one number.",
            _query,
        ),
        Setting(
            "url", "Custom metric: address that answers a number, JSON or Prometheus text.", _url
        ),
        Setting("pointer", "With url: JSON pointer (RFC 6901) to the number.", text(512)),
        Setting(
            "series", 'With url: Prometheus series, `name` or `name{label="value"}`.', text(512)
        ),
        Setting(
            "command",
            "Custom metric: program and arguments; its standard output is the number. "
            "Settings file only.",
            _command,
        ),
        Setting(
            "plugin",
            "Custom metric: name of an entry point in the group `headgate.probes`.",
            text(64),
        ),
        Setting(
            "options", "Options of the built-in metric or of the plug-in.", mapping, default={}
        ),
        Setting(
            "pace",
            "true paces the work that is admitted while the metric is healthy, so that it stays "
            "near pace_target instead of swinging around its threshold.",
            flag,
            default=False,
        ),
        Setting(
            "pace_target",
            "With pace: the value to aim at, as a share of its threshold.",
            share(0.1, 0.95),
            shown_default="0.5 for lag, else 0.8",
        ),
        Setting("enabled", "false leaves the metric out.", flag, default=True),
        *ROLLUP_SETTINGS,
    )
)


def parse_metric_settings(
    name: str, raw: object, engine: Engine, *, place: str | None = None
) -> MetricSpec:
    """The spec, or InvalidSettings with every fault. Pure: connects to nothing."""
    place = place or f"metrics.{name}"
    try:
        name = parse_metric(name)
    except InvalidName as error:
        raise InvalidSettings([Fault(place, str(error))]) from None
    values, faults = read_table(raw, METRIC_SETTINGS, place=place)
    builtin = BUILTINS.get(name)
    if faults:
        # A built-in metric has its own unit: a limit in another one is reported at once, too.
        known = builtin is not None and values
        raise InvalidSettings(faults + (unit_faults(values, builtin, place) if known else []))
    faults = _source_faults(name, values, builtin, engine, place)
    if faults and builtin is None and not any(values[key] is not None for key in SOURCE_KEYS):
        # Probably a built-in one that is misspelled: of that its own unit and threshold count.
        raise InvalidSettings(faults)
    faults += [
        *unit_faults(values, builtin, place),
        *_option_faults(values["options"], builtin, place),
        *_threshold_faults(values, builtin, place),
        *rollup_faults(values, place),
    ]
    if faults:
        raise InvalidSettings(faults)
    spec = _spec(name, values, builtin)
    if spec.max_age_s < spec.interval_s:
        message = (
            f"is {spec.max_age_s:g}, below interval_s = {spec.interval_s:g}: every value would be "
            "stale before the next one comes"
        )
        raise InvalidSettings([Fault(f"{place}.max_age_s", message)])
    return spec


def _spec(name: str, values: Mapping[str, Any], builtin: BuiltinMetric | None) -> MetricSpec:
    interval_s = values["interval_s"] or (builtin.interval_s if builtin else 1.0)
    timeout_s = values["timeout_s"] or (builtin.timeout_s if builtin else 0.5)
    absence = values["absence"]
    hold_s = values["hold_s"] or 30.0
    return MetricSpec(
        name=name,
        source=_source(name, values, builtin),
        threshold=values["threshold"] or (builtin.threshold if builtin else 0.0),
        comparison=values["comparison"] or (builtin.comparison if builtin else Comparison.ABOVE),
        unit=values["unit"],
        mode=values["mode"],
        interval_s=interval_s,
        timeout_s=timeout_s,
        max_age_s=values["max_age_s"] or 2 * interval_s + timeout_s,
        debounce=values["debounce"],
        absence=absence,
        hold_s=hold_s if absence is AbsencePolicy.HOLD else 0.0,
        reject_for_s=values["reject_for_s"] or 0.0,
        scope=scope_of(values, builtin),
        rollup=rollup_of(values, builtin),
        options=MappingProxyType(
            {
                key: tuple(one) if isinstance(one, list | tuple) else one
                for key, one in values["options"].items()
            }
        ),
        pace=values["pace"],
        pace_target=values["pace_target"] or default_target(name, values["unit"]),
    )


def _source(name: str, values: Mapping[str, Any], builtin: BuiltinMetric | None) -> Source:
    if builtin is not None:
        return Builtin(name)
    if values["sql"] is not None:
        return Sql(values["sql"])
    if values["url"] is not None:
        return Http(values["url"], values["pointer"], values["series"])
    if values["command"] is not None:
        return Command(values["command"])
    return Plugin(values["plugin"])


def _source_faults(
    name: str,
    values: Mapping[str, Any],
    builtin: BuiltinMetric | None,
    engine: Engine,
    place: str,
) -> list[Fault]:
    given = [key for key in SOURCE_KEYS if values[key] is not None]
    if builtin is not None:
        if given:
            message = f"{name} is a built-in metric: give a custom one another name"
            return [Fault(f"{place}.{given[0]}", message)]
        if engine not in builtin.engines:
            return [Fault(place, f"{name} cannot be measured on {engine.value}")]
        return []
    if not given:
        custom = "; or give one of sql, url, command, plugin to make it a custom metric"
        return [Fault(place, unknown(name, BUILTINS).replace("setting", "metric") + custom)]
    if len(given) > 1:
        return [Fault(place, f"takes one of {' and '.join(given)}, not both")]
    if values["url"] is not None and values["pointer"] and values["series"]:
        return [Fault(place, "takes pointer (JSON) or series (Prometheus), not both")]
    return []


def _option_faults(
    options: Mapping[str, object], builtin: BuiltinMetric | None, place: str
) -> list[Fault]:
    known = [key for key, _ in builtin.options] if builtin else None
    faults = []
    for key, value in options.items():
        if known is not None and key not in known:
            hint = unknown(key, known) if known else f"{place} takes no options"
            faults.append(Fault(f"{place}.options.{key}", hint.replace("setting", "option")))
        elif not _is_option(value):
            faults.append(
                Fault(f"{place}.options.{key}", "must be text, a number or a list of text")
            )
    return faults


LIMITS = ("threshold", "ignore_above")
"""Settings in the metric's unit."""


def with_units(
    metric: str, stored: Mapping[str, Any], beneath: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """As people write it, of settings that a log has. Earlier versions stored bare numbers, in the
    unit of the metric; `beneath` may say which, where `stored` is a patch."""
    builtin, unit = BUILTINS.get(metric), stored.get("unit", beneath.get("unit"))
    unit = unit if isinstance(unit, str) else builtin.unit if builtin else ""
    bare = {key: stored[key] for key in LIMITS if isinstance(stored.get(key), int | float)}
    limits = {key: amount_text(stored_limit(n, builtin), unit) for key, n in bare.items() if n > 0}
    return {**stored, **limits}


def stored_limit(limit: float, builtin: BuiltinMetric | None) -> float:
    """More than all of a share was allowed once, and says the same as all of it."""
    return min(limit, 1) if builtin is not None and builtin.unit == "ratio" else limit


def unit_faults(values: dict[str, Any], builtin: BuiltinMetric | None, place: str) -> list[Fault]:
    """Texts become numbers in the metric's unit."""
    faults = []
    if values["unit"] is None:
        values["unit"] = builtin.unit if builtin else ""
    for key in LIMITS:
        if values[key] is None:
            continue
        try:
            values[key] = limit_of(values[key], values["unit"], builtin)
        except ValueError as error:
            faults.append(Fault(f"{place}.{key}", str(error)))
    return faults


def limit_of(given: float | Amount, unit: str, builtin: BuiltinMetric | None) -> float:
    """Of a built-in share, more than all of it is a slip."""
    limit = in_unit(given, unit)
    if builtin is None or builtin.unit != "ratio" or limit <= 1:
        return limit
    text = repr(given.text) if isinstance(given, Amount) else f"{given:g}"
    meant = f'; did you mean "{text}%"?' if not isinstance(given, Amount) and given >= 2 else ""
    raise ValueError(f"is {text}: {builtin.name} is a share, and 1 is all of it{meant}")


def _threshold_faults(
    values: Mapping[str, Any], builtin: BuiltinMetric | None, place: str
) -> list[Fault]:
    if (
        values["threshold"]
        or builtin is not None
        or all(values[key] is None for key in SOURCE_KEYS)
    ):
        return []  # Or of a metric that is not known, which is the fault.
    message = (
        "is missing (or 0): a metric without a threshold cannot say what is unhealthy. "
        "Find its limit, read it from the system's configuration, or choose another metric"
    )
    return [Fault(f"{place}.threshold", message)]


def _is_option(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, str | int | float | bool)
