"""A DAG that starts when the database has room, and checks before each task that works in it.

HEADGATE_URL=http://127.0.0.1:8087 python examples/airflow_dag.py      # runs it once, here
"""

from __future__ import annotations

from airflow.sdk import dag, task

from headgate.integrations.airflow import HeadgateSensor, throttled


@dag(schedule=None, catchup=False)
def nightly_orders() -> None:
    # Deferred while it is rejected: takes no worker slot. As gate:nightly_orders:airflow.
    gate = HeadgateSensor(task_id="gate", database="main", headgate={"max_wait_s": 3600})

    @task
    @throttled(database="main", max_wait_s=600)
    def load() -> int:
        return 42

    gate >> load()


nightly = nightly_orders()

if __name__ == "__main__":
    nightly.test()
