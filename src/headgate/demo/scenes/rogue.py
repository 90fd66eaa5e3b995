"""A client that never checks: it is listed, a budget warns, then blocks its statements."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from headgate.demo.jobs import EXPORT, EXPORT_QUERY
from headgate.demo.stage import Scenery, Stage
from headgate.demo.tour import PageHint, Promise, ScenePlay, TourScene, all_go_on
from headgate.demo.traffic import ROGUE_BUDGET, ROGUE_ROLE, Enforcement

BEFORE_S, WARNED_S, ENFORCED_S = 1.0, 2.5, 3.0
MEDIAN = 0.5
"""A few seconds have too few reads for a tail: one that the machine was slow with would be it."""


LEFT_OUT = (
    "the budget warned first",
    "enforced, statements were blocked with SQLSTATE 53000",
    "best effort shed first",
    "the dashboard went on",
)
"""Promises that need traffic control, where there is none."""


@dataclass(frozen=True, slots=True)
class Shed:
    """What the budgets counted and the dashboard felt."""

    warned: int
    done_warned: int
    blocked: int
    block: str
    jobs_blocked: int
    critical_blocked: int
    before_s: float | None
    flooded_s: float | None
    enforced_s: float | None
    """What the dashboard's reads took; None where it read nothing then."""


def _says(stage: Stage) -> str:
    first = f"A script, {EXPORT}, appears: {stage.rogue.sessions} sessions that never check. "
    listed = first + "It is listed as a rogue. "
    if stage.traffic.way is Enforcement.NONE:
        return listed + f"No budget can stop it here: {stage.traffic.why}."
    return listed + (
        f"The budget `{ROGUE_BUDGET}` warns first; enforced {stage.traffic.way.value}, it blocks "
        "statements (SQLSTATE 53000), and the critical dashboard goes on."
    )


def _looks(stage: Stage) -> Sequence[PageHint]:
    listed = PageHint("rogue clients: they never check", "/clients")
    if stage.traffic.way is Enforcement.NONE:
        return (listed,)
    # After the `#`, where the tour's strip takes it from: a statement goes into no address.
    said = {"sql": EXPORT_QUERY, "username": ROGUE_ROLE, "application_name": EXPORT}
    statement = urlencode(said | {"query_id": stage.found.export_query_id})
    return (
        listed,
        PageHint("debt, warnings, blocked statements", f"/budgets/main/{ROGUE_BUDGET}"),
        PageHint("why one of its statements is blocked", f"/explain#{statement}"),
    )


def _play(run: ScenePlay) -> Sequence[Promise]:
    stage = run.stage
    stage.arrange(Scenery())
    run.watch(BEFORE_S, all_go_on)
    arrived_at = time.monotonic()
    stage.arrange(Scenery(rogue=True))
    run.tell(f"{EXPORT} appears: {stage.rogue.sessions} sessions that never check")
    if stage.traffic.way is Enforcement.NONE:
        return [_listed(run), *(Promise(told, kept=False, tried=False) for told in LEFT_OUT)]
    run.watch(WARNED_S, lambda frames: _counts(stage, ROGUE_BUDGET, "warned") > 0)
    # Before its budget applies: a statement that a proxy blocks never shows on the server.
    listed = _listed(run)
    return [listed, *promises(_enforce(run, arrived_at))]


def _enforce(run: ScenePlay, arrived_at: float) -> Shed:
    stage, dashboard, rogue = run.stage, run.stage.dashboard, run.stage.rogue
    warned, done_warned = _counts(stage, ROGUE_BUDGET, "warned"), rogue.done
    run.tell(f"warned of {warned} statements; headgate budget mode main {ROGUE_BUDGET} enforce")
    enforced_at = time.monotonic()
    stage.arrange(Scenery(rogue=True, enforced=True))
    calm_at = time.monotonic() + 1.0

    def is_over() -> bool:
        has_read = dashboard.took_s(calm_at) is not None
        return rogue.blocked > 0 and has_read and _counts(stage, "important", "blocked") >= 0

    run.watch(ENFORCED_S, lambda frames: is_over())
    stage.found.export_query_id = _query_id(stage)
    return Shed(
        warned=warned,
        done_warned=done_warned,
        blocked=rogue.blocked,
        block=rogue.last_block,
        jobs_blocked=_counts(stage, "important", "blocked"),
        critical_blocked=dashboard.blocked,
        before_s=dashboard.took_s(arrived_at - BEFORE_S, arrived_at, share=MEDIAN),
        flooded_s=dashboard.took_s(arrived_at, enforced_at, share=MEDIAN),
        enforced_s=dashboard.took_s(calm_at, share=MEDIAN),
    )


def _listed(run: ScenePlay) -> Promise:
    """The agent looks at its server's sessions every ten seconds."""
    stage = run.stage
    run.watch(0.0, lambda frames: bool(_suspects(stage)))
    found = _suspects(stage)
    told = ", ".join(f"{s['application']} of {s['user']}, {s['sessions']} sessions" for s in found)
    return Promise(f"the rogue client is listed: {told or 'none'}", bool(found))


def _suspects(stage: Stage) -> list[dict[str, Any]]:
    found = stage.speaker.get("/v1/rogues")["suspects"]
    return [suspect for suspect in found if suspect["application"] == EXPORT]


def _query_id(stage: Stage) -> str:
    """By which its cost is known: its cost decides whether it is blocked."""
    patterns = stage.speaker.get("/v1/budgets/main/state")["patterns"]
    found = (one["query_id"] for one in patterns if one["application_name"] == EXPORT)
    return str(next(found, ""))


def _counts(stage: Stage, budget: str, what: str) -> int:
    """0 where nothing was counted; -1 while the server's counters cannot be read."""
    counts = stage.speaker.get(f"/v1/budgets/main/{budget}")["counts"]
    if counts is None:
        return -1
    found = counts[what]
    return sum(found.values()) if isinstance(found, dict) else int(found)


def promises(shed: Shed) -> list[Promise]:
    return [
        Promise(
            f"the budget warned first: of {shed.warned} statements, while {shed.done_warned} ran",
            shed.warned > 0 and shed.done_warned > 0,
        ),
        Promise(
            f"enforced, {shed.blocked} statements were blocked with SQLSTATE 53000: "
            f"{shed.block or 'none'}",
            shed.blocked > 0 and ROGUE_BUDGET in shed.block,
        ),
        Promise(
            f"best effort shed first: {shed.jobs_blocked} of the jobs' statements blocked, "
            f"{shed.critical_blocked} of the dashboard's",
            shed.jobs_blocked == 0 and shed.critical_blocked == 0,
        ),
        Promise(
            f"the dashboard went on: its reads took {_ms(shed.before_s)}, "
            f"{_ms(shed.flooded_s)} under the rogue, {_ms(shed.enforced_s)} once its budget was "
            "enforced",
            shed.enforced_s is not None,
        ),
    ]


def _ms(seconds: float | None) -> str:
    return "? ms" if seconds is None else f"{seconds * 1000:.0f} ms"


SCENE = TourScene(
    title="A budget stops a rogue client",
    says=_says,
    watch="the crowd: what export.py gets done, what is blocked, the dashboard's p95",
    looks=_looks,
    play=_play,
)
