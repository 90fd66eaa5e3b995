"""Rules in the log that a fleet shares.   Ruling ──► FleetRuling ──► ChangeBook

Answered like a rule of the agent's own: with its state, and the clients that it matches here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.agent.changebook import ChangeBook, NoSuchItem
from headgate.agent.followedrules import item_of
from headgate.agent.ports import Clock
from headgate.agent.rulesteps import Origin, RuleEntry
from headgate.core.change import Edit, Item
from headgate.core.change_log import ChangeMade, ends_at
from headgate.core.lint import Advice, Severity
from headgate.core.reach import Reach, parse_reach
from headgate.core.rule_settings import RuleSpec, parse_kept
from headgate.core.rules import Rule
from headgate.core.samples import Instant
from headgate.core.settings import Reader, Setting, table
from headgate.errors import (
    Fault,
    InvalidRequest,
    InvalidSettings,
    OutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
)
from headgate.http.fleet import NO_FLEET
from headgate.http.routes import REACH_PATTERN
from headgate.wire.exchange import CopiesDoc
from headgate.wire.fleet_reach import ReachedDoc, reached_doc

REACH = "reach"
MAX_TARGET_CHARS = 200
REACH_SETTINGS = table(
    (
        Setting(
            REACH,
            "Its reach: `fleet`, `region:eu-*`, `cluster:x`, `shard:commerce/*` or `host:db-1`.",
            Reader(parse_reach, {"type": "string", "pattern": REACH_PATTERN}),
            shown_default="the shard that the agent leads; else this agent alone",
        ),
    )
)
NOT_HERE = (
    "is not in force at this agent: its reach matches none of its databases, or the agent does not "
    "have it yet (`headgate fleet status`)"
)


REST_HERE = "to suspend it at this agent alone: `headgate rule rest {} --reason …`"
_LOST = (
    "rule {0} is in force here, but the fleet's store has lost it: `headgate changes restore "
    "--fleet` restores it, and then it can be lifted for all; {1}"
)


class Ruled(NamedTuple):
    """Rules as a change left them, or would."""

    entries: Sequence[RuleEntry]
    reached: ReachedDoc | None = None
    """Null: a rule of the agent's own."""
    copies: CopiesDoc | None = None
    """For a rule of one of its shards: which other agents have it."""


def reach_in(body: Mapping[str, Any], place: str) -> Reach | None:
    """What a body says of it; None: nothing."""
    if body.get(REACH) is None:
        return None
    try:
        return parse_reach(body[REACH])
    except ValueError as error:
        raise InvalidSettings([Fault(f"{place}.{REACH}", str(error))]) from None


class FleetRuling:
    def __init__(self, book: ChangeBook | None, clock: Clock) -> None:
        self._given = book
        self._clock = clock

    @property
    def is_there(self) -> bool:
        return self._given is not None

    @property
    def book(self) -> ChangeBook:
        if self._given is None:
            raise InvalidRequest(NO_FLEET, status=409, field=REACH)
        return self._given

    async def rule(self, rule_id: str) -> RuleEntry:
        """As the fleet's store has it, whether or not it is in force here."""
        found = (await self.book.items()).rule(item_of(rule_id))
        if found is None or found.value is None:
            raise _nowhere(rule_id)
        told = Advice(Severity.WARNING, "elsewhere", f"rule {found.id}", NOT_HERE)
        entry = entry_of(found, self._clock.now())
        return entry if entry.unread else replace(entry, advice=(told,))

    async def made(self, change: Awaitable[ChangeMade], rule_id: str = "") -> Ruled:
        """`rule_id`: of the one that was to be changed, for a change that changes nothing."""
        done = await change
        items = items_of(done)
        if not items and rule_id:
            entry = await self.rule(rule_id)
            return Ruled([replace(entry, advice=done.advice)], reached_doc(done.reached))
        now = self._clock.now()
        entries = [replace(entry_of(item, now), advice=done.advice) for item in items]
        return Ruled(entries, reached_doc(done.reached))

    async def patched(self, rule_id: str, body: Mapping[str, Any], **said: Any) -> Ruled:
        item_id = item_of(rule_id)
        try:
            return await self.made(self.book.patch_rule(item_id, body, **said), item_id)
        except NoSuchItem:
            raise _nowhere(rule_id) from None

    async def lifted(self, rule_id: str, *, in_force_here: bool = False, **said: Any) -> Ruled:
        """One that cannot be lifted and is in force here can still be had rest here."""
        item_id = item_of(rule_id)
        try:
            return await self.made(self.book.lift_rule(item_id, **said))
        except NoSuchItem:
            if in_force_here:
                message = _LOST.format(rule_id, REST_HERE.format(item_id))
                raise InvalidRequest(message, status=409) from None
            raise _nowhere(rule_id) from None
        except (OutcomeUnknown, StoreRefused):
            raise
        except StoreUnavailable as error:
            if not in_force_here:
                raise
            raise StoreUnavailable(f"{error}; {REST_HERE.format(item_id)}") from error


def entry_of(item: Item, now: Instant) -> RuleEntry:
    """As a log has it. One that a newer version has set is shown, too: it can be lifted."""
    unread = ""
    try:
        spec = parse_kept(item.id, item.value, item.n)
    except InvalidSettings as error:
        spec, unread = _outline(item, now.wall_s), str(error)
    ends_mono_s = now.mono_s + spec.rule.expires_at - now.wall_s
    origin = Origin(item.id, item.reach, item.n, item.set_by)
    return RuleEntry(spec, ends_mono_s, origin=origin, unread=unread)


def items_of(change: ChangeMade) -> list[Item]:
    """What has become of its rules."""
    return [item for item in map(_shown, change.changes) if item is not None]


def _shown(change: Edit) -> Item | None:
    """What has become of a rule; of one that was taken out without a word, what it was."""
    after, before = change.after, change.before
    if after is None or after.value is not None:
        return after
    if before is None or before.value is None:
        return None
    return replace(after, value={**before.value, "lifted_by": after.set_by})


def _outline(item: Item, wall_s: float) -> RuleSpec:
    said = item.value or {}
    try:
        end_s = ends_at(item)
    except ValueError:
        end_s = None
    rule = Rule(
        id=item.id,
        target=str(said.get("target") or "?")[:MAX_TARGET_CHARS],
        ratio=0.0,
        expires_at=wall_s if end_s is None else end_s,
        created_at=item.set_at,
        created_by=item.set_by,
        revision=item.n,
    )
    return RuleSpec(rule, set_at=item.set_at, lifted_by=str(said.get("lifted_by", "")))


def _nowhere(rule_id: str) -> NoSuchItem:
    message = (
        f"no rule {rule_id!r} exists here or for the fleet; `headgate rules --all` "
        "and `headgate changes --fleet` list them"
    )
    return NoSuchItem(message)
