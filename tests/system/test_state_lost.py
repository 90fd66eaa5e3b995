"""A lost state opens no gate, and nobody can overlook it (B7); a full disk is told (B5, B6).

A real agent, killed -9, whose files are cut or deleted before it is started again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate.rules.notes import RULE_TIME
from tests.fixtures.agents import HOST_ONLY, AgentProcess
from tests.fixtures.eventually import eventually
from tests.fixtures.failing_disk import disk_of_2_mb, fill

HOLD = {"target": "etl", "kind": "hold", "reason": "INC-1", "for": "2h"}


@pytest.fixture
def held(agent: AgentProcess) -> AgentProcess:
    """A hold is acknowledged, and a stricter threshold; then the agent is killed."""
    agent.write_settings(HOST_ONLY)
    agent.start()
    eventually(agent.admitted)
    assert agent.request("POST", "/v1/rules", HOLD, unix=True).status == 201
    metric = "/v1/databases/main/metrics/loadavg"
    assert agent.request("PATCH", metric, {"threshold": 7e8}, unix=True).status == 200
    agent.kill()
    return agent


def state(agent: AgentProcess, suffix: str = "") -> Path:
    return agent.folder / f"state.db{suffix}"


def verdict(agent: AgentProcess, app: str) -> str:
    return str(agent.check(app=app)["verdict"])


def lose_both(agent: AgentProcess) -> None:
    os.truncate(state(agent), 9000)
    os.truncate(state(agent, "-wal"), 0)
    os.truncate(state(agent, ".copy"), 100)


def headgate(agent: AgentProcess, *arguments: str) -> str:
    command = [sys.executable, "-m", "headgate", *arguments, "--url", f"unix://{agent.socket}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("damage", ["cut", "no log", "gone", "all but the copy"])
def test_a_hold_outlives_a_damaged_state_file(held: AgentProcess, damage: str) -> None:
    if damage == "cut":
        os.truncate(state(held), 9000)
    if damage in ("no log", "all but the copy"):
        state(held, "-wal").unlink()
    if damage in ("gone", "all but the copy"):
        state(held).unlink()
    if damage == "all but the copy":
        state(held, ".lock").unlink()
    held.start()
    eventually(lambda: verdict(held, "web") == "OK")
    assert verdict(held, "job:etl") == "ON_HOLD"
    assert held.metric("loadavg")["threshold"] == 7e8
    assert held.get("/v1/status").json["state_lost"] is None


def test_a_lost_state_rejects_until_an_operator_acknowledges_it(held: AgentProcess) -> None:
    lose_both(held)
    held.start()
    for app in ("etl", "web", "job:etl"):
        answer = held.check(app=app)
        assert answer["verdict"] == "ON_HOLD"
        assert "the agent has lost its state" in answer["reason"]
    assert held.get("/check/web/mysql/main").status == 417
    assert held.get("/check-if-exists/web/mysql/main").status == 417
    assert held.get("/v1/snapshot?database=main").status == 503, "nobody decides by himself"
    told_everywhere(held, "every check is rejected")
    held.stop()
    held.start()
    assert verdict(held, "web") == "ON_HOLD", "a restart is no acknowledgement"

    assert held.request("POST", "/v1/state/acknowledge", {}).status == 401
    said = headgate(held, "state", "acknowledge")
    assert "ACKNOWLEDGED" in said and "a new state is begun, with nothing set" in said
    assert "state.db.lost-" in said
    eventually(lambda: verdict(held, "etl") == "OK")
    eventually(lambda: held.get("/readyz").status == 200)
    status = held.get("/v1/status").json
    assert (status["state_lost"], status["store"]["writable"]) == (None, True)
    assert [e["action"] for e in held.get("/v1/audit").json["audit"]] == ["state.acknowledged"]
    again = held.request("POST", "/v1/state/acknowledge", {}, unix=True)
    assert again.status == 412 and "nothing is lost" in again.json["detail"]
    assert held.request("POST", "/v1/rules", HOLD, unix=True).status == 201
    held.kill()
    held.start()
    eventually(lambda: verdict(held, "web") == "OK")
    assert verdict(held, "etl") == "ON_HOLD"


def test_a_file_whose_log_had_all_of_it_is_a_loss_without_that_log(held: AgentProcess) -> None:
    """Before the first checkpoint the file itself is a database without a table."""
    for suffix in ("", "-wal", "-shm"):
        state(held, suffix).unlink(missing_ok=True)
    with closing(sqlite3.connect(state(held))) as made:
        made.execute("PRAGMA journal_mode = WAL")
    assert state(held).stat().st_size > 0
    os.truncate(state(held, ".copy"), 100)
    held.start()
    assert verdict(held, "web") == "ON_HOLD"
    told_everywhere(held, "every check is rejected")


def told_everywhere(agent: AgentProcess, words: str) -> None:
    status = agent.get("/v1/status").json
    assert words in status["state_lost"]
    assert "headgate state acknowledge" in status["state_lost"]
    ready = agent.get("/readyz")
    assert ready.status == 503 and any(words in told for told in ready.json["waiting_for"])
    assert b"\nheadgate_state_lost 1.0\n" in agent.get("/metrics").body
    assert "state.lost" in agent.log()
    for page in ("/", "/banner"):
        assert words in agent.get(page).body.decode()
    assert "STATE LOST" in headgate(agent, "status")
    assert "STATE LOST" in headgate(agent, "top", "--once")


def test_by_the_file_it_admits_and_says_so_as_loudly(held: AgentProcess) -> None:
    held.write_settings(HOST_ONLY, 'state_lost = "file"')
    lose_both(held)
    held.start()
    eventually(lambda: verdict(held, "etl") == "OK")
    told_everywhere(held, "the settings file alone is in force")


def test_what_is_put_back_is_in_force_without_a_restart(held: AgentProcess) -> None:
    kept = {suffix: state(held, suffix).read_bytes() for suffix in ("", "-wal", ".copy")}
    lose_both(held)
    held.start()
    assert verdict(held, "web") == "ON_HOLD"
    for suffix in ("-wal", "-shm"):
        state(held, suffix).unlink(missing_ok=True)
    state(held, ".copy").write_bytes(kept[".copy"])
    new = held.folder / "put back"
    new.write_bytes(b"")
    new.rename(state(held))
    eventually(lambda: verdict(held, "web") == "OK")
    assert verdict(held, "job:etl") == "ON_HOLD"


def test_a_new_folder_is_no_loss(agent: AgentProcess) -> None:
    agent.write_settings(HOST_ONLY)
    agent.start()
    eventually(agent.admitted)
    assert agent.get("/readyz").status == 200


# --- a full disk -----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disk_of_2_mb(tmp_path / "small") as folder:
        yield folder


def test_on_a_full_disk_a_rule_can_be_lifted_and_nobody_is_sent_here(
    agent: AgentProcess, small_disk: Path
) -> None:
    agent.write_settings(HOST_ONLY)
    text = agent.settings.read_text().replace(f"{agent.folder}/state.db", f"{small_disk}/state.db")
    agent.settings.write_text(text)
    agent.start()
    eventually(agent.admitted)
    rule = agent.request("POST", "/v1/rules", HOLD, unix=True).json
    eventually(lambda: agent.get("/readyz").status == 200)
    fill(small_disk)

    def rejected() -> Any:
        long = {**HOLD, "target": "web", "reason": "x" * 400}
        return agent.request("POST", "/v1/rules", long, unix=True).status == 503

    eventually(rejected)
    eventually(lambda: agent.get("/readyz").status == 503)
    assert "full" in str(agent.get("/readyz").json["waiting_for"])
    lifted = agent.request("DELETE", f"/v1/rules/{rule['id']}", unix=True)
    assert lifted.status == 200, lifted.body
    assert verdict(agent, "etl") == "OK"
    (small_disk / "ballast").unlink()
    eventually(lambda: agent.get("/readyz").status == 200)
    agent.kill()
    agent.start()
    eventually(lambda: verdict(agent, "etl") == "OK")


# --- time ------------------------------------------------------------------------------------


def test_a_crash_with_the_clock_set_back_prolongs_no_rule(agent: AgentProcess) -> None:
    """N2: killed, down for 1000 s by the time since boot, and the clock is an hour behind."""
    agent.write_settings(HOST_ONLY)
    agent.start()
    eventually(agent.admitted)
    assert agent.request("POST", "/v1/rules", HOLD, unix=True).status == 201
    eventually(lambda: _entries(agent, RULE_TIME))
    agent.kill()
    changes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        RULE_TIME: _downtime,
        "items/wide/rule/": lambda item: {**item, "value": _an_hour_ahead(item["value"])},
    }
    with closing(sqlite3.connect(state(agent))) as store, store:
        for prefix, change in changes.items():
            [(key, value)] = store.execute(_VALUE, (prefix, f"{prefix}~")).fetchall()
            changed = json.dumps(change(json.loads(value))).encode()
            store.execute("UPDATE entries SET value = ? WHERE key = ?", (changed, key))
    agent.start()
    [rule] = agent.get("/v1/rules").json["rules"]
    assert rule["kind"] == "hold" and 0 < rule["left_s"] < 7200 - 1000


_VALUE = "SELECT key, value FROM entries WHERE key >= ? AND key < ?"


def _entries(agent: AgentProcess, prefix: str) -> list[Any]:
    with closing(sqlite3.connect(state(agent))) as store:
        return store.execute(_VALUE, (prefix, f"{prefix}~")).fetchall()


def _downtime(mark: dict[str, Any]) -> dict[str, Any]:
    boot_id, _, boot_s = mark["boot"].rpartition(" ")
    return {**mark, "wall_s": mark["wall_s"] + 3600, "boot": f"{boot_id} {float(boot_s) - 1000}"}


def _an_hour_ahead(rule: dict[str, Any]) -> dict[str, Any]:
    times = ("expires_at", "created_at", "set_at")
    later = {key: datetime.fromisoformat(rule[key]) + timedelta(hours=1) for key in times}
    return {**rule, **{key: at.isoformat() for key, at in later.items()}}
