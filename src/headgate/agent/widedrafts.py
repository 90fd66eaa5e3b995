"""Metrics that reach beyond this agent, as drafts: patches of what lies beneath at each agent.

what is asked, or a file of changes says + Holdings ──WideDrafts──► Draft, Item

Each agent validates what it is told (MetricDrafts.ground): one where the patched settings are not
valid, or where a query, an address or a command may not come from outside, keeps what it had.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.agent.fleetcommit import Draft
from headgate.agent.metricdrafts import (
    LOOSER_FOR_S,
    METRIC,
    Ground,
    MetricBefore,
    MetricDatabase,
    MetricDrafts,
    NoSuchMetric,
    Wish,
    check_revision,
    default_end,
    kept_end,
    may_admit_more,
    n_of,
    on_ground,
    patched,
    settings_in,
    with_end,
)
from headgate.agent.ownitems import known as known_item
from headgate.agent.ownitems import put
from headgate.agent.ruledrafts import Asked
from headgate.core.fleet import Item
from headgate.core.fleet_change import Holdings, ends_at, stands
from headgate.core.lint import Advice, Severity
from headgate.core.metric_redaction import hidden_faults, revealed
from headgate.core.metric_settings import METRIC_SETTINGS
from headgate.core.settings import read_table
from headgate.errors import Fault, InvalidSettings


@dataclass(frozen=True, slots=True)
class WideDrafts:
    drafts: MetricDrafts

    def set(
        self,
        held: Holdings,
        asked: Asked,
        wish: Wish,
        given: Mapping[str, Any],
        grounds: Sequence[tuple[MetricDatabase, Ground]],
        *,
        whole: bool,
    ) -> Draft:
        """`grounds`: what it would lie on at this agent. `whole`: in place of what it said before,
        and a metric where there is none; else that is patched."""
        before = known_item(held, METRIC, wish.id, wish.reach)
        standing = before if before is not None and stands(before, asked.wall_s) else None
        was = (standing.value or {}) if standing is not None else {}
        settings = _merged({} if whole else was.get("settings") or {}, given, keep_none=not whole)
        check_revision(wish, MetricBefore(standing, None, n_of(before)))
        value, told = self._value(
            wish, settings, standing, grounds, asked, adds=whole or bool(was.get("adds"))
        )
        change = put(held, METRIC, wish.id, value, asked, wish.reach)
        return Draft("metric.set", [change], told)

    def of_file(
        self,
        held: Holdings,
        asked: Asked,
        wish: Wish,
        given: Mapping[str, Any],
        grounds: Sequence[tuple[MetricDatabase, Ground]],
    ) -> tuple[Item, Sequence[Advice]]:
        """What a file of changes says of a metric: settings, with what is shown in the place of
        secrets; `unset`, those that go back to their defaults; `adds`; or `removed`."""
        before = known_item(held, METRIC, wish.id, wish.reach)
        standing = before if before is not None and stands(before, asked.wall_s) else None
        said, adds, unset = dict(given), given.get("adds"), given.get("unset", [])
        faults = _file_faults(said)
        if faults:
            raise InvalidSettings(faults)
        if said.get("removed"):
            end_s, told = _wide_end(wish, standing, True, asked)
            value = with_end({"removed": True}, end_s)
        else:
            settings = {key: one for key, one in said.items() if key not in FILE_KEYS}
            was = settings_in(standing) if standing is not None else None
            settings = {**revealed(settings, was or {}), **dict.fromkeys(unset)}
            value, told = self._value(wish, settings, standing, grounds, asked, adds=adds is True)
        change = put(held, METRIC, wish.id, value, asked, wish.reach)
        assert change.after is not None
        return change.after, told

    def _value(
        self,
        wish: Wish,
        settings: Mapping[str, Any],
        standing: Item | None,
        grounds: Sequence[tuple[MetricDatabase, Ground]],
        asked: Asked,
        *,
        adds: bool,
    ) -> tuple[dict[str, Any], tuple[Advice, ...]]:
        """As it is kept, once it is validated."""
        if not settings:
            raise InvalidSettings([Fault(wish.metric, "nothing to set: give a setting")])
        looser, told = self._checked(wish, settings, grounds, adds=adds)
        end_s, ends = _wide_end(wish, standing, looser, asked)
        value = {"settings": dict(settings), **({"adds": True} if adds else {})}
        return with_end(value, end_s), (*told, *ends)

    def remove(self, held: Holdings, asked: Asked, wish: Wish) -> Draft:
        before = known_item(held, METRIC, wish.id, wish.reach)
        check_revision(wish, MetricBefore(before, None, n_of(before)))
        end_s, ends = _wide_end(wish, None, True, asked)
        value = with_end({"removed": True}, end_s)
        return Draft("metric.remove", [put(held, METRIC, wish.id, value, asked, wish.reach)], ends)

    def revert(self, held: Holdings, asked: Asked, wish: Wish) -> Draft:
        before = known_item(held, METRIC, wish.id, wish.reach)
        if before is None or not stands(before, asked.wall_s):
            raise NoSuchMetric(f"nothing is set for {wish.id}")
        check_revision(wish, MetricBefore(before, None, before.n))
        return Draft("metric.revert", [put(held, METRIC, wish.id, None, asked, wish.reach)])

    def _checked(
        self,
        wish: Wish,
        settings: Mapping[str, Any],
        grounds: Sequence[tuple[MetricDatabase, Ground]],
        *,
        adds: bool,
    ) -> tuple[bool, list[Advice]]:
        """Whether it is looser than what lies beneath, as far as that is known; and with what it
        was validated. Other agents may have other settings, and validate it themselves."""
        valid, invalid, looser = list[str](), dict[str, InvalidSettings](), False
        for database, ground in grounds:
            if ground.raw is None and not adds:
                continue
            name = f"{database.plan.name}/{wish.metric}"
            try:
                raw = patched(ground.raw or {}, settings)
                entry = self.drafts.validated(database, wish.metric, raw, ground.raw or {})
            except InvalidSettings as error:
                invalid[name] = error
                continue
            valid.append(name)
            looser = looser or may_admit_more(
                entry, on_ground(database.plan, wish.metric, ground, 0)
            )
        if invalid and not valid:
            raise next(iter(invalid.values()))
        if not valid:
            given = {key: value for key, value in settings.items() if value is not None}
            _, faults = read_table(given, METRIC_SETTINGS, place=wish.metric)
            faults = [*faults, *hidden_faults(given), *self.drafts.source_faults(given)]
            if faults:
                raise InvalidSettings(faults)
            return True, [_told(wish, "validated", _ALONE.format(wish.metric))]
        told = [_told(wish, "validated", f"validated with {', '.join(valid)} of this agent")]
        told += [_told(wish, "invalid", f"not valid for {n}: {why}") for n, why in invalid.items()]
        return looser, told


FILE_KEYS = ("adds", "removed", "unset")
"""What a file says of one besides its settings."""


def _file_faults(said: Mapping[str, Any]) -> list[Fault]:
    faults = [
        Fault(key, "must be true; leave it out for false")
        for key in ("adds", "removed")
        if said.get(key, True) is not True
    ]
    unset = said.get("unset", [])
    if not isinstance(unset, list) or not all(isinstance(one, str) for one in unset):
        faults.append(Fault("unset", "must be a list of settings, by name"))
    if said.get("removed") and len(said) > 1:
        faults.append(Fault("removed", "leaves no settings: give those, or removed = true"))
    return faults


_ALONE = (
    "this agent has no {} that it would change, so only the settings themselves were validated. "
    "An agent where it is not valid keeps what it has, and says so in `headgate fleet status`"
)


def _merged(
    before: Mapping[str, Any], given: Mapping[str, Any], *, keep_none: bool
) -> dict[str, Any]:
    """A patch on a patch: what is given as None still takes out what lies beneath."""
    merged = dict(before)
    for key, value in given.items():
        known = merged.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            merged[key] = _merged(known, value, keep_none=keep_none)
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if keep_none or value is not None}


def _wide_end(
    wish: Wish, before: Item | None, looser: bool, asked: Asked
) -> tuple[float | None, tuple[Advice, ...]]:
    """The same, of one that reaches beyond this agent. One that cannot be compared with what lies
    beneath may be looser."""
    if wish.expires_at is not None:
        return (None if wish.expires_at == math.inf else wish.expires_at), ()
    was = None if before is None else ends_at(before)
    if wish.keeps_end and was is not None:
        return was, (kept_end(wish, was),)
    if not looser:
        return None, ()
    end_s = asked.wall_s + LOOSER_FOR_S
    return end_s, (default_end(wish, end_s, "may be looser than what lies beneath"),)


def _told(wish: Wish, code: str, message: str) -> Advice:
    return Advice(Severity.WARNING, code, wish.id, message)
