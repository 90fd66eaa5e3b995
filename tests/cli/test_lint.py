"""`headgate lint`: faults and advice with their lines, offline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

GOOD = """\
[agent]
listen = "127.0.0.1:8087"

[databases.main]
engine = "postgres"
dsn = "postgresql://headgate@127.0.0.1/app"

[databases.main.metrics.lag]
threshold = "5s"
"""
FAULTY = GOOD.replace("listen", "lisen").replace('"5s"', '"five"')
ADVISED = GOOD.replace('"5s"', '"60s"')


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return tmp_path / "headgate.toml"


def test_a_good_file_passes(run: Run, settings: Path) -> None:
    settings.write_text(GOOD)
    ran = run("lint", str(settings))
    assert ran.code == 0
    assert "no faults, no advice" in ran.out


def test_faults_come_with_their_lines(run: Run, settings: Path) -> None:
    settings.write_text(FAULTY)
    ran = run("lint", str(settings))
    assert ran.code == 1
    assert f"{settings}:2: fault agent.lisen: unknown setting 'lisen'; did you mean" in ran.out
    assert (
        f"{settings}:9: fault databases.main.metrics.lag.threshold: is 'five', must be a number"
        in ran.out
    )
    assert ran.out.rstrip().endswith("2 faults")


@pytest.mark.parametrize("content", ["", "[agent]\n"])
def test_a_file_without_a_database_is_a_fault(run: Run, settings: Path, content: str) -> None:
    """B8."""
    settings.write_text(content)
    ran = run("lint", str(settings))
    assert ran.code == 1
    assert "fault databases: the file " in ran.out and "add [databases.NAME]" in ran.out


def test_advice_passes_unless_strict(run: Run, settings: Path) -> None:
    """R14: 60 s of lag is legal, and probably not meant."""
    settings.write_text(ADVISED)
    ran = run("lint", str(settings))
    assert ran.code == 0
    assert f"{settings}:9: advice databases.main.metrics.lag.threshold: a threshold" in ran.out
    assert run("lint", str(settings), "--strict").code == 1


def test_findings_as_json(run: Run, settings: Path) -> None:
    settings.write_text(ADVISED)
    found = json.loads(run("lint", str(settings), "--json").out)
    assert found["file"] == str(settings)
    [note] = found["notes"]
    assert (note["level"], note["line"]) == ("advice", 9)


def test_a_file_that_is_not_there_is_a_fault(run: Run, settings: Path) -> None:
    ran = run("lint", str(settings))
    assert ran.code == 1
    assert "cannot be read: No such file" in ran.out


def test_the_headers_file_of_tracing_is_validated_as_well(run: Run, settings: Path) -> None:
    """With a fault in it the agent does not start. What a line says may be a key, and stays."""
    headers = settings.with_name("headers")
    settings.write_text(
        f'{GOOD}[tracing]\nendpoint = "http://127.0.0.1:4318"\nheaders_file = "{headers}"\n'
    )
    headers.write_text("x-key: abc\n")
    assert run("lint", str(settings)).code == 0
    headers.write_text("no header at all, hunter2\n")
    ran = run("lint", str(settings))
    assert ran.code == 1 and "hunter2" not in ran.out
    assert f"{settings}:12: fault tracing.headers_file: line 1 of" in ran.out
    settings.write_text(f'{GOOD}[tracing]\nendpoint = "http://127.0.0.1:4318"\nservice_name = ""\n')
    assert "fault tracing.service_name: is empty" in run("lint", str(settings)).out


def test_the_policy_file_that_a_database_names_is_validated_as_well(
    run: Run, settings: Path
) -> None:
    """With a fault in it the agent would not start."""
    policy = settings.parent / "policy.toml"
    policy.write_text('[[budgets]]\nname = "etl"\nrate = 120\n')
    settings.write_text(GOOD + f'[databases.main.traffic]\npolicy = "{policy}"\n')
    ran = run("lint", str(settings))
    assert ran.code == 1
    assert "databases.main.traffic.policy" in ran.out
    assert "budgets[0].rate" in ran.out


REJECTED = """\
[agent]
socket = "{folder}/none/x.sock"
tls_cert = "{folder}/cert.pem"
tls_key = "{folder}/key.pem"

[peers]
token_file = "{folder}/token"

[databases.main]
engine = "postgres"
dsn = "hots=127.0.0.1"
password_file = "{folder}/password"

[databases.main.metrics.lag]
rollup = "avg"

[databases.other]
engine = "mysql"
dsn = "host=127.0.0.1"

