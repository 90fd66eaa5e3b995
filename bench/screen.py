"""What the live screen takes of a core: 500 clients of 4 databases, with counts that grow.

.venv/bin/python -m bench.screen [--seconds 30]

The processor's time of `headgate top` counts: until its first frame, and after it has started and
asked for all it shows.
"""

from __future__ import annotations

import argparse
import time
from itertools import cycle

from msgspec import json
from tests.cli.scripted import Heard, Reply, ScriptedAgent
from tests.cli.terminal import terminal
from tests.fixtures.eventually import eventually
from tests.tui.scenes import crowded, rule

from bench.load import cpu_s, resident_mb
from bench.report import table

VIEWS = {"overview": "metric", "clients": "500 clients", "rules": "r7"}
SETTLES_S = 8.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--view", choices=VIEWS)
    given = parser.parse_args()
    with crowded_agent().serving() as agent:
        views = [given.view] if given.view else list(VIEWS)
        rows = [(view, *at_rest(agent, view, given.seconds)) for view in views]
    print(table(("view", "start-up", "share of a core", "resident", "sent a second"), rows))


def crowded_agent() -> ScriptedAgent:
    agent = ScriptedAgent()
    status, looks = crowded(), []
    for look in range(120):
        for at, client in enumerate(status["clients"]):
            client["admitted"] += at % 5
            client["rejected"] += at % 3 if at % 7 == 0 else 0
            if client["rejected_for_s"] is not None:
                client["rejected_for_s"] += 1.0
        looks.append(Reply(json.encode({**status, "uptime_s": 1000.0 + look})))
    said = cycle(looks)

    def reply(_heard: Heard) -> Reply:
        return next(said)

    agent.replies["GET", "/v1/status"] = reply
    agent.says("/v1/rules", {"rules": [rule(), rule("r8")], "rejected": []})
    agent.says("/v1/starvation", {"window_s": 3600.0, "waterline": 0.05, "starved": []})
    return agent


def at_rest(agent: ScriptedAgent, view: str, seconds: float) -> tuple[str, str, str, str]:
    with terminal("top", "--view", view, HEADGATE_URL=agent.url) as shown:
        eventually(lambda: VIEWS[view] in shown.text)
        started_s = cpu_s(shown.process.pid)
        time.sleep(SETTLES_S)
        shown.forget()
        before_s, began_s = cpu_s(shown.process.pid), time.monotonic()
        time.sleep(seconds)
        spent_s, passed_s = cpu_s(shown.process.pid) - before_s, time.monotonic() - began_s
        sent = len(shown.raw.encode()) / passed_s
        mb = resident_mb(shown.process.pid)
    return f"{started_s:.2f} s", f"{spent_s / passed_s:.2%}", f"{mb:.0f} MB", f"{sent:.0f} B"


if __name__ == "__main__":
    main()
