"""Airflow's own classes, and a whole DAG run. Skipped without it (132 packages, 265 MB):

pip install apache-airflow; pytest -W default tests/integrations/test_airflow.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("airflow.sdk", reason="apache-airflow is not installed")

from airflow.sdk.exceptions import TaskDeferred

from headgate.errors import HeadgateError
from headgate.integrations.airflow import HeadgateSensor, HeadgateTrigger
from tests.client import bodies
from tests.client.scripted import REJECTED, ScriptedAgent, answer

EXAMPLE = Path(__file__).parents[2] / "examples" / "airflow_dag.py"
LATER = answer(429, bodies.rejection(retry_after_ms=60_000), Retry_After="60")
CONTEXT: dict[str, Any] = {"ti": SimpleNamespace(task_id="bear", dag_id="orders")}


def sensor(**settings: Any) -> Any:
    return HeadgateSensor(task_id="bear", database="main", headgate={"max_wait_s": 5}, **settings)


async def fired(trigger: Any) -> Any:
    return [event.payload async for event in trigger.run()]


def test_an_admitted_sensor_makes_no_trigger(agent: ScriptedAgent) -> None:
    assert sensor().execute(CONTEXT) is None
    assert "app=bear%3Aorders%3Aairflow" in agent.heard[0].line


async def test_a_rejected_sensor_waits_in_the_triggerer(agent: ScriptedAgent) -> None:
    agent.script.plays.extend([REJECTED, REJECTED])
    with pytest.raises(TaskDeferred) as deferred:
        sensor().execute(CONTEXT)
    path, settings = deferred.value.trigger.serialize()
    assert path == "headgate.integrations.airflow.HeadgateTrigger"
    assert await fired(HeadgateTrigger(**settings)) == [{"admitted": True, "reason": ""}]


async def test_a_sensor_that_waits_too_long_fails_with_the_reason(agent: ScriptedAgent) -> None:
    agent.script.default = LATER
    (payload,) = await fired(HeadgateTrigger("a:b", {"database": "main", "max_wait_s": 0.1}))
    with pytest.raises(HeadgateError, match="lag is 7"):
        sensor().execute_complete(CONTEXT, payload)


def test_a_dag_runs_when_admitted(agent: ScriptedAgent, tmp_path: Path) -> None:
    agent.script.plays.append(REJECTED)
    (tmp_path / "dags").mkdir()
    dag = shutil.copy(EXAMPLE, tmp_path / "dags")
    env = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    for command in ([sys.executable, "-m", "airflow", "db", "migrate"], [sys.executable, dag]):
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, done.stdout + done.stderr
    asked = [heard.line.split("&")[0] for heard in agent.heard]
    name = "GET /v1/check?app={}%3Anightly_orders%3Aairflow"
    assert asked == [name.format("gate")] * 2 + [name.format("load")]
