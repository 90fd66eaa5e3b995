"""One job has to be through: everybody else is thinned, by one rule with an end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from headgate.demo.scenes import seen
from headgate.demo.scenes.flood import REPLAY_SHARE
from headgate.demo.stage import ALWAYS, ETL, FAVOR_RATIO, MIGRATION, Frame, Scenery, Stage
from headgate.demo.tour import Look, Promise, Run, Scene

CROWDED_S, CALM_S, FAVORED_S = 2.0, 0.5, 3.0
THIN = 0.5
"""Of its checks, how many may get through to the metrics at most for it to be thinned."""
THINNED = {"app": ETL, "database": "main", "metrics": "shard/lag"}


def _says(stage: Stage) -> str:
    return (
        "A migration comes on top, and is held like the others. `headgate favor migration`: the "
        f"others have {FAVOR_RATIO:.0%} of their checks refused by dice, for half an hour at most. "
        "The migration gets through, ETL is thinned, and the replica keeps up."
    )


def _play(run: Run) -> Sequence[Promise]:
    stage = run.stage
    working = ALWAYS | {MIGRATION}
    stage.arrange(Scenery(slow_share=REPLAY_SHARE, working=working))
    run.tell("migration:customers starts, beside the others")
    crowded = run.watch(CROWDED_S, lambda frames: MIGRATION in seen.held(frames))
    stage.arrange(Scenery(slow_share=REPLAY_SHARE, working=working, favored=True))
    run.tell(f"headgate favor migration --over all --ratio {FAVOR_RATIO:g}: {stage.rules[0]}")
    run.watch(CALM_S, lambda frames: seen.is_calm(frames[-1]))
    favored = run.watch(FAVORED_S, lambda frames: _leads(frames, 2.0))
    return promises(crowded, favored, _thinned_by(stage))


def _leads(frames: Sequence[Frame], times: float) -> bool:
    others = max(seen.chunks(frames, job) for job in ALWAYS)
    return seen.chunks(frames, MIGRATION) > times * others


def _thinned_by(stage: Stage) -> str:
    """What the agent answers to one that stands behind it: the rule, by its name."""
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
    done = {job: seen.chunks(favored, job) for job in (MIGRATION, *sorted(ALWAYS))}
    told = ", ".join(f"{name} {count} chunks" for name, count in done.items())
    others = max(count for name, count in done.items() if name != MIGRATION)
    return [
        Promise("unfavoured, the migration was held as anybody", MIGRATION in seen.held(crowded)),
        Promise(
            f"favoured, it got through and the others were thinned: {told}",
            done[MIGRATION] > 2 * others,
        ),
        Promise(f"explain names the rule that thins ETL: {rule or 'none'}", bool(rule)),
    ]


SCENE = Scene(
    title="Favour the migration",
    says=_says,
    watch="chunks a second: the migration runs, the others come through now and then",
    looks=lambda stage: (
        Look("the pair of rules, and the time they have left", "/rules"),
        Look("ETL: its chance, and the rule it is by", f"/clients/{ETL}"),
        Look("what thins it, step by step", f"/explain?{urlencode(THINNED)}"),
        Look("who set it, and when", "/audit"),
    ),
    play=_play,
)
