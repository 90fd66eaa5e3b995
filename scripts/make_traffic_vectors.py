#!/usr/bin/env python3
"""Write tests/vectors/traffic.json: what is asked is listed here, the answers are the reference's.

PYTHONPATH=src:. python scripts/make_traffic_vectors.py

Every decider of ours has to give them: the reference, the core in C, and what is built on it
(R152). Read the difference before committing it: each changed line is a decision that changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.budgets.native.engines import Reference
from tests.budgets.native.playing import PATH, Player, sizes_of

from headgate.budgets.model import Dialect
from headgate.budgets.sql_text import fingerprint, read_tags, shape

HALF: dict[str, Any] = {"rate": 50, "capacity": 100}
TENANTS = [{"each": ["tag.tenant"]}]


def budget(name: str, **settings: Any) -> dict[str, Any]:
    return {"name": name, "mode": "enforce", "rules": [{}], **settings}


def only(**conditions: Any) -> list[dict[str, Any]]:
    return [{"match": conditions}]


def policy(*budgets: dict[str, Any], **general: Any) -> dict[str, Any]:
    return {"policy": general, "budgets": list(budgets)} if general else {"budgets": list(budgets)}


def scenario(name: str, document: dict[str, Any], *steps: dict[str, Any], **server: int) -> Any:
    told = {"name": name, "policy": document, "steps": list(steps)}
    return told | ({"server": server} if server else {})


def take(at_ms: float = 0, **asked: Any) -> dict[str, Any]:
    return {"at_ms": at_ms, "do": "take", **asked}


def check(at_ms: float = 0, **asked: Any) -> dict[str, Any]:
    return {"at_ms": at_ms, "do": "check", **asked}


def settle(of: str, at_ms: float = 0, **how: Any) -> dict[str, Any]:
    return {"at_ms": at_ms, "do": "settle", "of": of, **how}


def run(*, actual_ms: float, aborted: bool = False, **asked: Any) -> list[dict[str, Any]]:
    ended = {"aborted": True} if aborted else {}
    return [take(**{"as": "q"}, **asked), settle("q", actual_ms=actual_ms, **ended)]


def runs(*actuals_ms: float, **asked: Any) -> list[dict[str, Any]]:
    return [step for ms in actuals_ms for step in run(actual_ms=ms, **asked)]


def change(at_ms: float, document: dict[str, Any]) -> dict[str, Any]:
    return {"at_ms": at_ms, "do": "change", "policy": document}


def tenant(number: object, at_ms: float = 0, **asked: Any) -> dict[str, Any]:
    return take(at_ms, text=f"SELECT 1 /*tenant='{number}'*/", **asked)


BROAD = policy(
    budget("wide", rules=only(remote_address="10.0.0.0/8")),
    budget("near", rules=only(remote_address="10.1.0.0/16")),
    budget("near-too", rules=only(remote_address="10.1.0.0/16", username="app")),
    budget("host", rules=only(remote_address="10.1.2.3", username="etl")),
    budget("six", rules=only(remote_address="2001:db8::/32")),
    budget("everyone"),
)
ADDRESSES = ["10.1.2.3", "10.9.9.9", "192.0.2.1", "2001:db8::1", "::ffff:10.1.2.3"]

SCENARIOS = [
    scenario(
        "1: 100 %·s are one second of every CPU",
        policy(budget("b", burst=100, mode="warn"), budget("c", rate=25, capacity=200)),
        check(cost_ms=8000),
        check(cost_ns=8_000_000_001),
        take(cost_ms=16000),
        check(4000, cost_ms=8000),
        cpus_milli=8000,
    ),
    scenario(
        "2: workers first, then the statement, then the bucket; the first of the document",
        policy(
            budget("bucket", rate=50, capacity=0),
            budget("burst", burst=0),
            budget("busy", max_workers=0),
            budget("fine", max_workers=9),
        ),
        take(cost_ms=1),
    ),
    scenario(
        "2: as much as the limit still fits",
        policy(budget("b", burst=50, concurrency=5, **HALF)),
        check(cost_ms=500),
        check(cost_ns=500_000_001),
        take(cost_ms=500, **{"as": "a"}),
        check(cost_ms=500),
        check(cost_ms=500, workers=2),
        settle("a", actual_ms=500),
        check(cost_ms=500),
        check(cost_ns=500_000_001),
    ),
    scenario(
        "2: an explicit 0 admits nothing, a limit that is not set admits all",
        policy(
            *(
                budget(name, rules=only(username=name), **{name: 0})
                for name in ("rate", "capacity", "burst", "concurrency")
            ),
            budget("workers", rules=only(username="workers"), max_workers=0),
            budget("nothing", rules=only(username="nothing")),
            budget("rate-alone", rules=only(username="rate-alone"), rate=1),
            budget("capacity-alone", rules=only(username="capacity-alone"), capacity=10),
        ),
        *(check(user=name, cost_ns=1) for name in ("rate", "capacity", "burst", "concurrency")),
        check(user="workers", cost_ns=1),
        *(take(user=name, cost_ms=100) for name in ("nothing", "rate-alone", "capacity-alone")),
        take(user="capacity-alone", cost_ms=101),
    ),
    scenario(
        "2: concurrency is a share of the workers, rounded up",
        policy(budget("b", concurrency=11)),
        *(take(cost_ms=1) for _ in range(4)),
        workers=20,
    ),
    scenario(
        "3: it drains at its rate, and says when it will fit",
        policy(budget("b", **HALF)),
        take(cost_ms=900),
        check(cost_ms=300),
        check(399, cost_ms=300),
        check(400, cost_ms=300),
        check(cost_ms=1001),
        take(1800, cost_ms=1000),
    ),
    scenario(
        "4: the estimate is charged, the end corrects it; never below what is true",
        policy(budget("b", **HALF)),
        take(cost_ms=400, **{"as": "a"}),
        take(cost_ms=400, **{"as": "b"}),
        settle("a", actual_ms=100),
        settle("b", 200, actual_ms=1500),
        take(5000, cost_ms=800, **{"as": "c"}),
        settle("c", 6500, actual_ms=0),
        take(9000, cost_ms=200, **{"as": "d"}),
        take(9000, cost_ms=200, **{"as": "e"}),
        settle("d", 9000, actual_ms=0),
        settle("e", 9300, actual_ms=0),
    ),
    scenario(
        "5: what warning would have blocked takes no place and adds no debt",
        policy(budget("b", mode="warn", max_workers=2, **HALF), budget("off", mode="off", rate=0)),
        take(cost_ms=600),
        take(cost_ms=600),
        take(cost_ms=300),
        take(cost_ms=10),
        change(0, policy(budget("b", **HALF))),
        take(cost_ms=101),
        take(cost_ms=100),
    ),
    scenario(
        "6: a block changes nothing in any budget",
        policy(budget("open", max_workers=3, **HALF), budget("shut", rate=0)),
        take(cost_ms=100),
        take(cost_ms=100),
    ),
    scenario(
        "7: inside a transaction it passes, is charged and counted",
        policy(
            budget("b", max_workers=1, max_delay_s=1, **HALF),
            budget("w", mode="warn", burst=10),
            budget("strict", burst=90, in_transaction="block"),
        ),
        take(cost_ms=800, flags=["in_transaction"]),
        take(cost_ms=800, flags=["in_transaction"]),
        take(cost_ms=800),
        take(cost_ms=901, flags=["in_transaction"]),
        take(cost_ms=901, flags=["must_run"]),
    ),
    scenario(
        "8: held back where waiting helps",
        policy(
            budget("b", max_delay_s=1, **HALF),
            budget("p", rules=only(username="p"), max_workers=1, max_delay_s=0.5),
            budget("n", rules=only(username="n"), burst=20),
        ),
        take(user="p", cost_ms=900),
        check(cost_ms=600),
        check(cost_ms=601),
        check(cost_ms=600, flags=["no_delay"]),
        check(user="p", cost_ms=50),
        check(user="p", cost_ms=600),
        check(user="n", cost_ms=300),
        check(cost_ms=600, flags=["in_transaction"]),
        change(0, policy(*(budget(f"p{i}", max_workers=0, max_delay_s=1) for i in range(3)))),
        check(),
    ),
    scenario(
        "9: a place may come free at any time, a statement that is too dear never fits",
        policy(budget("b", max_workers=0), budget("c", burst=0)),
        check(),
        change(0, policy(budget("c", burst=0))),
        check(),
    ),
    scenario(
        "10, 13: a line through the logarithms, which bends and follows; the estimates' error",
        policy(budget("b")),
        *runs(10, 20, 30, 40, 100, 100, 100, pattern=7, plan_cost=250.5),
        check(pattern=7, plan_cost=250.5),
        check(pattern=7, plan_cost=501),
        *(s for ms in (1, 3, 9, 30, 80, 300) for s in runs(ms, pattern=7, plan_cost=20 * ms)),
        *(check(pattern=7, plan_cost=cost) for cost in (1, 50, 500, 5000, 500_000)),
        *run(actual_ms=3, pattern=9, flags=["utility"]),
        check(pattern=9, flags=["utility"]),
        check(pattern=7, plan_cost=0),
        check(pattern=7, plan_cost=1e300),
    ),
    scenario(
        "10: each plan shape has its line, three at most; one that is not used any more makes room",
        policy(budget("b")),
        *(s for n in range(3) for s in runs(1, 100, 10, pattern=7, plan_cost=50, shape=n + 1)),
        *(check(pattern=7, plan_cost=50, shape=n) for n in range(6)),
        *runs(5, 5, 5, 5, 5, pattern=7, plan_cost=50, shape=4),
        *(check(pattern=7, plan_cost=50, shape=n) for n in range(6)),
    ),
    scenario(
        "9: the per-query limit is compared with p90, debt is the mean",
        policy(budget("b")),
        *runs(5, 10, 2, 8, 3, 9, 4, pattern=7, plan_cost=100),
        change(1000, policy(budget("b", burst=0.5, rate=50, capacity=100))),
        take(1000, pattern=7, plan_cost=100),
        check(1000, pattern=7, plan_cost=50),
        take(1000, pattern=7, plan_cost=10),
        check(1000, pattern=8, plan_cost=100, cost_ms=4),
    ),
    scenario(
        "11: what nobody knows costs what all patterns say",
        policy(budget("b")),
        check(pattern=7, plan_cost=100),
        check(pattern=7, flags=["utility"]),
        *runs(1, 2, 3, 0.5, 0, plan_cost=100),
        check(pattern=7, plan_cost=100),
        *run(actual_ms=99, flags=["utility"]),
        *run(actual_ms=99, cost_ms=1, pattern=7),
        check(pattern=7, plan_cost=100),
        *runs(*[2] * 9, pattern=9, plan_cost=1000),
        check(pattern=7, plan_cost=100),
    ),
    scenario(
        "12: what was cut short is charged, and may raise the level alone",
        policy(budget("b", **HALF)),
        *runs(10, 10, 10, pattern=7, plan_cost=100, shape=5),
        *run(actual_ms=1, aborted=True, pattern=7, plan_cost=100, shape=5),
        *run(actual_ms=10, aborted=True, pattern=7, plan_cost=100, shape=5),
        check(pattern=7, plan_cost=100, shape=5),
        *run(actual_ms=90, aborted=True, pattern=7, plan_cost=100, shape=5),
        *run(actual_ms=90, aborted=True, pattern=7, plan_cost=100, shape=6),
        check(pattern=7, plan_cost=100, shape=5),
        check(pattern=7, plan_cost=100),
        *run(actual_ms=1, aborted=True, pattern=8, plan_cost=1000),
        check(pattern=8, plan_cost=1000),
        *run(actual_ms=50, aborted=True, pattern=8, plan_cost=1000),
        check(pattern=8, plan_cost=1000),
    ),
    scenario(
        "14: emptied buckets make room, then the soonest empty; held ones never",
        policy(budget("b", rules=TENANTS, **HALF)),
        *(
            s
            for i in range(12)
            for s in (tenant(i, cost_ms=20 + i, **{"as": f"{i}"}), settle(f"{i}", actual_ms=20 + i))
        ),
        tenant("late", 41, cost_ms=50, **{"as": "late"}),
        tenant("later", 41, cost_ms=50),
        tenant(1, 41, cost_ms=1),
        buckets=16,
    ),
    scenario(
        "14: with every bucket held it runs uncounted",
        policy(budget("b", rules=TENANTS, max_workers=1)),
        *(tenant(i, cost_ms=1, **{"as": f"{i}"}) for i in range(12)),
        tenant("late", cost_ms=1),
        tenant(3, cost_ms=1),
        settle("3", actual_ms=1),
        tenant("late", cost_ms=1),
        buckets=16,
    ),
    scenario(
        "14: a cursor at rest keeps its bucket",
        policy(budget("b", rules=TENANTS, max_workers=1, **HALF)),
        tenant("c", cost_ms=1, **{"as": "c"}),
        {"at_ms": 0, "do": "pause", "of": "c"},
        *(
            step
            for i in range(16)
            for step in (
                tenant(i, cost_ms=500, **{"as": f"{i}"}),
                settle(f"{i}", actual_ms=500),
            )
        ),
        {"at_ms": 0, "do": "resume", "of": "c"},
        tenant("c", cost_ms=1),
        settle("c", actual_ms=700),
        buckets=16,
    ),
    scenario(
        "14: made-up values never wash away what a budget's own bucket owes",
        policy(
            budget("own", rules=only(username="hog"), **HALF),
            budget("each", rules=TENANTS, rate=1, capacity=100),
        ),
        take(user="hog", cost_ms=900, **{"as": "hog"}),
        settle("hog", actual_ms=900),
        *(tenant(i, cost_ms=1, **{"as": f"{i}"}) for i in range(12)),
        tenant("late", cost_ms=1),
        check(user="hog", cost_ms=200),
        buckets=16,
        secret=0x1234_5678_9ABC_DEF0,
    ),
    scenario(
        "14: budgets' own buckets go before those of values",
        policy(
            budget("each", rules=TENANTS, **HALF),
            *(budget(f"o{i}", rules=only(username=f"o{i}"), **HALF) for i in range(17)),
        ),
        *(
            s
            for i in range(12)
            for s in (tenant(i, cost_ms=900, **{"as": f"{i}"}), settle(f"{i}", actual_ms=900))
        ),
        *(take(user=f"o{i}", cost_ms=100 + i, **{"as": f"o{i}"}) for i in range(16)),
        *(settle(f"o{i}", actual_ms=100 + i) for i in range(16)),
        tenant("late", cost_ms=1),
        take(user="o16", cost_ms=1),
        tenant("late", 250, cost_ms=1),
        buckets=16,
    ),
    scenario(
        "15: another rate keeps the debt, another epoch forgives it",
        policy(budget("b", **HALF)),
        take(cost_ms=800, **{"as": "a"}),
        change(400, policy(budget("b", rate=10, capacity=100))),
        check(400, cost_ms=500),
        take(400, cost_ms=100),
        settle("a", 400, actual_ms=0),
        change(500, policy(budget("b", rate=10, capacity=100, epoch=1))),
        check(500, cost_ms=1000),
        take(500, cost_ms=100),
    ),
    scenario(
        "15: a statement blocked under another rate is admitted when its wait ends",
        policy(budget("b", rate=1, capacity=100)),
        take(cost_ms=1000),
        change(0, policy(budget("b", rate=100, capacity=100))),
        take(cost_ms=1000),
        take(999, cost_ms=1000),
        take(1000, cost_ms=1000),
        change(1000, policy(budget("b", rate=10, capacity=100))),
        take(1000, cost_ms=1000),
        take(10_999, cost_ms=1000),
        take(11_000, cost_ms=1000),
    ),
    scenario(
        "12: too dear once is tried again, one at a time; aborted ones make nothing cheaper",
        policy(budget("b", burst=20)),
        *run(actual_ms=800, plan_cost=40, pattern=7),
        take(899_999, plan_cost=40, pattern=7),
        check(900_000, plan_cost=40, pattern=7, flags=["early"]),
        take(900_000, plan_cost=40, pattern=7, **{"as": "t"}),
        take(900_000, plan_cost=40, pattern=7),
        settle("t", 900_000, actual_ms=500, aborted=True),
        take(1_800_000, plan_cost=40, pattern=7, **{"as": "t"}),
        settle("t", 1_800_000, actual_ms=1),
        take(1_800_000, plan_cost=40, pattern=7),
        take(2_700_000, plan_cost=40, pattern=7),
    ),
    scenario(
        "16: before planning, a quarter of what is known",
        policy(budget("b", burst=10)),
        *runs(1000, 1000, pattern=7, plan_cost=1, flags=["in_transaction"]),
        check(pattern=7, flags=["early"]),
        *runs(1000, pattern=7, plan_cost=1, flags=["in_transaction"]),
        check(pattern=7, flags=["early"]),
        check(pattern=7, plan_cost=0.5),
        check(pattern=8, flags=["early"]),
    ),
    scenario(
        "17: rules by tags; the last of two stands, odd ones are counted",
        policy(
            budget("export", rules=only(**{"tag.controller": "export"})),
            budget("both", rules=only(**{"tag.controller": "export", "username": "app"})),
            budget("each", rules=[{"each": ["tag.tenant", "database"]}], max_workers=1),
        ),
        take(text="SELECT 1 /*controller='export'*/", user="etl"),
        take(text="/*controller='import'*/ SELECT 1 /*controller='export',x='a b'*/"),
        take(text="SELECT '/*controller=export*/'"),
        take(text="SELECT 1 /*tenant='acme'*/", database="shop"),
        take(text="SELECT 1 /*tenant='acme'*/", database="shop"),
        take(text="SELECT 1 /*tenant='other'*/", database="shop"),
        take(text="SELECT 1 /*tenant='acme'*/"),
    ),
    scenario(
        "18: of addresses the longest prefix that matches as a whole",
        BROAD,
        *(check(address=address) for address in ADDRESSES),
        check(address="10.1.2.3", user="etl"),
        check(),
    ),
    scenario(
        "19: rules by shape and by the server's number, of both dialects",
        policy(
            budget(
                "shape",
                rules=only(fingerprint=f"{fingerprint(b'select ?', Dialect.POSTGRES):016x}"),
            ),
            budget("query", rules=only(query=-2)),
        ),
        check(text="SELECT 42 -- why"),
        check(text='SELECT "a" # why', dialect="mysql"),
        check(text='SELECT "a"', dialect="postgres"),
        check(text="SELECT a", query_id=2**64 - 2),
    ),
    scenario(
        "22: a budget for bad times",
        policy(budget("bad", when="unhealthy", rate=0), budget("always", max_workers=9)),
        check(healthy=True),
        check(healthy=False),
        check(),
        change(0, policy(budget("bad", when="unhealthy", rate=0), health_unknown="unhealthy")),
        check(),
    ),
    scenario(
        "23: a bucket that two rules bring counts once; all buckets of a budget must pass",
        policy(
            budget(
                "b", rules=[{"match": {"username": "app"}}, {}, *TENANTS, *TENANTS], max_workers=1
            )
        ),
        tenant("a", cost_ms=1, **{"as": "q"}),
        tenant("b", cost_ms=1),
        settle("q", actual_ms=1),
        tenant("b", cost_ms=1),
    ),
    scenario(
        "24: from its end on a budget is as if it were not there",
        policy(budget("b", rate=0, expires_at=1_000_000)),
        check(wall_ms=999_999_999),
        check(wall_ms=1_000_000_000),
    ),
    scenario(
        "R123: a warning before the limit",
        policy(budget("b", max_workers=10, burst=100, warning_threshold=80, **HALF)),
        take(cost_ms=500, workers=8, **{"as": "a"}),
        take(cost_ms=200, workers=1),
        settle("a", actual_ms=500),
        take(cost_ms=200),
    ),
    scenario(
        "R126, R128: places of parallel statements, cursors at rest",
        policy(budget("b", max_workers=3)),
        take(workers=2, cost_ms=1, **{"as": "c"}),
        take(workers=2, cost_ms=1),
        {"at_ms": 0, "do": "pause", "of": "c"},
        take(workers=2, cost_ms=1),
        {"at_ms": 0, "do": "resume", "of": "c"},
        settle("c", actual_ms=5),
    ),
    scenario(
        "exempt users, and budgets beyond the most",
        policy(*(budget(f"b{i}") for i in range(34)), exempt_usernames=["monitor"]),
        check(user="monitor"),
        check(user="Monitor"),
    ),
]

TEXTS = [
    "SELECT 1 /*controller='export',tenant='acme'*/",
    "/*a='1'*/ SELECT 1 /*b='2'*/;",
    "SELECT 1 /*application:Bcx,controller:project*/",
    "SELECT 1 /* a=b , route='%2Fx%2Fy' */",
    "SELECT 1 /* a = 'b' */",
    "SELECT 1 /*a='1', and prose*/",
    "SELECT 1 /*+ a='1' */ /*! b='2' */",
    "SELECT '/*a=1*/', \"/*b=2*/\", `/*c=3*/` /*d=4*/",
    "SELECT E'\\' /*a=1*/' /*b=2*/",
    "SELECT '\\' /*a=1*/ , '' /*b=2*/",
    "SELECT $x$ /*a=1*/ $x$ $$/*b=2*/$$ /*c=3*/",
    "SELECT 1 /* x /*a=1*/ */ /*b=2*/",
    "SELECT 1 -- /*a=1*/\n--/*b=2*/\n# /*c=3*/\n/*d=4*/",
    "SELECT 1 /*a='1',a='2',b='it\\'s',c='%zz',d='%41'*/",
    "SELECT 1 /*" + "k" * 65 + "='1'," + "k" * 66 + "='1'*/",
    "SELECT 1 /*a=1",
    "SELECT * FROM T WHERE id = 5 AND n = -1.5e-3 AND x IN (1, 2, $3) AND y = ?;",
    "insert into t values (1,'a'), (2,'b'), (3, now())",
    "SELECT \"Mixed\", a::text, :name, b->>'k' FROM t$1 WHERE a <> NULL || U&'x' ; ;",
    'SELECT Größe, 0xFF, 12abc, .5, a.b FROM `t``t` WHERE a = "it""s"',
    "SELECT 1.into, 1e5for, 1_000, 0b1, 0o7, 1e",
    "SELECT 1 -- x\r/*a=1*/, 2\n/*b=2*/ --\x7f, 3\n",
    "SELECT 1 /*!50000 , a */ /*M!100100 , b */ /*!99999 '*/' */",
    "EXPLAIN ANALYZE VERBOSE SELECT 1",
    "explain (analyze off, buffers) select 1",
    "ANALYZE FORMAT=JSON SELECT 1",
    "DESC ANALYZE TABLE t",
    "",
]


def tag_tables() -> list[Any]:
    told = []
    for text in TEXTS:
        for dialect in Dialect:
            tags = read_tags(text.encode(), dialect)
            pairs = {k.decode(): v.decode() for k, v in tags.pairs.items()}
            told.append([dialect.name.lower(), text, pairs, tags.ignored, tags.duplicates])
    return told


def fingerprint_table() -> list[Any]:
    return [
        [
            dialect.name.lower(),
            text,
            shape(text.encode(), dialect).decode(),
            f"{fingerprint(text.encode(), dialect):016x}",
        ]
        for text in TEXTS
        for dialect in Dialect
    ]


def document() -> dict[str, Any]:
    played = [s | Player(Reference(sizes_of(s)), s).play() for s in SCENARIOS]
    return {"tags": tag_tables(), "fingerprints": fingerprint_table(), "scenarios": played}


def _lines(rows: list[Any], indent: str) -> str:
    return ",\n".join(indent + json.dumps(row, ensure_ascii=False) for row in rows)


def _written(one: dict[str, Any]) -> str:
    """A step and what it came to, one below the other."""
    head = {k: v for k, v in one.items() if k not in ("steps", "results", "end")}
    parts = [f'   "{k}": {json.dumps(v, ensure_ascii=False)}' for k, v in head.items()]
    parts += [f'   "steps": [\n{_lines(one["steps"], "    ")}\n   ]']
    parts += [f'   "results": [\n{_lines(one["results"], "    ")}\n   ]']
    parts += [f'   "end": {json.dumps(one["end"], ensure_ascii=False)}']
    return "  {\n" + ",\n".join(parts) + "\n  }"


def main() -> None:
    made = document()
    tables = [f' "{name}": [\n{_lines(made[name], "  ")}\n ]' for name in ("tags", "fingerprints")]
    scenarios = ",\n".join(_written(one) for one in made["scenarios"])
    PATH.write_text("{\n" + ",\n".join(tables) + f',\n "scenarios": [\n{scenarios}\n ]\n}}\n')
    print(f"wrote {len(made['scenarios'])} scenarios to {PATH.name}")


if __name__ == "__main__":
    main()
