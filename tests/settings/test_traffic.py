"""Traffic control in the settings file, and the policy file it names: read, or rejected by line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.base.clock import SystemClock
from headgate.budgets.assemble import traffic_plans
from headgate.commands import part_faults
from headgate.errors import InvalidSettings
from headgate.settings import document
from headgate.settings.agent import parse_settings
from headgate.settings.document import load_policy, read_policy

MAIN = '[databases.main]\nengine = "postgres"\ndsn = "host=db"\n'
GOOD = '[[budgets]]\nname = "etl"\nburst = 50\n\n[[budgets.rules]]\nmatch = { username = "etl" }\n'


def test_traffic_control_is_a_table_of_a_database() -> None:
    settings = parse_settings(
        f'{MAIN}[databases.main.traffic]\npolicy = "p.toml"\ndirectory = "/pg"\n'
    )
    traffic = settings.databases["main"].traffic
    assert traffic is not None
    assert (traffic.policy, traffic.directory) == (Path("p.toml"), Path("/pg"))
    assert parse_settings(MAIN).databases["main"].traffic is None
    off = parse_settings(f"{MAIN}[databases.main.traffic]\nenabled = false\n")
    assert off.databases["main"].traffic is None


def test_two_databases_of_one_server_have_one_policy() -> None:
    """Else each would put its own in the other's place, and the reader of one keep out the other's
    ("the disk may hang")."""
    second = MAIN.replace("main", "other")
    traffic = '[databases.{}.traffic]\ndirectory = "{}"\n'
    one, same = traffic.format("main", "/pg/traffic"), traffic.format("other", "/pg//traffic/")
    with pytest.raises(InvalidSettings) as rejected:
        parse_settings(MAIN + one + second + same)
    (fault,) = rejected.value.faults
    assert fault.place == "databases.other.traffic.directory" and fault.line == 10
    assert "databases.main.traffic" in fault.message and "one policy" in fault.message
    parse_settings(MAIN + one + second + traffic.format("other", "/pg2"))


def test_a_proxys_directory_serves_mysql_as_well() -> None:
    """R152: one policy, whatever enforces it."""
    text = f"{MAIN}[databases.main.traffic]\ndirectory = '/proxy'\n".replace("postgres", "mysql")
    traffic = parse_settings(text).databases["main"].traffic
    assert traffic is not None and traffic.directory == Path("/proxy")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{MAIN}[databases.main.traffic]\npolici = 'x'\n", "line 5.*did you mean 'policy'"),
        (f"{MAIN}[databases.main.traffic]\ndirectory = 7\n", "line 5.*must be a string"),
        (f"{MAIN}traffic = 7\n", "must be a table"),
    ],
)
def test_a_table_that_is_wrong_is_rejected_by_its_line(text: str, told: str) -> None:
    with pytest.raises(InvalidSettings, match=told):
        parse_settings(text)


def test_a_policy_file_is_the_base(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(GOOD)
    table = f'[databases.main.traffic]\npolicy = "{file}"\ndirectory = "{tmp_path}"\n'
    settings = parse_settings(MAIN + table)
    (plan,) = traffic_plans(settings, SystemClock())
    assert (plan.database, plan.source, plan.directory) == ("main", str(file), str(tmp_path))
    assert [raw["name"] for raw in plan.base["budgets"]] == ["etl"]
    gear = plan.open_gear()
    assert gear.meter is not None and str(tmp_path) in gear.sinks[0].describe()
    (bare,) = traffic_plans(parse_settings(f"{MAIN}[databases.main.traffic]\n"), SystemClock())
    assert bare.open_gear().sinks == () and bare.base == {"budgets": []}


@pytest.mark.parametrize(
    ("dsn", "role"),
    [("postgresql://hg:secret@db/shop", "hg"), ("host=db user=mon", "mon"), ("host=db", "ops")],
)
def test_the_agents_own_role_is_the_dsns(
    monkeypatch: pytest.MonkeyPatch, dsn: str, role: str
) -> None:
    """R147: it is exempt in all that the agent publishes."""
    monkeypatch.setenv("PGUSER", "ops")
    text = f'[databases.main]\nengine = "postgres"\ndsn = "{dsn}"\n[databases.main.traffic]\n'
    (plan,) = traffic_plans(parse_settings(text), SystemClock())
    assert plan.own_role == role


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("p.toml", GOOD.replace("50", "-5"), r"p\.toml: line 3, budgets\[0\]\.burst: -5 is less"),
        ("p.toml", "[[budgets", "is not TOML"),
        ("p.json", "{", "is not JSON"),
        ("p.json", "[" * 100_000, "is nested too deeply|is not JSON"),
        ("p.json", '{"budgets": 7}', r"budgets: must be a list"),
    ],
)
def test_a_policy_file_that_is_wrong_keeps_the_agent_from_starting(
    tmp_path: Path, name: str, content: str, told: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(InvalidSettings, match=told):
        load_policy(file)
    settings = parse_settings(f'{MAIN}[databases.main.traffic]\npolicy = "{file}"\n')
    (fault,) = part_faults(settings)
    assert fault.place == "databases.main.traffic.policy" and re.search(told, str(fault))


def test_what_is_no_file_or_no_text_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read: No such file"):
        load_policy(tmp_path / "none.toml")
    file = tmp_path / "p.toml"
    file.write_bytes(b"# \n# \xff\n")
    with pytest.raises(InvalidSettings, match=r"line 2: is not UTF-8 here"):
        load_policy(file)
    monkeypatch.setattr(document, "MAX_POLICY_FILE_BYTES", 3)
    with pytest.raises(InvalidSettings, match="has 7 bytes, at most 3"):
        load_policy(file)


def test_toml_and_json_say_the_same() -> None:
    as_json = (
        '{"budgets": [{"name": "etl", "burst": 50, "rules": [{"match": {"username": "etl"}}]}]}'
    )
    assert read_policy(GOOD, is_json=False) == read_policy(as_json, is_json=True)
    assert replace(read_policy(GOOD, is_json=False), budgets=()) == read_policy("", is_json=False)


def test_a_policy_file_may_have_units() -> None:
    policy = read_policy(
        '[[budgets]]\nname = "etl"\nrate = "20%"\ncapacity = "2s"\nmax_delay_s = "50ms"\n',
        is_json=False,
    )
    (budget,) = policy.budgets
    assert (budget.rate_mpct, budget.capacity_mpcts, budget.max_delay_ms) == (20_000, 200_000, 50)


def test_units_that_do_not_fit_are_reported_with_their_lines() -> None:
    with pytest.raises(InvalidSettings) as error:
        read_policy('[[budgets]]\nname = "a"\nrate = "2s"\ncapacity = "5%"\n', is_json=False)
    assert [str(fault) for fault in error.value.faults] == [
        "line 3, budgets[0].rate: is '2s', must be a percentage such as 20%",
        "line 4, budgets[0].capacity: is '5%', must be time of the whole server such as 2s, or "
        "percent seconds such as 200",
    ]
