"""The way back: to the state after a revision, and to what a store has lost.

revisions n+1 … head ──as_after──► the state after n ──► Draft       (rollback)
what an agent still has ──────────────────────────────► Draft      (restore)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from headgate.base.advice import Advice, Severity
from headgate.changes.exchanged import apart
from headgate.changes.model import REPLICATED, ROLLBACK, Change, ChangeKind, Edit, Revision
from headgate.changes.reach import HERE
from headgate.changes.state import (
    ChangeName,
    Draft,
    LogState,
    NoSuchItem,
    audit_values,
    name_of,
    newest,
    redated,
    same_setting,
    stands,
)
from headgate.errors import Conflict
from headgate.rules.drafts import UNCHANGED, ChangeAuthor, ended

MAX_ADVICE = 50
PROMPT_S = 60.0
"""Within this, other agents of a shard get a change while all is well."""
SORTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "rules": frozenset({ChangeKind.RULE}),
        "budgets": frozenset({ChangeKind.BUDGET, ChangeKind.POLICY}),
        "metrics": frozenset({ChangeKind.METRIC}),
        "members": frozenset({ChangeKind.SKIP, ChangeKind.PEER, ChangeKind.HANDOVER}),
    }
)
"""What can be rolled back without the rest."""

RESTORE = "restore"
"""The action."""
Only = Callable[[Change], bool]


def everything(item: Change) -> bool:
    return True


def of_sorts(sorts: Collection[str]) -> Only:
    """Of these of SORTS; none: everything."""
    kinds = frozenset[str]().union(*(SORTS[sort] for sort in sorts))
    return (lambda item: item.kind in kinds) if kinds else everything


def as_after(
    held: LogState, n: int, later: Sequence[Revision], only: Only = everything
) -> dict[ChangeName, Change | None]:
    """What was changed since, by its name in `held`: its state after n. `later`: every revision
    after it, newest first."""
    _check_complete(held, n, later)
    _check_caught_up(n, later, only)
    wanted: dict[ChangeName, Change | None] = {}
    for revision in later:
        for change in revision.changes:
            item = change.after or change.before
            if item is not None and only(item):
                wanted[_name(held, item)] = change.before
    return wanted


def _name(held: LogState, item: Change) -> ChangeName:
    """In an agent's own log, a change of its shard may have the name of one of its own: they are
    two. In a fleet's, it was moved to another reach."""
    named = held.items.get(name_of(item))
    if named is None or named.key == item.key:
        return name_of(item)
    is_apart = HERE in (named.reach, item.reach) or apart(item) in held.items
    return apart(item) if is_apart else name_of(item)


def rolled_back(
    held: LogState, n: int, later: Sequence[Revision], asked: ChangeAuthor, only: Only = everything
) -> Draft:
    """Back to the state after n; `later` as for as_after. `only`: what goes back; the rest stays as
    it is now."""
    wanted = as_after(held, n, later, only)
    backs = (_back(held, held.items.get(name), before, asked) for name, before in wanted.items())
    changes = [back for back in backs if back is not None]
    over = [one for one in wanted.values() if one is not None and _has_run_out(held, one, asked)]
    advice = [_over(item) for item in over[:MAX_ADVICE]]
    return Draft(
        ROLLBACK,
        _puts_first(held, changes, asked),
        tuple(advice if changes else [UNCHANGED]),
        shown=audit_values(changes),
    )


def _check_complete(held: LogState, n: int, later: Sequence[Revision]) -> None:
    if not 0 <= n <= held.n:
        raise NoSuchItem(f"the log has no revision {n}: it is at {held.n}")
    for revision in later:
        if revision.unread:
            raise Conflict(_unread(n, revision))
    oldest_n = later[-1].built_on if later else held.n
    if oldest_n < n:
        message = f"numbers were skipped when it was restored, from {oldest_n:,} to {later[-1].n:,}"
        raise NoSuchItem(f"the log has no revision {n}: {message}")
    if oldest_n > n:
        message = (
            f"the log cannot go back to revision {n}: the changes after it are no longer stored. "
            f"The oldest revision to go back to is {oldest_n}"
        )
        raise NoSuchItem(message)


def _check_caught_up(n: int, later: Sequence[Revision], only: Only) -> None:
    """What other agents of a shard had set before, and this one received after n, is missing in its
    state of n: going back there would remove all of that."""
    ended_s = later[-1].wall_s - PROMPT_S if later else 0.0
    for revision in later:
        items = [one.after for one in revision.changes if one.after is not None]
        late = [item for item in items if item.set_at < ended_s and only(item)]
        if revision.action == REPLICATED and late:
            message = (
                f"this agent cannot go back to revision {n}: it got {len(late):,} changes of its "
                f"shard only with revision {revision.n}, although they were set before (such as "
                f"{late[0].kind} {late[0].id}). Go back to {revision.n} or later, or remove "
                "changes one by one"
            )
            raise Conflict(message)


