"""The settings file: faults point at the line, and nothing is half-applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config import Anonymous, load_settings, parse_settings
from headgate.errors import InvalidSettings

GOOD = """
[agent]
listen = "127.0.0.1:9000"
anonymous = "allow"

[databases.main]
engine = "postgres"
dsn = "host=/tmp dbname=app"
default_metrics = ["lag"]

[databases.main.metrics.lag]
threshold = 3

[databases.main.metrics.queue_depth]
sql = "select count(*) from jobs"
threshold = 100

[[tokens]]
name = "oncall"
role = "operator"
sha256 = "%s"
""" % ("ab" * 32)


def refused(content: str) -> list[str]:
    with pytest.raises(InvalidSettings) as error:
        parse_settings(content)
    return [str(fault) for fault in error.value.faults]


def test_a_good_file() -> None:
    settings = parse_settings(GOOD)
    assert settings.agent.listen == ("127.0.0.1", 9000)
    assert settings.agent.anonymous is Anonymous.ALLOW
    main = settings.databases["main"]
    assert main.metrics["lag"].threshold == 3
    assert main.default_metrics == ("lag",)
    assert settings.tokens[0].name == "oncall"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("threshold = 3", "treshold = 3", "line 12, databases.main.metrics.lag.treshold: unknown"),
        ("threshold = 3", "threshold = nan", "line 12"),
        ("threshold = 3", "threshold = -3", "line 12"),
        ("threshold = 100", "", "line 14, databases.main.metrics.queue_depth.threshold"),
        ('engine = "postgres"', 'engine = "oracle"', "line 7"),
        ('engine = "postgres"', "", "databases.main.engine: is missing"),
        ("[agent]", "[agnet]", "did you mean 'agent'"),
        ('["lag"]', '["lagg"]', "names 'lagg'"),
        ("127.0.0.1:9000", "0.0.0.0:9000", "not loopback"),
        ("127.0.0.1:9000", "nonsense", "must be host:port"),
        ('role = "operator"', 'role = "god"', "line 20, tokens.0.role"),
        ("ab" * 32, "secret", "SHA-256 of the token"),
        ("[databases.main]", "[databases.'a b']", "database name 'a b'"),
    ],
)
def test_a_fault_names_its_line(old: str, new: str, told: str) -> None:
    assert any(told in fault for fault in refused(GOOD.replace(old, new))), told


def test_not_toml_says_where() -> None:
    assert "line 2" in refused("[agent]\nname = = 1")[0]


def test_nesting_without_end_is_a_fault() -> None:
    assert "nested too deeply" in refused("x = " + "[" * 100_000)[0]


def test_lint_errors_refuse_the_file() -> None:
    custom = GOOD.replace(
        'sql = "select count(*) from jobs"',
        "mode = 'rate'\nsql = 'select xact_commit from pg_stat_database'",
    )
    assert "a fixed rate is no sign of health" in refused(custom)[0]


def test_the_environment_overrides_the_agent_table() -> None:
    environment = {"HEADGATE_LISTEN": "127.0.0.1:1", "HEADGATE_MAX_CLIENTS": "77", "OTHER": "x"}
    agent = parse_settings(GOOD, environment).agent
    assert agent.listen == ("127.0.0.1", 1)
    assert agent.max_clients == 77


def test_plaintext_beyond_loopback_must_be_said_outright() -> None:
    exposed = GOOD.replace("127.0.0.1:9000", "0.0.0.0:9000")
    allowed = exposed.replace("[agent]", "[agent]\nallow_plaintext = true")
    assert parse_settings(allowed).agent.listen == ("0.0.0.0", 9000)


def test_bytes_that_are_not_utf8_say_the_line(tmp_path: Path) -> None:
    path = tmp_path / "headgate.toml"
    path.write_bytes(b"[agent]\nname = '\xff'\n")
    with pytest.raises(InvalidSettings, match="line 2"):
        load_settings(path, {})


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read"):
        load_settings(tmp_path / "none.toml", {})


def test_a_disabled_metric_is_left_out() -> None:
    off = GOOD.replace("threshold = 100", "threshold = 100\nenabled = false")
    assert "queue_depth" not in parse_settings(off).databases["main"].metrics
