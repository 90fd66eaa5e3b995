"""A DAG that starts when the database can bear it, and asks before each task that works in it.

HEADGATE_URL=http://127.0.0.1:8087 python examples/airflow_dag.py      # runs it once, here
"""

from __future__ import annotations

from airflow.sdk import dag, task

from headgate.integrations.airflow import HeadgateSensor, throttled


@dag(schedule=None, catchup=False)
def nightly_orders() -> None:
    # Deferred while it is refused: no worker's slot is taken. As bear:nightly_orders:airflow.
    bear = HeadgateSensor(task_id="bear", database="main", headgate={"max_wait_s": 3600})

    @task
    @throttled(database="main", max_wait_s=600)
    def load() -> int:
        return 42

    bear >> load()


nightly = nightly_orders()

if __name__ == "__main__":
    nightly.test()
