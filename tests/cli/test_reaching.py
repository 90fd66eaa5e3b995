"""Rules and budgets with a reach from the command line: shown, asked for, and then set."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import Ran, Run
from tests.cli.scripted import Heard, Reply, ScriptedAgent
from tests.cli.terminal import terminal
from tests.cli.test_budgets import budget, changed
from tests.cli.test_changes import REACHED, said
from tests.cli.test_rules import RULES, rule
from tests.fixtures.eventually import eventually

SAYS = str(REACHED["says"])
HALF = ("rule", "ratio", "etl", "0.5")


def of_fleet(heard: Heard) -> Reply:
    """As an agent answers that passes it on to its fleet."""
    reach = heard.body.get("reach") if heard.method == "POST" else "fleet"
    n = None if reach is None else 14
    reached = None if reach is None else REACHED
    document = rule("f-1a2b3c", reach=reach, n=n, reached=reached)
    if heard.method == "DELETE" or heard.path.endswith("/favor"):
        document = {"rules": [document], "rejected": [], "reached": reached}
    return Reply(document, headers={"ETag": '"14"'})


@pytest.fixture
def agent(scripted: ScriptedAgent) -> ScriptedAgent:
    for method, path in (
        ("POST", RULES),
        ("POST", f"{RULES}/favor"),
        ("GET", f"{RULES}/f-1a2b3c"),
        ("PATCH", f"{RULES}/f-1a2b3c"),
        ("DELETE", f"{RULES}/f-1a2b3c"),
    ):
        scripted.replies[method, path] = of_fleet
    return scripted


def changes(agent: ScriptedAgent) -> list[Heard]:
    asked = ("POST", "PUT", "PATCH", "DELETE")
    return [h for h in agent.heard if h.method in asked and h.path != "/v1/replay"]


@pytest.mark.parametrize(
    ("command", "options", "reach"),
    [
        (HALF, ("--fleet",), "fleet"),
        (("rule", "hold", "etl", "--reason", "x"), ("--region", "eu-*"), "region:eu-*"),
        (("hold", "etl", "--reason", "x"), ("--cluster", "shop"), "cluster:shop"),
        (
            ("rule", "exempt", "etl", "--justification", "incident", "--reason", "x"),
            ("--shard", "commerce/*"),
            "shard:commerce/*",
        ),
        (("rule", "metrics", "etl", "lag"), ("--host", "db-1"), "host:db-1"),
        (("rule", "thresholds", "etl", "lag=2s"), ("--fleet",), "fleet"),
        (("favor", "etl"), ("--shard", "commerce/-80"), "shard:commerce/-80"),
    ],
    ids=lambda part: " ".join(part[:2]) if isinstance(part, tuple) else part,
)
def test_every_command_that_sets_a_rule_takes_a_reach(
    run: Run, agent: ScriptedAgent, command: tuple[str, ...], options: tuple[str, ...], reach: str
) -> None:
    assert run(*command, *options, "--yes").code == 0
    (made,) = changes(agent)
    assert (made.body["reach"], made.query) == (reach, {})


@pytest.mark.parametrize(
    "command",
    [
        (*HALF, "--fleet"),
        ("favor", "etl", "--fleet"),
        ("rule", "lift", "f-1a2b3c"),
        ("rule", "extend", "f-1a2b3c", "--for", "2h"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_change_says_where_it_applies_without_a_confirmation(
    run: Run, agent: ScriptedAgent, command: tuple[str, ...]
) -> None:
    """A script says yes beforehand, and has seen no preview."""
    assert SAYS in said(run(*command, "--yes"))


def test_a_rule_of_the_fleet_is_suspended_at_one_agent(run: Run, agent: ScriptedAgent) -> None:
    path = f"{RULES}/f-1a2b3c/suspension"
    resting = rule("f-1a2b3c", reach="fleet", n=14, suspended="by ann at this agent: etcd is away")
    document = {"rules": [resting], "rejected": [], "reached": None}
    agent.says(path, document, method="PUT")
    agent.says(
        path, {**document, "rules": [rule("f-1a2b3c", reach="fleet", n=14)]}, method="DELETE"
    )
    ran = run("rule", "suspend", "f-1a2b3c", "--reason", "etcd is away")
    assert (ran.code, agent.heard[-1].body) == (0, {"reason": "etcd is away"})
    assert "SUSPENDED HERE" in ran.out and "SUSPENDED: by ann" in ran.out
    ran = run("rule", "resume", "f-1a2b3c")
    assert (ran.code, agent.heard[-1].method) == (0, "DELETE") and "IN FORCE AGAIN" in ran.out
    assert run("rule", "suspend", "f-1a2b3c").code == 2, "a reason is needed"


def test_a_change_that_reaches_nobody_says_so_first(run: Run, agent: ScriptedAgent) -> None:
    """A host's name that was mistyped."""
    says = "matches no registered agent now; it applies to agents that register later"
    nobody = {**REACHED, "reach": "host:typo", "shards": 0, "hosts": 0, "sample": [], "says": says}
    document = rule("f-1a2b3c", reach="host:typo", n=14, reached=nobody)
    agent.replies["POST", RULES] = lambda _: Reply(document)
    ran = run(*HALF, "--host", "typo", "--yes")
    assert "SET" in ran.out and "NOBODY host:typo: matches no registered agent" in said(ran)


