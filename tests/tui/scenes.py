"""What `top` knows at one instant: small, busy, and large."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType

from headgate.check.api import AuditsDoc, RejectionsDoc, StatusDoc
from headgate.cli.documents import read
from headgate.cli.render import UNICODE, Canvas
from headgate.history.api import StarvationDoc
from headgate.rules.api import RulesDoc
from headgate.tui.page import Moment, ScreenContext, still
from headgate.tui.sources import LastAnswer, Scene, ThrottledStrip
from headgate.tui.trend import Picture, Trend
from headgate.tui.views import VIEWS
from tests.cli import builders
from tests.cli.documents import STARVED

AROUND = ScreenContext(VIEWS, UNICODE)
NOW = Moment(100.0, datetime(2026, 3, 1, 3, 12, 7, tzinfo=UTC))


def rule(name: str = "r7", **given: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": name,
        "target": "etl",
        "kind": "hold",
        "says": "rejects every check of etl",
        "ratio": None,
        "order": None,
        "metrics": [],
        "thresholds": {},
        "justification": None,
        "ceiling": None,
        "reason": "it floods the replica",
        "database": None,
        "schedule": None,
        "created_at": "2026-03-01T02:00:00Z",
        "created_by": "ops",
        "expires_at": "2026-03-01T04:00:00Z",
        "left_s": 2880.0,
        "state": "in_force",
        "next_at": None,
        "suspended": None,
        "lifted_by": None,
        "pair": None,
        "clients": ["etl:nightly"],
        "clients_total": 1,
        "advice": [],
        "revision": 3,
        "reach": None,
        "n": None,
        "reached": None,
    }
    return {**values, **given}


def told(value: Any, **more: Any) -> LastAnswer:
    return LastAnswer(value, NOW.mono_s, tried_at_s=NOW.mono_s, **more)


def scene(document: dict[str, Any] | None = None, **given: LastAnswer) -> Scene:
    trend = Trend("http://127.0.0.1:8087")
    trend.take(read(StatusDoc, document or builders.busy_status()), 99.0)
    picture = trend.take(read(StatusDoc, document or builders.busy_status()), 99.5)
    rejection = {"at": "2026-03-01T03:12:00Z", "answer": builders.rejection()}
    change: dict[str, Any] = {
        "at": "2026-03-01T03:00:00Z",
        "who": "ops",
        "action": "rule.set",
        "target": "r7",
    }
    change |= {"before": None, "after": {"ratio": 0.5}}
    starved = {"window_s": 3600.0, "waterline": 0.05, "starved": [STARVED]}
    values = {
        "rules": told(read(RulesDoc, {"rules": [rule(), rule("r8")]})),
        "starvation": told(read(StarvationDoc, starved)),
        "rejections": told(read(RejectionsDoc, {"rejections": [rejection] * 50})),
        "audit": told(read(AuditsDoc, {"audit": [change] * 50})),
        **given,
    }
    strip = ThrottledStrip([None] * 10 + [0.0] * 10 + [0.3, 0.9] * 5, "shard/lag")
    return Scene(picture, values, {"etl:nightly": told(strip)})


def overview_of(
    picture: Picture, width: int = 110, height: int = 40, now_s: float = 20.0
) -> RenderableType:
    """The overview as `--once` prints it."""
    at = Moment(now_s, NOW.wall)
    return still(VIEWS["overview"], Scene(picture), Canvas(width), height, at)[0]


def crowded() -> dict[str, Any]:
    """500 clients, 20 replicas, 4 databases."""
    clients = [
        builders.client(
            f"team{at % 20}:job{at % 90}:w{at}",
            database=f"db{at % 4}",
            rejected_for_s=float(at) if at % 7 == 0 else None,
            rejected_by="shard/lag" if at % 7 == 0 else "",
        )
        for at in range(500)
    ]
    members = [builders.primary(), *(builders.member(f"db-{at:02}") for at in range(20))]
    databases = [builders.database(f"db{at}", shard=builders.shard()) for at in range(3)]
    crowd = builders.database("db3", shard=builders.shard(members=members))
    return builders.status(databases=[crowd, *databases], clients=clients)
