"""The scenes, played once: what they promise, and whether it happened.

healthy → a replica falls behind → the jobs ask and are held → it recovers → promotion
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headgate.demo.agents import LAG_THRESHOLD_S
from headgate.demo.handover import LEAD_WITHIN_S, NEVER, Change, Handover, switch_over
from headgate.demo.show import header, line, show
from headgate.demo.stage import Frame, Stage

FRAME_S = 0.5
SETTLE_S = 4.0
REPLAY_SHARE = 0.75
# While the jobs are held, the replica still works off what they wrote: what it shows then is
# as old as it was at the threshold, divided by its share (2.7 s). Probes and frames come on top.
NEAR_S = 2 * LAG_THRESHOLD_S
GREEDY_S, ASKING_S, PROMOTION_S = 14.0, 20.0, 6.0
ELSE_S = 2.0
"""About what the other scenes take."""
GREEDY_SHARE = 0.36
RECOVER_S = 10.0
PATIENCE = 2.5


@dataclass(slots=True)
class Play:
    stage: Stage
    scenes: dict[str, list[Frame]] = field(default_factory=dict)
    handover: Handover | None = None

    def watch(self, scene: str, seconds: float, until: Callable[[], bool] = lambda: True) -> None:
        """For some seconds; on a busy machine for more, until it has come to that."""
        began_at = due = time.monotonic()
        while (lasted_s := time.monotonic() - began_at) < seconds * PATIENCE:
            if lasted_s >= seconds and until():
                return
            due += FRAME_S
            time.sleep(max(0.0, due - time.monotonic()))
            self.frame(scene)

    def frame(self, scene: str) -> Frame:
        frame = self.stage.look()
        self.scenes.setdefault(scene, []).append(frame)
        show(line(frame))
        return frame

    @property
    def peak_s(self) -> float:
        """The longest lag while nobody asked."""
        return max(_lags(self.scenes.get("greedy", [])), default=0.0)

    @property
    def calm_at(self) -> float | None:
        """When lag had come down since the jobs asked again."""
        return next((f.at for f in self.scenes.get("asking", []) if _is_calm(f)), None)

    @property
    def after(self) -> list[float]:
        """Lags from then on, once all had settled."""
        calm_at, frames = self.calm_at, self.scenes.get("asking", [])
        if calm_at is None:
            return []
        return _lags([f for f in frames if f.at >= calm_at + SETTLE_S])

    @property
    def was_tried(self) -> bool:
        """Whether lag passed the threshold again and came back: else its bound means little."""
        after = self.after
        return bool(after) and max(after) > LAG_THRESHOLD_S >= after[-1]

    def chunks(self, scene: str) -> dict[str, int]:
        frames = self.scenes.get(scene, [])
        return {
            job.name: sum(d.chunks for f in frames for d in f.desks if d.name == job.name)
            for job in self.stage.jobs
        }


def play(stage: Stage, total_s: float) -> int:
    """Returns 0 if the scenes did what they promise."""
    greedy_s = min(GREEDY_S, total_s * GREEDY_SHARE)
    asking_s = min(ASKING_S, total_s - greedy_s - PROMOTION_S - ELSE_S)
    run, began_at = Play(stage), time.monotonic()
    _healthy(run)
    _greedy(run, greedy_s)
    _asking(run, asking_s)
    _recovery(run)
    _promotion(run, PROMOTION_S)
    left_s = total_s - (time.monotonic() - began_at)
    if left_s > 2 * PROMOTION_S:
        _say("", "the shard goes on; Ctrl-C ends it and leaves nothing behind. Elsewhere, try")
        _say(f"    headgate status --url {stage.agents[stage.primary.name].url}")
        run.watch("after", left_s)
    return _summary(run)


# --- scenes --------------------------------------------------------------------------------


def _healthy(run: Play) -> None:
    _say("", "scene 1: two jobs ask before each chunk. The shard is healthy: its primary's agent")
    _say("says OK. backfill:orders knows another agent only, which sends it on to that one.")
    for job in run.stage.jobs:
        job.asks = True
        job.start()
    show(header(run.stage.look()))
    run.stage.measure_full_rate()
    run.frame("healthy")


def _greedy(run: Play, seconds: float) -> None:
    slow = run.stage.replicas[-1]
    for job in run.stage.jobs:
        job.asks = False
    run.stage.slow_down(slow, REPLAY_SHARE)
    _say("", f"scene 2: {slow.name} can replay {REPLAY_SHARE:.0%} of what the jobs write, and they")
    _say("ask nobody any more. Watch its lag.")
    show(header(run.stage.look()))
    run.watch("greedy", seconds, lambda: run.peak_s > LAG_THRESHOLD_S + FRAME_S)


def _asking(run: Play, seconds: float) -> None:
    _say("", "scene 3: the jobs ask again; they are held by the lag of the shard's worst replica.")
    _say("Held, they wait while it works off what they wrote: its age grows until that is done.")
    for job in run.stage.jobs:
        job.asks = True
    show(header(run.stage.look()))
    run.watch("asking", seconds, lambda: run.was_tried)


def _recovery(run: Play) -> None:
    run.stage.release()
    deadline = time.monotonic() + RECOVER_S
    while time.monotonic() < deadline:
        time.sleep(FRAME_S)
        frame = run.stage.look()
        if all(desk.chunks for desk in frame.desks) and _is_calm(frame):
            return


def _promotion(run: Play, seconds: float) -> None:
    stage, ends = run.stage, time.monotonic() + seconds
    handover = run.handover = Handover(stage.primary, stage.replicas[0])
    _say("", f"scene 4: under load, {handover.old.name} stops, {handover.new.name} is promoted,")
    _say(f"{stage.replicas[1].name} follows it, and {handover.old.name} comes back as a replica.")
    show(header(stage.look()))
    change = Change(switch_over, stage, handover)
    change.start()
    try:
        while change.is_alive() or time.monotonic() < ends:
            time.sleep(FRAME_S / 2 if change.is_alive() else FRAME_S)
            run.frame("promotion")
    finally:
        if change.is_alive():
            stage.leaving.set()
        change.finish()


# --- promises ------------------------------------------------------------------------------


def _summary(run: Play) -> int:
    _say("")
    kept = [_keep(told, ok) for told, ok in [*_lag_promises(run), *_promotion_promises(run)]]
    _say(f"{sum(kept)} of {len(kept)} promises kept")
    return 0 if all(kept) else 1


def _keep(told: str, ok: bool) -> bool:
    _say(f"  kept: {told}" if ok else f"  PROMISE BROKEN: {told}")
    return ok


def _lag_promises(run: Play) -> Iterator[tuple[str, bool]]:
    healthy, asked = run.chunks("healthy"), run.chunks("asking")
    frames = run.scenes.get("asking", [])
    worst = max(run.after, default=0.0)
    held = {d.name for f in frames for d in f.desks if d.refused_for_s is not None}
    yield "the healthy shard let both jobs work", all(healthy.values())
    yield (
        f"unasked, lag passed its threshold of {LAG_THRESHOLD_S:g} s: {run.peak_s:.1f} s",
        run.peak_s > LAG_THRESHOLD_S,
    )
    yield "lag came back once the jobs asked", run.calm_at is not None
    yield (
        f"held again at the threshold, lag stayed below {NEAR_S:g} s: at most {worst:.1f} s",
        run.was_tried and worst < NEAR_S,
    )
    yield f"both jobs were held: {', '.join(sorted(held)) or 'none'}", held == set(asked)
    told = ", ".join(f"{name} {chunks} chunks" for name, chunks in asked.items())
    yield f"both jobs went on while asking: {told}", all(asked.values())


def _promotion_promises(run: Play) -> Iterator[tuple[str, bool]]:
    handover, frames = run.handover, run.scenes.get("promotion", [])
    if handover is None or not frames:
        yield "there was a promotion", False
        return
    old, new = handover.old.name, handover.new.name
    yield f"{new} was promoted and {old}'s agent leads no more", frames[-1].leader == new
    leads_s = f"after {handover.leads_after_s:.2f} s" if handover.led_at < NEVER else "never"
    yield (
        f"{new}'s agent led within {LEAD_WITHIN_S:g} s of the promotion: {leads_s}",
        handover.leads_after_s <= LEAD_WITHIN_S,
    )
    refusals = ", ".join(f"{why} {count}" for why, count in handover.refusals.most_common())
    yield f"while nobody led, checks were refused: {refusals}", bool(handover.refusals)
    wrong = len(handover.wrong) + len(_wrong_to_jobs(run, handover))
    answers = len(handover.told)
    yield f"of {answers} answers watched, {wrong} were an OK from the wrong view", wrong == 0
    roles = {seat.name: seat.role for seat in frames[-1].seats}
    yield f"{old} is a replica again", roles[old] == "replica"
    desks = [desk for frame in frames if frame.at > handover.admits_at for desk in frame.desks]
    went_on = {desk.name for desk in desks if desk.chunks and desk.told_by == new}
    told = ", ".join(sorted(went_on)) or "none"
    yield f"both jobs went on, with an OK of {new}'s agent: {told}", len(went_on) == 2


def _wrong_to_jobs(run: Play, handover: Handover) -> list[float]:
    """When a job was admitted although it asked and heard while there was no primary."""
    return [
        heard.heard_at
        for job in run.stage.jobs
        for heard in list(job.heard)
        if heard.admitted
        and heard.asked_at > handover.gone_at
        and heard.heard_at < handover.promoting_at
    ]


def _lags(frames: list[Frame]) -> list[float]:
    """Where it was known: a missing value is no 0."""
    return [frame.lag_s for frame in frames if frame.lag_s is not None]


def _is_calm(frame: Frame) -> bool:
    return frame.lag_s is not None and frame.lag_s <= LAG_THRESHOLD_S


def _say(*lines: str) -> None:
    for told in lines:
        print(told, flush=True)
