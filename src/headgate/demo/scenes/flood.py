"""Jobs that do not check, a replica that cannot follow; then they check, and are throttled."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from headgate.demo.agents import LAG_THRESHOLD_S
from headgate.demo.stage import ETL, Frame, Scenery, Stage
from headgate.demo.tour import (
    PageHint,
    Promise,
    ScenePlay,
    TourScene,
    chunks_of,
    held_in,
    is_calm,
    lags,
)

REPLAY_SHARE = 0.7
MINUTE = len("2026-03-01T07:10")
REJECTIONS = f"/v1/rejections?app={ETL}"
GREEDY_S, ASKING_S = 4.0, 6.0
CLEARLY_S = 0.25
"""Above the threshold, so that no single reading decides."""
SETTLE_S = 3.0


def _says(stage: Stage) -> str:
    slow = stage.brake.replica.name if stage.brake else stage.replicas[-1].name
    return (
        f"ETL floods: {slow} can replay {REPLAY_SHARE:.0%} of what the jobs write, and they do not "
        "check. It falls behind. Then they check: the lag of the worst replica throttles both, "
        "and they go on as fast as it can follow."
    )


def _play(run: ScenePlay) -> Sequence[Promise]:
    stage = run.stage
    stage.arrange(Scenery(asking=False, slow_share=REPLAY_SHARE))
    run.tell("the jobs do not check now; watch the replicas' lag")
    greedy = run.watch(GREEDY_S, lambda frames: peak_s(frames) > LAG_THRESHOLD_S + CLEARLY_S)
    stage.arrange(Scenery(slow_share=REPLAY_SHARE))
    run.tell("the jobs check again, and wait when they are rejected")
    asking = run.watch(ASKING_S, was_tried)
    stage.found.rejected_at = _rejected_at(stage)
    return promises(greedy, asking, [job.name for job in stage.jobs if job.works])


def _rejected_at(stage: Stage) -> str:
    """The lag goes up and down about its threshold: a link to now would show either."""
    found = stage.speaker.get(REJECTIONS)["rejections"]
    return f"{str(found[0]['at'])[:MINUTE]}Z" if found else ""


def _looks(stage: Stage) -> Sequence[PageHint]:
    looks = (
        PageHint("lag against its threshold, with the breach shaded", "/"),
        PageHint("when it was throttled, and each rejection in full", f"/clients/{ETL}"),
    )
    if not stage.found.rejected_at:
        return looks
    asked = urlencode({"app": ETL, "database": "main", "at": stage.found.rejected_at})
    return (*looks, PageHint("why it was rejected in that minute", f"/explain?{asked}"))


def peak_s(frames: Sequence[Frame]) -> float:
    return max(lags(frames), default=0.0)


def settled(asking: Sequence[Frame]) -> list[float]:
    """Lags once they had come down since the jobs check, and all had settled."""
    calm_at = next((frame.at for frame in asking if is_calm(frame)), None)
    if calm_at is None:
        return []
    return lags(frame for frame in asking if frame.at >= calm_at + SETTLE_S)


def was_tried(asking: Sequence[Frame]) -> bool:
    """Whether lag passed the threshold again and came back: else its bound means little."""
    after = settled(asking)
    return bool(after) and max(after) > LAG_THRESHOLD_S >= after[-1]


def promises(
    greedy: Sequence[Frame], asking: Sequence[Frame], jobs: Sequence[str]
) -> list[Promise]:
    peak, after = peak_s(greedy), settled(asking)
    # How high it goes in between depends on the machine: while the jobs are throttled, the replica
    # still works off what they wrote, as fast as it is let. That it comes back does not.
    course = f"up to {max(after):.2f} s and back to {after[-1]:.2f} s" if after else "never"
    held = held_in(asking)
    done = {job: chunks_of(asking, job) for job in jobs}
    told = ", ".join(f"{name} {count} chunks" for name, count in done.items())
    return [
        Promise(
            f"without checks, lag passed {LAG_THRESHOLD_S:g} s: up to {peak:.2f} s",
            peak > LAG_THRESHOLD_S,
        ),
        Promise(
            f"with checks, lag came down each time after it had passed the threshold: {course}",
            bool(after) and after[-1] <= LAG_THRESHOLD_S,
        ),
        Promise(
            f"both jobs were THROTTLED: {', '.join(sorted(held)) or 'none'}", held == set(jobs)
        ),
        Promise(f"both jobs went on with checks: {told}", all(done.values())),
    ]


SCENE = TourScene(
    title="ETL floods the shard",
    says=_says,
    watch="the lag of the last replica against its mark, and the answers that the jobs get",
    looks=_looks,
    play=_play,
)
