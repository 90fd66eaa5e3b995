"""Rules through a real agent: what operators set, holds for real clients, and ends."""

from __future__ import annotations

import time

from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import eventually

METRICS = """
[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 dbname=none"
[databases.main.metrics.queue]
command = ["cat", "{file}"]
threshold = 5
interval_s = 0.2
timeout_s = 20
max_age_s = 60
"""


def started(agent: AgentProcess, value: float) -> AgentProcess:
    reading = agent.folder / "queue"
    reading.write_text(str(value))
    agent.write_settings(METRICS.format(file=reading))
    agent.start()
    eventually(lambda: agent.check()["verdict"] in ("OK", "THRESHOLD_EXCEEDED"))
    return agent


def put(agent: AgentProcess, **rule: object) -> dict[str, object]:
    reply = agent.request("POST", "/v1/rules", rule, unix=True)
    assert reply.status == 201, reply.body
    document: dict[str, object] = reply.json
    return document


def verdicts(agent: AgentProcess, app: str, count: int = 200) -> list[str]:
    return [agent.check(app=app)["verdict"] for _ in range(count)]


def test_a_hold_on_a_category_reaches_every_job_of_it_and_ends_on_time(
    agent: AgentProcess,
) -> None:
    """R65, R69, R84"""
    started(agent, 1)
    held = {"target": "etl", "kind": "hold", "reason": "INC-1"}
    rule = put(agent, **held, **{"for": "1h"})
    assert {agent.check(app=f"{n}:etl")["verdict"] for n in range(20)} == {"ON_HOLD"}
    assert agent.check(app="report")["verdict"] == "OK"
    assert agent.request("DELETE", f"/v1/rules/{rule['id']}", unix=True).status == 200
    before = time.monotonic()
    put(agent, **held, **{"for": "1s"})
    eventually(lambda: agent.check(app="job:etl")["verdict"] == "OK")
    assert time.monotonic() - before >= 0.9


def test_favored_over_all_others_and_never_over_the_database(agent: AgentProcess) -> None:
    """R71, R76: nobody passes while the metric is unhealthy, favoured or not."""
    started(agent, 1)
    favor = {"target": "migration", "over": "all", "ratio": 0.9, "for": "1h"}
    assert agent.request("POST", "/v1/rules/favor", favor, unix=True).status == 201
    others = verdicts(agent, "etl:nightly")
    assert 5 <= others.count("OK") <= 45 and "REJECTED_BY_RATIO" in others
    assert set(verdicts(agent, "u1:migration", 50)) == {"OK"}
    (agent.folder / "queue").write_text("9")
    eventually(lambda: agent.check(app="u1:migration")["verdict"] == "THRESHOLD_EXCEEDED")


def test_an_exemption_is_loud_and_stops_at_its_ceiling(agent: AgentProcess) -> None:
    """R78, R79"""
    started(agent, 9)
    assert agent.check(app="repair")["verdict"] == "THRESHOLD_EXCEEDED"
    put(agent, target="repair", kind="exempt", justification="incident", reason="INC-2")
    assert agent.check(app="repair")["verdict"] == "OK"
    assert agent.check(app="etl")["verdict"] == "THRESHOLD_EXCEEDED"
    assert any("repair" in told for told in agent.get("/v1/status").json["advice"])
    (agent.folder / "queue").write_text("99")
    eventually(lambda: agent.check(app="repair")["verdict"] == "THRESHOLD_EXCEEDED")


def test_rules_survive_a_kill(agent: AgentProcess) -> None:
    """R87, R141"""
    started(agent, 1)
    rule = put(agent, target="etl", kind="hold", reason="INC-3", **{"for": "1h"})
    agent.kill()
    agent.start()
    assert agent.check(app="etl")["verdict"] == "ON_HOLD"
    assert agent.request("DELETE", f"/v1/rules/{rule['id']}", unix=True).status == 200
    eventually(lambda: agent.check(app="etl")["verdict"] == "OK")
    audit = agent.get("/v1/audit").json["audit"]
    assert [entry["action"] for entry in audit][:2] == ["rule.lifted", "rule.set"]


