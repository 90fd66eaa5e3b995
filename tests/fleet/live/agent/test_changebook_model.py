"""Whatever is done in whatever order: what stands is what was said last, and every revision can be
gone back to."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.changes.file_format import SECTIONS, read_document, to_json, to_toml
from headgate.errors import HeadgateError
from tests.changes import verbs
from tests.changes.changebook_world import BookWorld, reach

REACHES = st.sampled_from(
    ["fleet", "region:eu-*", "cluster:x", "shard:commerce/*", "shard:a", "shard:b/1", "host:db-1*"]
)
RULE_IDS = st.sampled_from(["r1", "r2", "r3"])
TEXTS = st.text(
    st.characters(exclude_categories=["C", "Z"], include_characters=" \"'\\#="), max_size=20
)
SCHEDULE = {"days": ["mon", "sun"], "from": "22:00", "to": "06:00", "zone": "UTC"}


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    rule: dict[str, Any] = draw(
        st.one_of(
            st.fixed_dictionaries({"ratio": st.floats(0, 0.99)}),
            st.just({"kind": "hold", "reason": "why"}),
            st.just({"kind": "metrics", "metrics": ["lag", "gpu_heat"]}),
            st.just({"kind": "thresholds", "thresholds": {"lag": "2.5s", "x-y": 1e9}}),
        )
    )
    for_text = draw(st.sampled_from(["90s", "2h", "7d"]))
    rule = {"id": draw(RULE_IDS), "target": draw(st.sampled_from(["etl", "a:b"])), **rule}
    schedule = {"schedule": SCHEDULE} if draw(st.booleans()) else {}
    reason = {} if "reason" in rule else {"reason": draw(TEXTS)}
    return {**rule, "for": for_text, **schedule, **reason, "reach": draw(REACHES)}


@st.composite
def budgets(draw: st.DrawFn) -> dict[str, Any]:
    match = draw(st.dictionaries(st.sampled_from(["username", "tag.x y"]), TEXTS, max_size=2))
    return {
        "name": draw(st.sampled_from(["cap", "b.2"])),
        "reach": draw(REACHES),
        "rate": draw(st.sampled_from([1, 2.5, 100])),
        "comment": draw(TEXTS),
        "rules": [{"match": match, "each": ["tag.t"]}] if match else [],
    }


DEEDS = st.one_of(
    st.tuples(st.just("rule"), rules()),
    st.tuples(st.just("budget"), budgets()),
    st.tuples(st.just("lift"), RULE_IDS),
    st.tuples(st.just("extend"), RULE_IDS),
    st.tuples(st.just("apply"), rules()),
    st.tuples(st.just("prune"), budgets()),
    st.tuples(st.just("back"), st.integers(0, 12)),
)


async def do(world: BookWorld, deed: str, what: Any) -> None:
    book = world.book
    if deed == "rule":
        raw = {key: value for key, value in what.items() if key != "reach"}
        await verbs.put_rule(book, raw, reach=reach(what["reach"]), who="ada")
    elif deed == "budget":
        raw = {key: value for key, value in what.items() if key != "reach"}
        await verbs.set_budget(book, what["name"], raw, reach=reach(what["reach"]), who="ada")
    elif deed == "lift":
        await verbs.lift_rule(book, what, who="bob")
    elif deed == "extend":
        await verbs.patch_rule(book, what, {"for": "1d"}, who="bob")
    elif deed == "apply":
        await book.apply({"rules": [what]}, who="eve")
    elif deed == "prune":
        await book.apply({"budgets": [what]}, who="eve", prune=True)
    else:
        await book.rollback(what, who="bob")


@settings(max_examples=30)
@given(st.lists(DEEDS, max_size=10))
def test_exports_change_nothing_and_every_revision_can_be_gone_back_to(
    deeds: list[tuple[str, Any]],
) -> None:
    async def play() -> None:
        world = BookWorld()
        stood: dict[int, Any] = {0: (await world.book.export()).document}
        for deed, what in deeds:
            n = (await world.book.items()).n
            try:
                await do(world, deed, what)
            except HeadgateError:
                assert (await world.book.items()).n == n, "rejected, and nothing changed"
            exported = await world.book.export()
            stood.setdefault(exported.n, exported.document)
            assert stood[exported.n] == exported.document
            for text, is_json in (
                (to_toml(exported.document), False),
                (to_json(exported.document), True),
            ):
                read = read_document(text, is_json=is_json)
                assert {**{key: [] for key in SECTIONS}, **read} == exported.document
                same = await world.book.apply(read, who="eve", prune=True, dry_run=True)
                assert same.changes == ()
        for n, document in stood.items():
            await world.book.rollback(n, who="bob")
            assert (await world.book.export()).document == document, f"as after {n}"

    asyncio.run(play())
