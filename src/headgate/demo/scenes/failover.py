"""The primary dies; another takes over; no agent admits a check in between."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.demo.handover import NEVER, PrimarySwitch, SwitchThread, fail_over
from headgate.demo.jobs import DemoJob
from headgate.demo.postgres import SwitchStep
from headgate.demo.stage import Frame, Scenery, Stage
from headgate.demo.tour import Cut, PageHint, Promise, ScenePlay, TourScene, all_go_on

BEFORE_S, AFTER_S = 0.5, 1.5
STEPS = {
    SwitchStep.GONE: "{old} is gone: no agent may decide for the shard",
    SwitchStep.PROMOTING: "{new} is being promoted",
    SwitchStep.PROMOTED: "{new} takes writes",
    SwitchStep.REJOINED: "{old} is back, as a replica of {new}",
}


def _says(stage: Stage) -> str:
    return (
        "The primary dies by SIGKILL. While there is none, agents reject all checks: no OK comes "
        "from an outdated view. The replica with most of the log takes over, its agent leads from "
        "then on, and the old primary comes back as a replica."
    )


def _play(run: ScenePlay) -> Sequence[Promise]:
    stage = run.stage
    stage.arrange(Scenery())
    run.watch(BEFORE_S, all_go_on)
    handover = PrimarySwitch(stage.primary, stage.replicas[0])
    handover.on_step = lambda step: run.tell(step_words(step, handover))
    handover.on_trouble = run.tell
    handover.noticed.clear()
    change = SwitchThread(fail_over, stage, handover)
    change.start()
    try:
        run.watch(0.0, lambda frames: handover.gone_at < NEVER or not change.is_alive())
        run.pause("a replica is promoted")
        handover.noticed.set()
        run.watch(BEFORE_S, lambda frames: not change.is_alive())
    except Cut:
        handover.noticed.set()
        change.finish()  # The next scene must not start with half a shard.
        raise
    change.finish()
    run.watch(AFTER_S, lambda frames: all_go_on(frames) and _led(frames[-1], handover))
    return promises(handover, run.frames, stage.jobs)


def step_words(step: SwitchStep, handover: PrimarySwitch) -> str:
    return STEPS[step].format(old=handover.old.name, new=handover.new.name)


def _led(frame: Frame, handover: PrimarySwitch) -> bool:
    return frame.leader == handover.new.name and all(
        desk.told_by == handover.new.name for desk in frame.desks
    )


def promises(
    handover: PrimarySwitch, frames: Sequence[Frame], jobs: Sequence[DemoJob]
) -> list[Promise]:
    old, new = handover.old.name, handover.new.name
    led = f"{handover.leads_after_s:.2f} s after" if handover.led_at < NEVER else "not after"
    rejections = ", ".join(f"{why} {count}" for why, count in handover.rejections.most_common())
    wrong = len(handover.wrong) + len(_wrong_to_jobs(jobs, handover))
    roles = {seat.name: seat.role for seat in frames[-1].seats}
    desks = [desk for frame in frames if frame.at > handover.admits_at for desk in frame.desks]
    went_on = {desk.name for desk in desks if desk.chunks and desk.told_by == new}
    working = {desk.name for desk in frames[-1].desks}
    return [
        Promise(f"{new} was promoted and {old}'s agent leads no more", frames[-1].leader == new),
        Promise(
            f"{new}'s agent led the shard, {led} its promotion",
            handover.led_at < NEVER and handover.promoting_at <= handover.led_at,
        ),
        Promise(
            f"while no agent led, checks were rejected: {rejections}", bool(handover.rejections)
        ),
        Promise(
            f"of {len(handover.told)} answers watched, {wrong} were an OK from an outdated view",
            wrong == 0 and bool(handover.told),
        ),
        Promise(f"{old} is a replica again", roles[old] == "replica"),
        Promise(
            f"both jobs went on, with an OK of {new}'s agent: {', '.join(sorted(went_on))}",
            went_on == working,
        ),
    ]


def _wrong_to_jobs(jobs: Sequence[DemoJob], handover: PrimarySwitch) -> list[float]:
    """When a job was admitted although it checked and was answered while there was no primary."""
    return [
        heard.heard_at
        for job in jobs
        for heard in list(job.heard)
        if heard.admitted
        and not heard.unthrottled
        and heard.asked_at > handover.gone_at
        and heard.heard_at < handover.promoting_at
    ]


SCENE = TourScene(
    title="The primary fails over",
    says=_says,
    watch="the tree: NO PRIMARY, warming up, then another agent leads; the jobs are throttled",
    looks=lambda stage: (
        PageHint("the shard without a primary, then with another", "/"),
        PageHint("the same from the fleet's side", "/fleet"),
        PageHint("the jobs' timeline: rejections and their causes", "/clients"),
    ),
    play=_play,
)
