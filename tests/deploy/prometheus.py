"""A real Prometheus, and whether all that deploy/ asks of one has an answer.

    with Prometheus.scraping({"headgate": ["127.0.0.1:8087"]}) as prometheus:
        unanswered(prometheus.url)

By hand, against any Prometheus that has the rules and scrapes agents (the demo's, say):

    python -m tests.deploy.prometheus --prometheus http://127.0.0.1:9090
    python -m tests.deploy.prometheus --agent 127.0.0.1:8087 --agent 127.0.0.1:8088 --seconds 60

The program is the distribution's, or that which scripts/lib.sh (set_up_prometheus) unpacked.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml  # type: ignore[import-untyped]

from headgate.demo import servers
from headgate.demo.servers import ServerFailed, ServerProcess, ServerSpec, ServiceUser
from tests.deploy.charts import LOADER

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "headgate.rules.yml"
EXAMPLE = ROOT / "deploy" / "prometheus" / "prometheus.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "headgate.json"
UNPACKED = ROOT / ".cache" / "prometheus" / "usr" / "bin"
ENV = servers.BASE_ENV | {"GOMAXPROCS": "2"}
ASK_TIMEOUT_S = 60.0
BY_NAME = {"$__rate_interval": "20s", "$__interval": "5s", "$__range": "1m"}


def program(name: str) -> str:
    """`prometheus` or `promtool`; the test is skipped where it is not to be had."""
    found = shutil.which(name)
    if found is None and (UNPACKED / name).exists():
        found = str(UNPACKED / name)
    if found is None:
        pytest.skip(f"{name} is not on this machine (scripts/test deploy fetches it where it can)")
    return found


# --- what is asked -------------------------------------------------------------------------------


class Asked(NamedTuple):
    where: str
    """Panel, variable, annotation or rule."""
    expr: str
    """As Prometheus gets it."""

    def __str__(self) -> str:
        return f"{self.where}: {self.expr}"


@cache
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


@cache
def rules() -> list[dict[str, Any]]:
    groups = yaml.load(RULES.read_text(), LOADER)["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def asked_by_rules() -> list[Asked]:
    return [Asked(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]


def asked_by_panels() -> list[Asked]:
    found = dashboard()
    asked = [
        Asked(panel["title"], target["expr"])
        for panel in found["panels"]
        for target in panel.get("targets", ())
    ]
    asked += [Asked(one["name"], one["expr"]) for one in found["annotations"]["list"]]
    return [Asked(where, filled_in(expr, found)) for where, expr in asked]


def asked_by_variables() -> list[Asked]:
    """label_values(SELECTOR, LABEL): the dashboard's menus."""
    found = dashboard()
    asked = []
    for variable in found["templating"]["list"]:
        if variable["type"] == "query":
            selector = variable["definition"].removeprefix("label_values(").rpartition(",")[0]
            asked.append(Asked(f"${variable['name']}", filled_in(selector, found)))
    return asked


def filled_in(expr: str, board: Mapping[str, Any]) -> str:
    """As Grafana does, with every variable at `All`."""
    for name, value in BY_NAME.items():
        expr = expr.replace(name, value)
    for variable in board["templating"]["list"]:
        expr = expr.replace(f"${variable['name']}", ".*")
    assert "$" not in expr, f"a variable that the dashboard does not have: {expr}"
    return expr


# --- who answers -----------------------------------------------------------------------------


