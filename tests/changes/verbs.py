"""Changes of rules and budgets, as the routes of these rooms make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headgate.budgets import drafts
from headgate.changes.book import ChangeBook
from headgate.changes.reach import Reach
from headgate.changes.state import ChangeMade, Draft


async def _made(
    book: ChangeBook, draft: Callable[..., Draft], by: dict[str, Any], **given: Any
) -> ChangeMade:
    said = {key: by.pop(key) for key in ("who", "dry_run") if key in by}
    return await book.make(partial(draft, **given, **by), **said)


async def put_rule(
    book: ChangeBook, raw: Mapping[str, Any], *, reach: Reach, **by: Any
) -> ChangeMade:
    return await _made(book, book.rules.put, by, raw=raw, reach=reach)


async def favor(book: ChangeBook, target: str, *, reach: Reach, **by: Any) -> ChangeMade:
    return await _made(book, book.rules.favor, by, target=target, reach=reach)


async def patch_rule(
    book: ChangeBook, rule_id: str, raw: Mapping[str, Any], **by: Any
) -> ChangeMade:
    return await _made(book, book.rules.patch, by, rule_id=rule_id, raw=raw)


async def lift_rule(book: ChangeBook, rule_id: str, **by: Any) -> ChangeMade:
    return await _made(book, book.rules.lift, by, rule_id=rule_id)


async def set_budget(
    book: ChangeBook, name: str, raw: Mapping[str, Any], *, reach: Reach, **by: Any
) -> ChangeMade:
    return await _made(book, drafts.set_budget, by, name=name, raw=raw, reach=reach)


async def patch_budget(
    book: ChangeBook, name: str, raw: Mapping[str, Any], *, reach: Reach, **by: Any
) -> ChangeMade:
    return await _made(book, drafts.patch_budget, by, name=name, raw=raw, reach=reach)


async def remove_budget(book: ChangeBook, name: str, *, reach: Reach, **by: Any) -> ChangeMade:
    return await _made(book, drafts.remove_budget, by, name=name, reach=reach)
