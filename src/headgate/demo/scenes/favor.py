"""One job has to finish: a rule with an end throttles all the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from headgate.demo.scenes.flood import REPLAY_SHARE
from headgate.demo.stage import ALWAYS, ETL, FAVOR_RATIO, MIGRATION, Frame, Scenery, Stage
from headgate.demo.tour import PageHint, Promise, ScenePlay, TourScene, chunks_of, held_in, is_calm

CROWDED_S, CALM_S, FAVORED_S = 2.0, 0.5, 3.0
THIN = 0.5
"""At most this share of its checks may get through to the metrics for it to be throttled."""
THINNED = {"app": ETL, "database": "main", "metrics": "shard/lag"}


def _says(stage: Stage) -> str:
    return (
        "A migration comes on top, and is throttled like the others. `headgate favor migration`: a "
        f"rule rejects {FAVOR_RATIO:.0%} of the others' checks by dice, for half an hour at most. "
        "The migration gets through, ETL is throttled, and the replica keeps up."
    )


def _play(run: ScenePlay) -> Sequence[Promise]:
    stage = run.stage
    working = ALWAYS | {MIGRATION}
    stage.arrange(Scenery(slow_share=REPLAY_SHARE, working=working))
    run.tell("migration:customers starts, beside the others")
    crowded = run.watch(CROWDED_S, lambda frames: MIGRATION in held_in(frames))
    stage.arrange(Scenery(slow_share=REPLAY_SHARE, working=working, favored=True))
    run.tell(f"headgate favor migration --over all --ratio {FAVOR_RATIO:g}: {stage.rules[0]}")
    run.watch(CALM_S, lambda frames: is_calm(frames[-1]))
    favored = run.watch(FAVORED_S, lambda frames: _leads(frames, 2.0))
    return promises(crowded, favored, _thinned_by(stage))


def _leads(frames: Sequence[Frame], times: float) -> bool:
    others = max(chunks_of(frames, job) for job in ALWAYS)
    return chunks_of(frames, MIGRATION) > times * others


def _thinned_by(stage: Stage) -> str:
    """What the agent answers to a client that the rule applies to: the rule, by its name."""
    found = stage.speaker.get(f"/v1/explain?{urlencode(THINNED)}")
    return thinned_by(found, stage.rules)


def thinned_by(found: Mapping[str, Any], rules: Sequence[str]) -> str:
    """The one of them that applies; none where most checks get through for all that."""
    odds = found["odds"]
    if odds is None or odds > THIN:
        return ""
    applied = [match["rule"] for match in found["matched"] if match["state"] == "applies"]
    return next((str(rule) for rule in applied if rule in rules), "")


def promises(crowded: Sequence[Frame], favored: Sequence[Frame], rule: str) -> list[Promise]:
    done = {job: chunks_of(favored, job) for job in (MIGRATION, *sorted(ALWAYS))}
    told = ", ".join(f"{name} {count} chunks" for name, count in done.items())
    others = max(count for name, count in done.items() if name != MIGRATION)
    return [
        Promise("not favored, the migration was throttled, too", MIGRATION in held_in(crowded)),
        Promise(
            f"favored, it got through and the others were throttled: {told}",
            done[MIGRATION] > 2 * others,
        ),
        Promise(f"explain names the rule that throttles ETL: {rule or 'none'}", bool(rule)),
    ]


SCENE = TourScene(
    title="Favor the migration",
    says=_says,
    watch="chunks a second: the migration runs, the others come through now and then",
    looks=lambda stage: (
        PageHint("the pair of rules, and the time they have left", "/rules"),
        PageHint("ETL: its chance, and the rule it is by", f"/clients/{ETL}"),
        PageHint("what throttles it, step by step", f"/explain?{urlencode(THINNED)}"),
        PageHint("who set it, and when", "/audit"),
    ),
    play=_play,
)
