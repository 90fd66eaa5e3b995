"""How a metric is rolled up over its shard, as it is written down."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from headgate.base.declared import (
    Setting,
    amount,
    number,
    one_of,
    reads,
    seconds,
    text,
    unknown,
    whole,
)
from headgate.base.names import Scope, parse_scope
from headgate.errors import Fault
from headgate.metrics.builtins import BuiltinMetric
from headgate.metrics.model import EmptyPolicy, MissingPolicy, Rollup, RollupOf
from headgate.shard.rollup import COUNTING, QUORUM, ROLLUP_MEANINGS, UNHEALTHY

_AGGREGATE = re.compile(r"[a-z][a-z0-9_-]{0,62}")
MAX_LABELS = 16


@reads({"enum": ["host", "self", "shard"]})
def _scope(value: object) -> Scope:
    return parse_scope(text(16)(value))


@reads({"type": "string", "pattern": f"^{_AGGREGATE.pattern}$"})
def _aggregate(value: object) -> str:
    name = text(63)(value)
    if not _AGGREGATE.fullmatch(name):
        known = ", ".join(ROLLUP_MEANINGS)
        raise ValueError(f"is {name!r}, must be one of {known}, or the name of a plug-in")
    return name


@reads(
    {
        "type": "object",
        "propertyNames": {"maxLength": 64},
        "additionalProperties": {"type": "string", "maxLength": 64},
        "maxProperties": MAX_LABELS,
    }
)
def labels(value: object) -> Mapping[str, str]:
    """Also those of a database."""
    if not isinstance(value, Mapping) or len(value) > MAX_LABELS:
        raise ValueError(f"must be a table of at most {MAX_LABELS} labels, such as region = 'eu'")
    for key, word in value.items():
        if not isinstance(key, str) or not isinstance(word, str) or len(key) + len(word) > 128:
            raise ValueError(f"label {key!r} must be text, at most 128 characters with its name")
    return MappingProxyType(dict(value))


_OWN = Rollup()

ROLLUP_SETTINGS = (
    Setting(
        "scope",
        "Where a check that names no scope looks, in a database that belongs to a shard: `host` "
        "(also `self`) or `shard`.",
        _scope,
        shown_default="`shard` for lag, else `host`",
    ),
    Setting(
        "rollup",
        "How members' values become the shard's: `max`, `min`, `sum`, `mean`, `unhealthy`, "
        "`quorum`, or a plug-in of the group `headgate.rollups`.",
        _aggregate,
        default=_OWN.by,
    ),
    Setting(
        "rollup_of",
        "Whose values: `replicas`, `all` or `primary`.",
        one_of(RollupOf),
        shown_default="`replicas` for lag, else `all`",
    ),
    Setting(
        "rollup_labels",
        "Only members that carry all these labels.",
        labels,
        default=_OWN.labels,
        shown_default="any member",
    ),
    Setting(
        "rollup_limit",
        "With rollup = `unhealthy`: how many members may be unhealthy.",
        number(0, 256),
        default=_OWN.limit,
    ),
    Setting(
        "quorum",
        "With rollup = `quorum`: how many members must be healthy.",
        whole(1, 256),
        shown_default="none; required there",
    ),
    Setting(
        "ignore_hosts",
        "Leave out up to this many of the worst members, never the last one.",
        whole(0, 256),
        default=_OWN.ignore_hosts,
    ),
    Setting(
        "ignore_above",
        "With ignore_hosts: leave a member out only if its value is above this.",
        amount(0, 1e18),
        shown_default="any value",
    ),
    Setting(
        "missing",
        "A member without a usable value: `reject` for missing_for_s, then skip it; or "
        "`ignore` it at once.",
        one_of(MissingPolicy),
        default=_OWN.missing,
    ),
    Setting(
        "missing_for_s",
        "How long a missing member rejects its shard's checks before it is skipped.",
        seconds(0, 30 * 86400),
        default=_OWN.missing_for_s,
    ),
    Setting(
        "empty",
        "When no member is left to roll up: `reject`, or `admit` by this metric.",
        one_of(EmptyPolicy),
        default=_OWN.empty,
    ),
    Setting(
        "grace_s",
        "How long a member which has just joined or come back may be unhealthy without counting.",
        seconds(0, 7 * 86400),
        default=_OWN.grace_s,
    ),
    Setting(
        "hopeless_for_s",
        "With rollup_of = `replicas`: skip a replica whose value was above hopeless_factor times "
        "its threshold for this long. Only if it alone kept the gate closed and the value did not "
        "fall; never more than half of the replicas. 0 never skips one.",
        seconds(0, 30 * 86400),
        default=_OWN.hopeless_for_s,
    ),
    Setting(
        "hopeless_factor",
        "How many times its threshold a replica must be above to be skipped as hopeless. It "
        "counts again as soon as it is below.",
        number(1, 1e9),
        default=_OWN.hopeless_factor,
    ),
)


def rollup_of(values: Mapping[str, Any], builtin: BuiltinMetric | None) -> Rollup:
    return Rollup(
        by=values["rollup"],
        of=values["rollup_of"] or (builtin.rollup_of if builtin else RollupOf.ALL),
        labels=values["rollup_labels"],
        limit=values["rollup_limit"],
        quorum=values["quorum"] or 0,
        ignore_hosts=values["ignore_hosts"],
        ignore_above=values["ignore_above"],
        missing=values["missing"],
        missing_for_s=values["missing_for_s"],
        empty=values["empty"],
        grace_s=values["grace_s"],
        hopeless_for_s=values["hopeless_for_s"],
        hopeless_factor=values["hopeless_factor"],
    )


def scope_of(values: Mapping[str, Any], builtin: BuiltinMetric | None) -> Scope:
    scope: Scope | None = values["scope"]
    return scope or (builtin.scope if builtin else Scope.HOST)


def plugin_faults(rollup: Rollup, installed: Collection[str], place: str) -> list[Fault]:
    """What only who knows the plug-ins can tell."""
    if rollup.by in installed or rollup.by in COUNTING:
        return []
    words = unknown(rollup.by, [*installed, *COUNTING]).replace("setting", "rollup")
    return [Fault(f"{place}.rollup", words)]


def rollup_faults(values: Mapping[str, Any], place: str) -> list[Fault]:
    by, faults = values["rollup"], []
    if by == QUORUM and not values["quorum"]:
        message = "is missing: rollup = 'quorum' needs the number of members that must be healthy"
        faults.append(Fault(f"{place}.quorum", message))
    if by != QUORUM and values["quorum"]:
        faults.append(Fault(f"{place}.quorum", "has an effect only with rollup = 'quorum'"))
    if by != UNHEALTHY and values["rollup_limit"]:
        message = "has an effect only with rollup = 'unhealthy'"
        faults.append(Fault(f"{place}.rollup_limit", message))
    if values["ignore_above"] is not None and not values["ignore_hosts"]:
        message = "has an effect only with ignore_hosts"
        faults.append(Fault(f"{place}.ignore_above", message))
    if by in COUNTING and values["ignore_hosts"]:
        message = f"has no effect with rollup = {by!r}, which counts members; use its own limit"
        faults.append(Fault(f"{place}.ignore_hosts", message))
    return faults
