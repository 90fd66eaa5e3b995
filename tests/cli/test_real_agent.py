"""Commands at a real agent: what `--json` prints is what the reference says; names complete."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import typer

from headgate.__main__ import main
from headgate.cli import completing
from headgate.cli.reference import DOCUMENTS
from headgate.demo import servers
from tests.fixtures.agents import AgentProcess, reserve_port
from tests.fixtures.api import validator
from tests.fixtures.eventually import DEADLINE_S, eventually

SETTINGS = """
[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 dbname=none"
[databases.main.metrics.queue]
command = ["cat", "{folder}/queue"]
threshold = 5
interval_s = 0.2
timeout_s = 20
max_age_s = 600
[databases.main.traffic]
policy = "{folder}/policy.toml"
directory = "{folder}/pg_headgate"
"""
POLICY = '[[budgets]]\nname = "web"\nburst = 50\n[[budgets.rules]]\nmatch = { username = "web" }\n'
CHANGES = '[[rules]]\nid = "nightly-etl"\ntarget = "etl"\nkind = "ratio"\nratio = 0.5\nfor = "1h"\n'
RULE = 'target = "etl"\nkind = "ratio"\nratio = 0.5\n'
ETL = {"rate": 20, "capacity": 200, "rules": [{"match": {"username": "etl"}}]}

HOLD = ("etl", "--reason", "INC-4", "--dry-run")
CALLS: Mapping[str, tuple[str, ...]] = {
    "audit": (),
    "budget create": ("main", "b", "rate=20%", "capacity=2s", "--match", "username=b", "--dry-run"),
    "budget delete": ("main", "etl", "--dry-run"),
    "budget explain": ("main", "select 1", "--user", "web"),
    "budget forgive": ("main", "etl", "--dry-run"),
    "budget list": (),
    "budget mode": ("main", "etl", "off", "--dry-run"),
    "budget replay": ("main",),
    "budget set": ("main", "etl", "rate=30%", "--dry-run"),
    "budget show": ("main", "etl"),
    "budget violations": ("main", "--budget", "etl"),
    "changes apply": ("{folder}/changes.toml", "--dry-run"),
    "changes diff": ("{folder}/policy.toml", "--policy-of", "main"),
    "changes history": (),
    "changes list": (),
    "changes rollback": ("0", "--dry-run"),
    "check": ("--as", "web:cart"),
    "clients": (),
    "explain": ("--as", "web:cart"),
    "favor": ("web", "--over", "etl", "--dry-run"),
    "history": ("web", "--database", "all"),
    "hold": HOLD,
    "metrics add": ("main", "loadavg", "threshold=100", "--dry-run"),
    "metrics list": ("main",),
    "metrics remove": ("main", "queue", "--dry-run"),
    "metrics revert": ("main", "queue", "--dry-run"),
    "metrics set": ("main", "queue", "threshold=9", "--dry-run"),
    "metrics show": ("main", "queue"),
    "page": (),
    "rejections": ("etl",),
    "reload": (),
    "replay": ("--with", "{folder}/rule.toml"),
    "rule change": ("{rule}", "--ratio", "60%", "--dry-run"),
    "rule exempt": (*HOLD, "--justification", "incident"),
    "rule extend": ("{rule}", "--for", "2h", "--dry-run"),
    "rule hold": HOLD,
    "rule lift": ("{rule}", "--dry-run"),
    "rule metrics": ("etl", "queue", "--dry-run"),
    "rule ratio": ("etl", "50%", "--dry-run"),
    "rule show": ("{rule}",),
    "rule thresholds": ("etl", "queue=2", "--dry-run"),
    "rules": (),
    "starvation": (),
    "status": (),
    "wake": ("main",),
}
ELSEWHERE = {
    *("changes restore", "fleet reach", "fleet status", "rule resume", "rule suspend"),
    "state acknowledge",
    *(f"shard {name}" for name in ("add-peer", "handover", "remove-peer", "show", "skip")),
    *("shard take-back", "shard unskip"),
}
"""They need a fleet, a shard or a lost state: conftest.py holds each against its route."""


@pytest.fixture(autouse=True)
def a_slow_machine_completes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "TIMEOUT_S", DEADLINE_S)


@pytest.fixture(scope="module")
def real() -> Iterator[AgentProcess]:
    """With a metric, a policy, a rule, a budget and a client that checked."""
    folder = servers.make_folder(Path("/tmp"), "hg-")
    for name, text in (
        *(("queue", "1"), ("policy.toml", POLICY), ("changes.toml", CHANGES)),
        ("rule.toml", RULE),
    ):
        (folder / name).write_text(text)
    (folder / "pg_headgate").mkdir(mode=0o700)
    agent = AgentProcess(folder, reserve_port())
    agent.write_settings(SETTINGS.format(folder=folder))
    try:
        agent.start()
        eventually(lambda: agent.check(app="web:cart", metrics="queue")["verdict"] == "OK")
        rule = {"target": "etl", "kind": "ratio", "ratio": 0.5, "for": "1h"}
        assert agent.request("POST", "/v1/rules", rule, unix=True).status == 201
        assert agent.request("PUT", "/v1/budgets/main/etl", ETL, unix=True).status == 201
        yield agent
    finally:
        agent.end()


Called = Callable[..., str]


@pytest.fixture
def called(
    real: AgentProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Called:
    """What `headgate …` prints, over the agent's socket."""

    def call(*argv: str) -> str:
        monkeypatch.setenv("HEADGATE_URL", f"unix://{real.socket}")
        monkeypatch.setattr(sys, "argv", ["headgate", *argv])
        try:
            main()
        except SystemExit as end:
            told = capsys.readouterr()
            is_answer = argv[0] == "check" and end.code in (0, 10, 14)
            assert is_answer or not end.code, (argv, end.code, told.err)
            return told.out
        return capsys.readouterr().out

    return call


def test_every_command_with_a_document_is_called_here() -> None:
    assert {*CALLS, *ELSEWHERE} == set(DOCUMENTS)


@pytest.mark.parametrize("command", sorted(CALLS))
def test_json_is_the_document_that_the_reference_names(
    command: str, called: Called, real: AgentProcess
) -> None:
    rule = real.get("/v1/rules").json["rules"][0]["id"]
    given = [one.format(folder=real.folder, rule=rule) for one in CALLS[command]]
    document = json.loads(called(*command.split(), *given, "--json"))
    named = [{"$ref": f"#/components/schemas/{name}"} for name in DOCUMENTS[command].split()]
    faults = [one.message for one in validator({"anyOf": named}).iter_errors(document)]
    assert faults == []


@pytest.mark.parametrize(
    ("complete", "typed", "names"),
    [
        (completing.databases, "m", ["main"]),
        (completing.databases, "main,m", ["main,main"]),
        (completing.metrics, "qu", ["queue"]),
        (completing.metrics, "lag,qu", ["lag,queue"]),
        (completing.thresholds, "qu", ["queue="]),
        (completing.clients, "we", ["web", "web:cart"]),
        (completing.budgets, "", ["etl", "web"]),
        (completing.budgets_or_modes, "e", ["etl", "enforce"]),
    ],
)
@pytest.mark.parametrize("database", ["main", "all", None])
def test_the_agents_names_complete(
    real: AgentProcess, complete: completing.Complete, typed: str, names: list[str],
    database: str | None,
) -> None:  # fmt: skip
    if complete in (completing.budgets, completing.budgets_or_modes) and database != "main":
        return  # A budget is one database's.
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    context.params = {"url": f"unix://{real.socket}", "database": database}
    assert complete(context, typed) == names


def test_the_ids_of_rules_complete(real: AgentProcess) -> None:
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    context.params = {"url": f"unix://{real.socket}"}
    ids = [rule["id"] for rule in real.get("/v1/rules").json["rules"]]
    assert completing.rules(context, "") == sorted(ids)