def test_without_a_reach_there_is_no_confirmation_and_no_text_about_one(
    run: Run, agent: ScriptedAgent
) -> None:
    assert run(*HALF).code == 0
    (made,) = changes(agent)
    assert "reach" not in made.body


def test_a_preview_says_where_it_applies(run: Run, agent: ScriptedAgent) -> None:
    for command in (HALF, ("favor", "etl")):
        agent.heard.clear()
        ran = run(*command, "--shard", "commerce/*", "--dry-run")
        assert ran.code == 0 and f"shard:commerce/*: {SAYS}" in said(ran)
        assert [heard.query for heard in changes(agent)] == [{"dry_run": "true"}]


def test_a_script_has_to_say_yes_after_it_saw_where_it_would_apply(
    run: Run, agent: ScriptedAgent
) -> None:
    ran = run(*HALF, "--shard", "commerce/*")
    assert ran.code == 2 and "--yes" in ran.err
    assert f"shard:commerce/*: {SAYS}" in ran.err
    assert [heard.query for heard in changes(agent)] == [{"dry_run": "true"}]


def test_a_no_on_a_terminal_sets_nothing(agent: ScriptedAgent) -> None:
    with terminal(*HALF, "--fleet", HEADGATE_URL=agent.url) as shown:
        eventually(lambda: "Change it for fleet?" in shown.text)
        assert "reaches 37 shards" in shown.text
        shown.press(b"n\n")
        assert shown.wait() == 1
    assert [heard.query for heard in changes(agent)] == [{"dry_run": "true"}]


@pytest.mark.parametrize(
    ("command", "method"),
    [
        (("rule", "lift", "f-1a2b3c"), "DELETE"),
        (("rule", "extend", "f-1a2b3c", "--for", "2h"), "PATCH"),
        (("rule", "change", "f-1a2b3c", "--ratio", "0.9"), "PATCH"),
    ],
)
def test_a_rule_of_the_fleet_is_not_changed_without_a_yes(
    run: Run, agent: ScriptedAgent, command: tuple[str, ...], method: str
) -> None:
    agent.replies["PATCH", f"{RULES}/f-1a2b3c"] = fleet_rule
    ran = run(*command)
    assert ran.code == 2 and SAYS in ran.err
    assert [heard.query for heard in changes(agent)] == [{"dry_run": "true"}]
    assert run(*command, "--yes").code == 0
    made = changes(agent)[-1]
    assert (made.method, made.query, made.headers["if-match"]) == (method, {}, '"14"')


def fleet_rule(heard: Heard) -> Reply:
    document: dict[str, Any] = rule("f-1a2b3c", reach="fleet", n=14, reached=REACHED)
    return Reply(document)


# --- budgets -----------------------------------------------------------------------------------

ETL = "/v1/budgets/all/etl"


def budget_changed(heard: Heard) -> Reply:
    dry_run = heard.query.get("dry_run") == "true"
    told = changed(dry_run=dry_run, reach=heard.query["reach"], reached=REACHED, published=[])
    return Reply(told, headers={"ETag": '"14"'})


@pytest.fixture
def keeper(scripted: ScriptedAgent) -> ScriptedAgent:
    of_fleet = budget(origin="fleet", reach="fleet", n=14, counts=None, buckets=[], revision=14)
    scripted.says(ETL, of_fleet, headers={"ETag": '"14"'})
    for method in ("PUT", "PATCH", "DELETE"):
        scripted.replies[method, ETL] = budget_changed
    return scripted


@pytest.mark.parametrize(
    ("command", "method", "condition"),
    [
        (("create", "all", "etl", "rate=20"), "PUT", ("if-none-match", "*")),
        (("set", "all", "etl", "rate=30"), "PATCH", ("if-match", '"14"')),
        (("mode", "all", "etl", "enforce"), "PATCH", ("if-match", '"14"')),
        (("delete", "all", "etl"), "DELETE", ("if-match", '"14"')),
    ],
    ids=lambda part: part[0] if isinstance(part, tuple) else part,
)
def test_a_budget_of_the_fleet_is_shown_confirmed_and_built_on_what_was_seen(
    run: Run,
    keeper: ScriptedAgent,
    command: tuple[str, ...],
    method: str,
    condition: tuple[str, str],
) -> None:
    ran = run("budget", *command, "--fleet")
    assert ran.code == 2 and f"fleet: {SAYS}" in ran.err
    assert [heard.query for heard in changes(keeper)] == [{"reach": "fleet", "dry_run": "true"}]
    ran = run("budget", *command, "--fleet", "--dry-run")
    assert ran.code == 0 and f"fleet: {SAYS}" in said(ran)
    assert run("budget", *command, "--fleet", "--yes").code == 0
    made = changes(keeper)[-1]
    assert (made.method, made.query) == (method, {"reach": "fleet"})
    assert made.headers[condition[0]] == condition[1]