def _unread(n: int, revision: Revision) -> str:
    by = f", by {revision.who}," if revision.who else ""
    return (
        f"the log cannot go back to revision {n} from here: this version cannot read revision "
        f"{revision.n}{by} ({revision.unread}). Use an agent of the version that made it "
        f"(--url), or go back to {revision.n} or later"
    )


def _back(
    held: LogState, now: Change | None, before: Change | None, asked: ChangeAuthor
) -> Edit | None:
    was = before if before is not None and held.stands(before, asked.wall_s) else None
    standing = now if now is not None and held.stands(now, asked.wall_s) else None
    if was is not None and was.kind == ChangeKind.HANDOVER:
        return None  # A switchover happens when it does: it is not announced again by this.
    known = standing or was
    if known is not None and known.kind == ChangeKind.POLICY:
        return _policy_back(now, known, standing, was, asked)
    if was is not None:
        same = standing is not None and same_setting(standing, was)
        return None if same else Edit(now, _anew(was, asked))
    return None if standing is None else Edit(standing, ended(standing, asked))


def _policy_back(
    now: Change | None,
    known: Change,
    standing: Change | None,
    was: Change | None,
    asked: ChangeAuthor,
) -> Edit | None:
    """The mode that no budget goes beyond is a switch, and not of the policy: to go back lifts it
    for nobody, and sets it for nobody (PolicyKeeper.rollback)."""
    said, then = ({**_NO_POLICY, **(item.value or {})} if item else _NO_POLICY
                  for item in (standing, was))  # fmt: skip
    wanted = {**then, "mode_cap": said["mode_cap"]}
    if wanted == said:
        return None
    value = None if wanted == _NO_POLICY else wanted
    return Edit(now, _anew(replace(known, value=value), asked))


_NO_POLICY = {"policy": {}, "order": [], "mode_cap": "enforce", "of_fleet": []}


def _anew(item: Change, asked: ChangeAuthor) -> Change:
    return replace(redated(item, asked.wall_s), set_by=asked.who)


def _has_run_out(held: LogState, item: Change, asked: ChangeAuthor) -> bool:
    """In force then, and expired since."""
    return stands(item, 0.0) and not held.stands(item, asked.wall_s)


def _over(item: Change) -> Advice:
    message = f"{item.id} has ended since, and does not come back: set it again"
    return Advice(Severity.WARNING, "over", f"{item.kind} {item.id}", message)


def _puts_first(held: LogState, changes: Sequence[Edit], asked: ChangeAuthor) -> list[Edit]:
    """What protects comes before what is taken away, where it takes several revisions."""
    return sorted(
        changes, key=lambda one: one.after is None or not held.stands(one.after, asked.wall_s)
    )


# --- what a store has lost -----------------------------------------------------------------


def restored(held: LogState, items: Iterable[Change], known_n: int, asked: ChangeAuthor) -> Draft:
    """What `items` have and the store does not, as it was set and by its author; also what they
    have as removed. If the store has another one of the same name, the one that was set later
    counts: the store's numbers started again."""
    kept = newest(items)
    changes = [
        Edit(held.items.get(name), winner)
        for name, item in kept.items()
        if (winner := _winner(held, held.items.get(name), item, asked)) is not None
    ]
    least_n = max([known_n, *(item.n for item in kept.values())])
    advice = list(_newer_told(held, kept.values(), asked))[:MAX_ADVICE]
    if not changes and least_n <= held.n:
        advice.append(UNCHANGED)
    return Draft(RESTORE, _puts_first(held, changes, asked), tuple(advice), least_n)


def _winner(held: LogState, now: Change | None, item: Change, asked: ChangeAuthor) -> Change | None:
    """What has to be put; None: it is so already, or no longer matters."""
    if now is None:
        return item if held.stands(item, asked.wall_s) else None
    if (now.reach, now.value) == (item.reach, item.value):
        return None
    if now.n >= item.n:
        return None
    if now.set_at > item.set_at:
        return now  # With a number that nobody takes for an old one.
    in_force = held.stands(item, asked.wall_s) or held.stands(now, asked.wall_s)
    return item if in_force else None


def _newer_told(held: LogState, items: Iterable[Change], asked: ChangeAuthor) -> Iterator[Advice]:
    for item in items:
        now = held.items.get(name_of(item))
        if now is not None and now.n < item.n and now.set_at > item.set_at:
            message = f"{item.id} was set again by {now.set_by} since: that one counts"
            yield Advice(Severity.WARNING, "set-since", f"{item.kind} {item.id}", message)
