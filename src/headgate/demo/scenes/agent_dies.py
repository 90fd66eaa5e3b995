"""The primary's agent dies: jobs wait or go on, as each is configured; then it comes back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from headgate.demo.jobs import SILENT_FOR_S, DemoJob, etl, primary_dsn
from headgate.demo.stage import ALWAYS, SHARD_DOC, SYNC, Frame, Scenery, Stage
from headgate.demo.tour import PageHint, Promise, ScenePlay, TourScene, all_go_on, held_in
from headgate.demo.traffic import JOBS_ROLE

BEFORE_S, DEAD_S, AFTER_S = 0.5, 2.5, 1.0
LEDGER = "/v1/unthrottled?since=10m"


@dataclass(frozen=True, slots=True)
class AgentOutage:
    """What was seen between the agent's death and its return."""

    agent: str
    dead: Sequence[Frame]
    others_said: str
    wrong: int
    """OKs that a job with checks got from any agent meanwhile."""
    after: Sequence[Frame]
    on_record: int
    """Pieces of work that went unthrottled, as the agent has it afterwards."""


def _says(stage: Stage) -> str:
    name = stage.primary.name
    return (
        f"The agent beside {name} dies by SIGKILL; the database is well. The other agents answer "
        "that no agent decides for the shard: etl and backfill wait (the SDK's default). "
        f"{SYNC} is set to go on unthrottled after {SILENT_FOR_S:g} s; the agent records that."
    )


def _looks(stage: Stage) -> Sequence[PageHint]:
    """While it is dead, none of its own page: that is gone, and the strip would be with it."""
    if stage.speaker_is_up:
        return (
            PageHint("all members answer again", "/"),
            PageHint("who went without a throttler, and for how long", f"/clients/{SYNC}"),
        )
    other = stage.agents[stage.replicas[0].name]
    return (PageHint(f"the dead one as {other.name}'s agent sees it", "/", other.url),)


def _play(run: ScenePlay) -> Sequence[Promise]:
    stage = run.stage
    working = ALWAYS | {SYNC}
    stage.hire(_sync(stage))
    stage.arrange(Scenery(working=working))
    run.watch(BEFORE_S, all_go_on)
    name = stage.primary.name
    stage.crew.kill(name)
    died_at = time.monotonic()
    run.tell(f"{name}'s agent is dead (SIGKILL); its server goes on")
    dead = run.watch(
        DEAD_S,
        lambda frames: _went_on(frames) and held_in(frames) >= ALWAYS and bool(_others_said(stage)),
    )
    said = _others_said(stage)
    run.pause(f"{name}'s agent is started again")
    wrong = sum(_admitted(job, died_at) for job in stage.jobs if job.name in ALWAYS)
    run.tell(f"{name}'s agent is started again")
    stage.arrange(Scenery(working=working))
    after = run.watch(AFTER_S, lambda frames: _back(frames, stage))
    return promises(AgentOutage(name, dead, said, wrong, after, _on_record(stage)))


def _sync(stage: Stage) -> DemoJob:
    """It knows the agent that will die, and nobody else."""
    dsn = primary_dsn(stage.shard, JOBS_ROLE)
    return DemoJob(SYNC, dsn, stage.speaker, etl, on_unavailable="open")


def _went_on(frames: Sequence[Frame]) -> bool:
    return any(desk.unthrottled and desk.chunks for desk in frames[-1].desks)


def _back(frames: Sequence[Frame], stage: Stage) -> bool:
    speaks = frames[-1].leader == stage.primary.name
    return speaks and all_go_on(frames) and _on_record(stage) > 0


def _admitted(job: DemoJob, since: float) -> int:
    return sum(heard.admitted and heard.asked_at > since for heard in list(job.heard))


def _others_said(stage: Stage) -> str:
    """Of the agents that live, about the member whose agent is dead."""
    name = stage.primary.name
    for agent in stage.agents.values():
        if agent.name != name:
            members = agent.get(SHARD_DOC)["members"]
            lost = next(m for m in members if m["member"] == name)
            if not lost["reachable"]:
                return f"{agent.name} says of {name}: {lost['role_detail']}"
    return ""


def _on_record(stage: Stage) -> int:
    periods = stage.speaker.get(LEDGER)["unthrottled"]
    return sum(int(period["pieces"]) for period in periods if period["client"] == SYNC)


def promises(silence: AgentOutage) -> list[Promise]:
    held = held_in(silence.dead) & ALWAYS
    went = sum(d.chunks for f in silence.dead for d in f.desks if d.unthrottled)
    back = {desk.name for desk in silence.after[-1].desks if desk.chunks} if silence.after else []
    leader = silence.after[-1].leader if silence.after else None
    return [
        Promise(
            f"while {silence.agent}'s agent was dead, the others said so: {silence.others_said}",
            bool(silence.others_said),
        ),
        Promise(
            f"the jobs that fail closed waited: {', '.join(sorted(held))}; OKs they got: "
            f"{silence.wrong}",
            held == ALWAYS and silence.wrong == 0,
        ),
        Promise(f"{SYNC} went on unthrottled: {went} chunks", went > 0),
        Promise(
            f"{silence.agent}'s agent came back and decides: {leader}; at work: "
            f"{', '.join(sorted(back))}",
            leader == silence.agent and len(back) == len(ALWAYS) + 1,
        ),
        Promise(
            f"what went unthrottled is on record: {silence.on_record} pieces of work",
            silence.on_record > 0,
        ),
    ]


SCENE = TourScene(
    title="An agent dies",
    says=_says,
    watch="the tree: one agent does not answer; who waits, and who goes on unthrottled",
    looks=_looks,
    play=_play,
)
