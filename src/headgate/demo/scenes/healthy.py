"""All is well: which job checks at which agent, and the answers."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.demo.stage import Scenery, Stage
from headgate.demo.tour import PageHint, Promise, ScenePlay, TourScene, all_go_on, chunks_of

ARRANGE_S, HEALTHY_S = 1.0, 1.0


def _says(stage: Stage) -> str:
    return (
        "Two jobs check before each chunk. The shard is healthy: its primary's agent admits them. "
        "backfill:orders knows another agent only, which answers with the address of that one."
    )


def _play(run: ScenePlay) -> Sequence[Promise]:
    stage = run.stage
    stage.arrange(Scenery())
    run.watch(ARRANGE_S, all_go_on)
    if not stage.full_rate:
        stage.measure_full_rate()
    frames = run.watch(HEALTHY_S, all_go_on)
    done = {job.name: chunks_of(frames, job.name) for job in stage.jobs if job.works}
    told = ", ".join(f"{name} {count} chunks" for name, count in done.items())
    return [Promise(f"healthy, both jobs worked: {told}", all(done.values()))]


SCENE = TourScene(
    title="All is well",
    says=_says,
    watch="the tree: who is the primary, and whose agent decides for the shard",
    looks=lambda stage: (
        PageHint("every metric is below its threshold", "/"),
        PageHint("the clients, and the answers that they get", "/clients"),
    ),
    play=_play,
)