[databases.third]
engine = "postgres"
dsn = "host=127.0.0.1"
password_file = "{folder}/password"
[databases.third.metrics.lag]
options = {{ method = "magic" }}
"""


def test_what_an_agent_would_reject_at_its_start_is_reported_all_at_once(
    run: Run, settings: Path
) -> None:
    """A3: files, addresses, plug-ins and connection strings, each with its line."""
    settings.write_text(REJECTED.format(folder=settings.parent))
    expected = {
        "2: fault agent.socket: cannot be made: ",
        "3: fault agent.tls_cert: ",
        "7: fault peers.token_file: no token can be read",
        "11: fault databases.main.dsn: has 'hots', which libpq does not know; did you mean 'host'?",
        "12: fault databases.main.password_file: no password can be read",
        "15: fault databases.main.metrics.lag.rollup: unknown rollup 'avg'",
        "19: fault databases.other.dsn: must begin with mysql://",
        "24: fault databases.third.password_file: no password can be read",
        "26: fault databases.third.metrics.lag.options.method: is 'magic', must be auto, native",
    }
    for argv, code in ((("lint",), 1), (("agent", "--check-config", "--config"), 2)):
        ran = run(*argv, str(settings))
        assert ran.code == code
        assert {line for line in expected if f"{settings}:{line}" not in ran.out} == set(), ran.out
        assert ran.out.splitlines()[-1] == "9 faults"
    started = run("agent", "--config", str(settings))
    assert started.code == 2 and len(started.err.splitlines()) == 9


def test_a_file_for_another_host_is_validated_alone(run: Run, settings: Path) -> None:
    settings.write_text(REJECTED.format(folder=settings.parent))
    assert run("lint", "--file-only", str(settings)).code == 0
    assert run("lint", "--file-only", "--connect", str(settings)).code == 2


def test_secrets_that_everybody_can_read_and_databases_without_metrics_are_advised_against(
    run: Run, settings: Path
) -> None:
    password = settings.with_name("password")
    password.write_text("hunter2\n")
    password.chmod(0o644)
    settings.write_text(
        '[databases.main]\nengine = "postgres"\n'
        f'dsn = "host=127.0.0.1 password=hunter2"\npassword_file = "{password}"\n'
    )
    ran = run("lint", str(settings))
    assert ran.code == 0 and "hunter2" not in ran.out
    codes = ("no-metric", "password-in-dsn", "open-secret")
    assert [code for code in codes if f"[{code}]" not in ran.out] == []
    password.chmod(0o600)
    assert "[open-secret]" not in run("lint", str(settings)).out


def test_connect_reads_each_metric_once(run: Run, settings: Path) -> None:
    value = settings.with_name("value")
    value.write_text("7")
    settings.write_text(
        f"{GOOD}[databases.main.metrics.queue]\ncommand = ['cat', '{value}']\nthreshold = 9\n"
        "[databases.main.metrics.gone]\ncommand = ['cat', '/no/such/file']\nthreshold = 9\n"
    )
    settings.write_text(settings.read_text().replace("127.0.0.1/app", "127.0.0.1:1/app"))
    ran = run("lint", "--connect", str(settings))
    assert ran.code == 1
    assert "main/queue: 7  (threshold > 9)" in ran.out
    assert f"{settings}:8: fault databases.main.metrics.lag: has no value: " in ran.out
    assert f"{settings}:13: fault databases.main.metrics.gone: has no value: " in ran.out
    found = json.loads(run("lint", "--connect", "--json", str(settings)).out)
    assert [one["value"] for one in found["readings"]] == [None, 7.0, None]


def test_all_faults_are_reported_at_once(
    run: Run, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the file, of the environment, and of what only building the parts can tell."""
    monkeypatch.setenv("HEADGATE_MAX_CLIENTS", "many")
    settings.write_text(
        GOOD.replace('"5s"', "5")
        + '[databases.main.metrics.raid]\ncommand = ["/no/such/program"]\nthreshold = 1\n'
        + '[databases.orders]\nengine = "postgres"\ndsn = "host=db port=abc"\n'
        + 'password_file = "/no/such/file"\n'
    )
    out = run("lint", str(settings)).out
    for told in (
        "environment: fault HEADGATE_MAX_CLIENTS: must be a whole number",
        ":9: fault databases.main.metrics.lag.threshold: is 5, which has no unit: 5ms or 5s?",
        ":11: fault databases.main.metrics.raid.command: there is no program '/no/such/program'",
        ":15: fault databases.orders.dsn: has the port 'abc', must be a number from 1 to 65535",
        ":16: fault databases.orders.password_file: no password can be read",
    ):
        assert told in out, out
    assert out.rstrip().endswith("5 faults")


WRONG_BESIDE = """\
[agent]
idle_timeout_s = "30"
socket = "{folder}/none/x.sock"

[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1"
member = 5
password_file = "/no/such/file"

[databases.main.metrics.lag]
threshold = 5
rollup = "avg"

[databases.main.metrics.replication_lag]
threshold = "5s"
"""


def test_a_wrong_value_hides_nothing_beside_it(run: Run, settings: Path) -> None:
    """A table is built without its wrong values: what only that tells is reported as well. Of a
    metric with a wrong name only that is: its threshold is the right one's."""
    settings.write_text(WRONG_BESIDE.format(folder=settings.parent))
    out = run("lint", str(settings)).out
    for told in (
        ":2: fault agent.idle_timeout_s: is 30, which has no unit: 30s or 30m?",
        ":3: fault agent.socket: cannot be made: ",
        ":8: fault databases.main.member: must be a string",
        ":9: fault databases.main.password_file: no password can be read",
        ":12: fault databases.main.metrics.lag.threshold: is 5, which has no unit: 5ms or 5s?",
        ":13: fault databases.main.metrics.lag.rollup: unknown rollup 'avg'",
        ":15: fault databases.main.metrics.replication_lag: unknown metric 'replication_lag'; did",
    ):
        assert told in out, out
    assert out.rstrip().endswith("7 faults")
