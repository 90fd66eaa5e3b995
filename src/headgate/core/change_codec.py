"""Items and revisions of a fleet as bytes in its store, and back.

Readers may be older than writers: an unknown field is ignored, an item that cannot be read is
rejected with its key, and the others are used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from sys import intern
from typing import Any

from headgate.core.change import ChangeKind, Edit, Item, Revision, log_n
from headgate.core.reach import parse_reach
from headgate.core.stored import read_object

_KINDS = {kind.value: kind for kind in ChangeKind}
_KIND = re.compile(r"[a-z][a-z_]{0,31}")
_ALIKE = frozenset({"kind", "order", "reason", "created_by", "database"})
"""Rules of one job repeat the same texts: each is kept once."""
MAX_ITEM_BYTES = 64 * 1024
"""In the store of a fleet: every agent reads it."""
MAX_OWN_ITEM_BYTES = 16 * 1024 * 1024
"""In an agent's own log: a budget there may have as many rules as a policy."""
MAX_N = 10**12 - 1
"""As many digits as the keys of the log have. No agent writes a higher one, and a reader that
accepted it would reject everything after it."""
MAX_WALL_S = 2e11
MAX_TEXT_CHARS = 1000
"""Of what another version says of its own."""


def item_bytes(item: Item) -> bytes:
    return _bytes(item_document(item))


def item_document(item: Item) -> dict[str, Any]:
    said = {} if item.again is None else {"again": item.again}
    return {
        "kind": str(item.kind),
        "id": item.id,
        "reach": str(item.reach),
        "value": None if item.value is None else dict(item.value),
        "n": item.n,
        "set_at": item.set_at,
        "set_by": item.set_by,
        **said,
    }


def read_item(raw: bytes) -> Item:
    """ValueError where it is none."""
    return _item(read_object(raw))


def read_item_at(key: str, raw: bytes, most_bytes: int = MAX_ITEM_BYTES) -> Item:
    """For readers of the store: ValueError, too, for an item under the key of another one. It was
    copied by hand, and a lookup by its name would not find it there."""
    if len(raw) > most_bytes:
        raise ValueError(f"has {len(raw):,} bytes, at most {most_bytes:,} are allowed")
    item = read_item(raw)
    if item.key != key:
        raise ValueError(f"has an item that belongs to {item.key}")
    return item


def revision_bytes(revision: Revision) -> bytes:
    return _bytes(
        {
            "n": revision.n,
            "wall_s": revision.wall_s,
            "who": revision.who,
            "action": revision.action,
            "summary": revision.summary,
            "op": revision.op,
            "changes": [
                {"before": _document(change.before), "after": _document(change.after)}
                for change in revision.changes
            ],
            "before_n": revision.built_on,
        }
    )


def read_revision(raw: bytes) -> Revision:
    """ValueError where it is none."""
    document = read_object(raw)
    try:
        return Revision(
            int(document["n"]),
            float(document["wall_s"]),
            str(document["who"]),
            str(document["action"]),
            str(document["summary"]),
            str(document["op"]),
            tuple(
                Edit(_maybe_item(change["before"]), _maybe_item(change["after"]))
                for change in document["changes"]
            ),
            _before_n(document),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"is not a revision: {error!r}") from None


def read_revision_at(key: str, raw: bytes) -> Revision | None:
    """Whatever lies there, if only that it cannot be read, and why; None under any other key."""
    n = log_n(key)
    if n is None:
        return None
    try:
        revision = read_revision(raw)
        if revision.n != n:
            raise ValueError(f"says that it is revision {revision.n}")
    except ValueError as error:
        return _unread(n, raw, str(error))
    return revision


def op_of(raw: bytes) -> str:
    """The op of a revision, to compare with one's own; empty: it has none."""
    with suppress(ValueError):
        return str(read_object(raw).get("op", ""))
    return ""


def _unread(n: int, raw: bytes, why: str) -> Revision:
    said: Mapping[str, Any] = {}
    with suppress(ValueError):
        said = read_object(raw)
    who, action, summary = (_text(said.get(key)) for key in ("who", "action", "summary"))
    wall_s, before_n = 0.0, None
    with suppress(ValueError, TypeError, OverflowError):
        wall_s = _time(said.get("wall_s"))
    with suppress(ValueError):
        before_n = _before_n({**said, "n": n})
    return Revision(n, wall_s, who, action, summary, "", (), before_n, f"it {why}")


def _text(given: object) -> str:
    return given[:MAX_TEXT_CHARS] if isinstance(given, str) else ""


def _before_n(document: Mapping[str, Any]) -> int | None:
    """None, too, for the one just before it."""
    given = document.get("before_n")
    if given is None:
        return None
    before_n = _n(given, "revision")
    if before_n >= document["n"]:
        raise ValueError(f"is not a revision: it is {document['n']}, built on {before_n}")
    return None if before_n == document["n"] - 1 else before_n


def head_bytes(n: int) -> bytes:
    return _bytes({"n": n})


def read_head(raw: bytes) -> int:
    return _n(read_object(raw).get("n"), "head of a fleet")


def _document(item: Item | None) -> dict[str, Any] | None:
    return None if item is None else item_document(item)


def _maybe_item(document: Mapping[str, Any] | None) -> Item | None:
    return None if document is None else _item(document)


def _item(document: Mapping[str, Any]) -> Item:
    try:
        value = document["value"]
        if value is not None and not isinstance(value, Mapping):
            raise ValueError("is not an item: its value is not an object")
        if value is not None:  # Thousands of them have the same few keys, and say much alike.
            value = {
                intern(key): intern(one) if key in _ALIKE and type(one) is str else one
                for key, one in value.items()
            }
        return Item(
            _kind(document["kind"]),
            str(document["id"]),
            parse_reach(document["reach"]),
            value,
            _n(document["n"], "item"),
            _time(document["set_at"]),
            intern(str(document["set_by"])),
            None if document.get("again") is None else _n(document["again"], "item"),
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"is not an item: {error!r}") from None


def _kind(given: object) -> str:
    """A word of a newer version is kept as it is."""
    if not isinstance(given, str) or not _KIND.fullmatch(given):
        raise ValueError(f"is not an item: its kind is {str(given)[:40]!r}")
    return _KINDS.get(given, given)


def _n(given: object, of_what: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MAX_N:
        raise ValueError(f"is not a {of_what}: n is {str(given)[:40]}, must be 0 to {MAX_N:,}")
    return given


def _time(given: Any) -> float:
    """One that people can be shown."""
    if not abs(wall_s := float(given)) < MAX_WALL_S:
        raise ValueError(f"is not an item: {str(given)[:40]} is not a time")
    return wall_s


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