def ask(url: str, path: str, **query: str) -> Any:
    whole = f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(whole, timeout=ASK_TIMEOUT_S) as reply:
            return json.load(reply)["data"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{query}: {json.load(error)['error']}") from None


def answers(url: str, expr: str) -> list[dict[str, str]]:
    """Labels of the series that an expression has now; AssertionError where it does not parse."""
    data = ask(url, "query", query=expr)
    if data["resultType"] == "scalar":
        return [{}]
    return [one["metric"] for one in data["result"]]


def unanswered(url: str, asked: Sequence[Asked]) -> list[Asked]:
    """Those without data. All of them parse."""
    return [one for one in asked if not answers(url, one.expr)]


def answered_within(url: str, expr: str, seconds: float) -> list[dict[str, str]]:
    """The same, of any moment of the last while: a rule may have come and gone."""
    now_s = time.time()
    span = {"start": f"{now_s - seconds:.3f}", "end": f"{now_s:.3f}", "step": "1"}
    return [one["metric"] for one in ask(url, "query_range", query=expr, **span)["result"]]


ABSENT_FOR_A_REASON = (
    ("headgate_proxy_", "headgate_proxy_build_info", "no proxy is scraped"),
    ("headgate_fleet_", "headgate_fleet_source", "there is no fleet"),
    ("headgate_budget", "headgate_budget_counters_readable", "there is no traffic control"),
    ("headgate_pace_", "headgate_pace_rate", "no metric is paced"),
    ("headgate_trace_", "headgate_trace_spans_total", "[tracing] is not set"),
    ("headgate_dice_waived", "headgate_dice_waived_total", "`fairness_max_wait_s` is not set"),
    ("headgate_heartbeat_failing", "headgate_heartbeats_total", "no heartbeat is written"),
    ("headgate_starved_", "headgate_starved_seconds", "nobody was starved"),
    ("headgate_alerts_", "headgate_alerts_total", "the agent told no alert of its own"),
    ("headgate_unthrottled_", "headgate_unthrottled_seconds", "nobody went without a throttler"),
    ("headgate_rule_", "headgate_rule_seconds_left", "no rule was in force"),
    ("headgate_metric_unavailable", "headgate_metric_unavailable", "everything was measured"),
    ("headgate_client_held_", "headgate_client_held_seconds", "nobody was held"),
    ("headgate_member_clock", "headgate_member_clock_ahead_seconds", "clocks are not compared"),
    ("ALERTS", 'ALERTS{alertstate="firing"}', "nothing was told for as long as an alert waits"),
)
"""(what an expression is about, the series without which it has no data, why it may have none)"""


def excuse(url: str, one: Asked, seconds: float) -> str:
    """Why an expression rightly has no data; empty where it should have some."""
    for about, needed, reason in ABSENT_FOR_A_REASON:
        if about in one.expr and not answered_within(url, needed, seconds):
            return reason
    return ""


@dataclass
class Prometheus:
    url: str
    process: ServerProcess

    @classmethod
    @contextmanager
    def scraping(
        cls, jobs: Mapping[str, Sequence[str]], folder: Path, *, every: str = "1s"
    ) -> Iterator[Prometheus]:
        """With the rules of deploy/, as they are. Gone, with its data, when the block ends."""
        home = Path(tempfile.mkdtemp(prefix="prometheus-", dir=folder))
        (home / RULES.name).write_bytes(RULES.read_bytes())
        config = home / "prometheus.yml"
        config.write_text(json.dumps(_config(jobs, every)))
        port, process = servers.launch_on_free_port(lambda port: _launch(home, port))
        try:
            yield cls(f"http://127.0.0.1:{port}", process)
        finally:
            process.signal(signal.SIGTERM)
            process.kill()
            servers.remove_folders([home])


def _config(jobs: Mapping[str, Sequence[str]], every: str) -> dict[str, Any]:
    """JSON is YAML."""
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [RULES.name],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(targets)}]}
            for job, targets in jobs.items()
        ],
    }


def _launch(home: Path, port: int) -> ServerProcess:
    spec = ServerSpec(
        argv=[
            program("prometheus"),
            "--config.file=prometheus.yml",
            f"--storage.tsdb.path={home / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ],
        cwd=home,
        log_path=home / "prometheus.log",
        folders=[home],
        env=ENV,
        user=ServiceUser(),  # Whoever we are: unlike a database's server, it minds nobody.
    )
    return servers.launch(spec, lambda _: _is_ready(port))


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=10.0) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


# --- by hand ---------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask all that the dashboard and the rules ask.")
    parser.add_argument("--prometheus", metavar="URL", help="one that runs already")
    parser.add_argument("--agent", metavar="HOST:PORT", action="append", default=[])
    parser.add_argument("--proxy", metavar="HOST:PORT", action="append", default=[])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="to scrape before asking, or to look back"
    )
    given = parser.parse_args()
    if given.prometheus:
        return report(given.prometheus, given.seconds)
    jobs = {"headgate": given.agent, "headgate-proxy": given.proxy}
    with Prometheus.scraping(jobs, Path(tempfile.gettempdir())) as prometheus:
        time.sleep(given.seconds)
        return report(prometheus.url, given.seconds)


def report(url: str, seconds: float) -> int:
    """0: every panel has had data, or has none for a reason. Alerts that found something, and
    panels without data, are named."""
    for one in asked_by_rules():
        found = answered_within(url, one.expr, seconds)
        print(f"{'found' if found else '-':6}{one.where:34}{_told(found)}")
    asked = [*asked_by_panels(), *asked_by_variables()]
    empty = [one for one in asked if not answered_within(url, one.expr, seconds)]
    excused = {one: reason for one in empty if (reason := excuse(url, one, seconds))}
    for reason, count in Counter(excused.values()).items():
        print(f"{count:3} without data: {reason}")
    for one in empty:
        if one not in excused:
            print(f"EMPTY {one}")
    print(f"{len(asked) - len(empty)} of {len(asked)} have data, {len(excused)} rightly none")
    return 1 if len(excused) < len(empty) else 0


def _told(found: Sequence[Mapping[str, str]]) -> str:
    shown = {"database", "metric", "client", "target", "cause", "budget", "instance"}
    return "; ".join(
        " ".join(f"{k}={v}" for k, v in one.items() if k in shown) for one in found[:3]
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ServerFailed as error:
        sys.exit(str(error))