def test_a_budget_with_a_reach_names_no_database(run: Run, keeper: ScriptedAgent) -> None:
    """It is for every database that its reach matches: one that is named would mean less."""
    for command in (("create", "main", "etl", "rate=20"), ("delete", "main", "etl")):
        for reach in (("--fleet",), ("--shard", "commerce/*")):
            ran = run("budget", *command, *reach, "--yes")
            assert ran.code == 2 and "write `all`" in said_err(ran)
    assert keeper.heard == []


def test_a_budget_of_one_shard_or_agent_may_name_the_database(
    run: Run, keeper: ScriptedAgent
) -> None:
    for reach in (("--shard", "commerce/-80"), ("--host", "db-1")):
        run("budget", "create", "main", "etl", "rate=20", *reach, "--dry-run")
        query = {"reach": f"{reach[0][2:]}:{reach[1]}", "dry_run": "true"}
        assert (keeper.heard[-1].path, keeper.heard[-1].query) == ("/v1/budgets/main/etl", query)


def test_a_budget_of_the_fleet_says_so(run: Run, keeper: ScriptedAgent) -> None:
    ran = run("budget", "show", "all", "etl", "--fleet")
    assert keeper.heard[-1].query == {"reach": "fleet"}
    assert "set for fleet, revision 14" in ran.out


def said_err(ran: Ran) -> str:
    return " ".join(ran.err.replace("│", " ").split())


@pytest.mark.parametrize(
    "options",
    [("--fleet", "--shard", "x"), ("--shard", ""), ("--region", "a b"), ("--host", "é")],
    ids=str,
)
def test_an_invalid_reach_is_rejected_before_any_agent_is_contacted(
    run: Run, agent: ScriptedAgent, options: tuple[str, ...]
) -> None:
    ran = run(*HALF, *options)
    assert ran.code == 2 and agent.heard == []


# --- metrics -------------------------------------------------------------------------------------

EVERY_LAG = "/v1/databases/%2A/metrics/lag"


def wide_metric(heard: Heard) -> Reply:
    state = {"DELETE": "removed", "POST": "reverted"}.get(heard.method, "set")
    return Reply(
        {
            "database": "*",
            "metric": "lag",
            "reach": heard.query["reach"],
            "state": state,
            "settings": heard.body or {},
            "revision": 4,
            "dry_run": heard.query.get("dry_run") == "true",
            "expires_at": None,
            "advice": ["warning */lag: validated with main/lag of this agent [validated]"],
            "reached": REACHED,
            "copies": None,
        }
    )


@pytest.mark.parametrize(
    ("command", "method", "path", "done"),
    [
        (("set", "*", "lag", "threshold=5s"), "PATCH", EVERY_LAG, "SET"),
        (("add", "*", "lag", "threshold=5s"), "PUT", EVERY_LAG, "SET"),
        (("remove", "*", "lag", "--for", "2h"), "DELETE", EVERY_LAG, "REMOVED"),
        (("revert", "*", "lag"), "POST", f"{EVERY_LAG}/revert", "REVERTED"),
    ],
)
def test_a_metric_is_changed_for_all_after_its_reach_was_shown(
    run: Run,
    scripted: ScriptedAgent,
    command: tuple[str, ...],
    method: str,
    path: str,
    done: str,
) -> None:
    scripted.replies[method, path] = wide_metric
    ran = run("metrics", *command, "--region", "eu-*", "--yes")
    (heard,) = changes(scripted)
    assert heard.query["reach"] == "region:eu-*" and "dry_run" not in heard.query
    assert heard.query.get("for") == ("2h" if method == "DELETE" else None)
    assert f"{done}  */lag for region:eu-*" in ran.out and SAYS in ran.out
    assert "validated with main/lag" in ran.out
    ran = run("metrics", *command, "--region", "eu-*", "--dry-run")
    assert f"WOULD BE {done}" in ran.out and changes(scripted)[-1].query["dry_run"] == "true"
    ran = run("metrics", *command, "--fleet")
    assert ran.code == 2 and SAYS in ran.err and "--yes" in ran.err