def test_favor_survives_a_kill_whole_and_is_lifted_whole(agent: AgentProcess) -> None:
    """R76, R141"""
    started(agent, 1)
    favor = {"target": "migration", "ratio": 0.95, "for": "1h"}
    favored, reduced = agent.request("POST", "/v1/rules/favor", favor, unix=True).json["rules"]
    agent.kill()
    agent.start()
    rules = {rule["id"]: rule for rule in agent.get("/v1/rules").json["rules"]}
    assert rules[favored["id"]]["pair"] == reduced["id"] in rules
    stale = {"If-Match": '"1000"'}
    path = f"/v1/rules/{reduced['id']}"
    assert agent.request("DELETE", path, headers=stale, unix=True).status == 412
    assert len(agent.get("/v1/rules").json["rules"]) == 2
    seen = {"If-Match": f'"{reduced["revision"]}"'}
    assert agent.request("DELETE", path, headers=seen, unix=True).status == 200
    assert agent.get("/v1/rules").json["rules"] == []
    eventually(lambda: agent.check(app="etl")["verdict"] == "OK")  # The metric is read again.
    assert set(verdicts(agent, "etl", 40)) == {"OK"}


ELSEWHERE = """
[databases.orders]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 dbname=none"
[databases.orders.metrics.depth]
command = ["cat", "{file}"]
threshold = 5
"""


def test_a_new_name_for_each_check_escapes_no_rule_and_fills_nothing(agent: AgentProcess) -> None:
    """R69, R82: neither the dice nor their memory, neither counters nor labels."""
    reading = agent.folder / "queue"
    reading.write_text("1")
    settings = METRICS.format(file=reading) + ELSEWHERE.format(file=reading)
    agent.write_settings(settings, agent="max_clients = 50\nfairness_max_wait_s = 0.2")
    agent.start()
    eventually(lambda: agent.check()["verdict"] == "OK")
    put(agent, target="etl", ratio=0.999)
    asked = [agent.check(app=f"u{n}:etl") for n in range(300)]
    # One's own clock begins at one's first rejection: none of them has come to its turn.
    assert {answer["dice_waived"] for answer in asked} == {False}
    assert len(agent.get("/v1/clients").json["clients"]) <= 51
    labels = agent.get("/metrics").body.count(b'client="u')
    assert labels <= 50 * 10, labels
    # Who keeps its name gets its turn, and says so.
    eventually(lambda: agent.check(app="one:etl")["dice_waived"])
    reading.write_text("9")
    eventually(lambda: agent.check()["verdict"] == "THRESHOLD_EXCEEDED")
    eventually(lambda: waived_for(agent, "one:etl") == "THRESHOLD_EXCEEDED")
    assert b"headgate_dice_waived_total" in agent.get("/metrics").body


def waived_for(agent: AgentProcess, app: str) -> str | None:
    """The verdict of one whose dice were waived."""
    answer = agent.check(app=app)
    return str(answer["verdict"]) if answer["dice_waived"] else None


def test_nobody_is_locked_out_without_a_hold(agent: AgentProcess) -> None:
    """By a metric that is measured elsewhere, by a whole ratio, by a hold that is not said."""
    reading = agent.folder / "queue"
    reading.write_text("1")
    agent.write_settings(METRICS.format(file=reading) + ELSEWHERE.format(file=reading))
    agent.start()
    locks = [
        {"target": "all", "kind": "metrics", "metrics": ["queue"]},
        {"target": "all", "ratio": 1},
        {"target": "all", "kind": "hold", "reason": "INC-4"},
        {"target": "etl", "ratio": 1},
    ]
    told = [agent.request("POST", "/v1/rules", rule, unix=True) for rule in locks]
    assert [reply.status for reply in told] == [422] * 4
    assert "queue is not measured on orders" in told[0].json["faults"][0]
    put(agent, target="all", kind="metrics", metrics=["queue"], database="main")
    eventually(lambda: agent.check("orders")["verdict"] == "OK")
