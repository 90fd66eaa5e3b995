"""A change of a fleet's items in parts that its store takes, each a revision of its own. Pure.

etcd takes 128 keys and 1.5 MiB in a commit; a part stays well below, with its log in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from headgate.core.change import ChangeKind, Edit, Item
from headgate.core.change_codec import MAX_ITEM_BYTES, item_bytes
from headgate.core.change_log import ends_at, is_taken_out
from headgate.errors import Fault

MAX_PART_KEYS = 100
MAX_PART_BYTES = 512 * 1024
KEEP_S = 86_400.0
"""Ended and removed changes are still there to be shown, and to be followed."""


def numbered(change: Edit, n: int) -> Edit:
    return replace(change, after=replace(change.after, n=n) if change.after else None)


def put_by(change: Edit) -> tuple[Item, ...]:
    """What a change puts: how it is now, and at the key that it has left how it is there."""
    before, after = change.before, change.after
    if after is None:
        return ()
    if before is None or before.key == after.key or is_taken_out(before):
        return (after,)
    return after, replace(after, reach=before.reach, value=None)


def lease_s(item: Item, wall_s: float) -> float:
    """How long it is of use to anybody; 0: for as long as nobody takes it out."""
    if is_taken_out(item):
        return KEEP_S
    end = ends_at(item)
    return 0.0 if end is None else max(0.0, end - wall_s) + KEEP_S


def oversized(changes: Iterable[Edit], most_bytes: int = MAX_ITEM_BYTES) -> Iterator[Fault]:
    for change in changes:
        size_bytes = len(item_bytes(change.after)) if change.after else 0
        if change.after is not None and size_bytes > most_bytes:
            where = " in a fleet's store" if most_bytes == MAX_ITEM_BYTES else ""
            message = (
                f"takes {size_bytes:,} bytes, at most {most_bytes:,}{where}: split it into several"
            )
            yield Fault(f"{change.after.kind} {change.after.id}", message)


def parts_of(changes: Sequence[Edit]) -> list[tuple[Edit, ...]]:
    """In their order; rules that were set together stay together."""
    parts: list[tuple[Edit, ...]] = []
    part, keys, size_bytes = list[Edit](), 0, 0
    for group in _groups(changes):
        more_keys = sum(len(put_by(change)) for change in group)
        more_bytes = sum(map(_size_bytes, group))
        full = keys + more_keys > MAX_PART_KEYS or size_bytes + more_bytes > MAX_PART_BYTES
        if part and full:
            parts.append(tuple(part))
            part, keys, size_bytes = [], 0, 0
        part += group
        keys, size_bytes = keys + more_keys, size_bytes + more_bytes
    return [*parts, tuple(part)] if part else parts


def _groups(changes: Sequence[Edit]) -> Iterator[list[Edit]]:
    """Each change with that of the rule which it was set together with."""
    by_id = {_rule_id(change): change for change in changes if _rule_id(change)}
    done: set[str] = set()
    for change in changes:
        if _rule_id(change) in done:
            continue
        pair = by_id.get(_pair(change))
        alone = pair is None or pair is change or _rule_id(pair) in done
        together = [change] if pair is None or alone else [change, pair]
        done |= {_rule_id(one) for one in together} - {""}
        yield together


def _rule_id(change: Edit) -> str:
    item = change.after or change.before
    return item.id if item is not None and item.kind is ChangeKind.RULE else ""


def _pair(change: Edit) -> str:
    for item in (change.after, change.before):
        if item is not None and item.kind is ChangeKind.RULE and item.value:
            return str(item.value.get("pair", ""))
    return ""


def _size_bytes(change: Edit) -> int:
    """In the commit: what is put, and before and after once more in the log."""
    logged = [item for item in (change.before, change.after) if item is not None]
    return sum(len(item_bytes(item)) for item in (*put_by(change), *logged))
