"""The settings file: faults point at the line, and nothing is half-applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import InvalidSettings
from headgate.settings.agent import examine_settings, load_settings, parse_settings
from headgate.settings.sections import Anonymous, GrantedRole, PeerSettings, StarvationSettings

GOOD = """
[agent]
listen = "127.0.0.1:9000"
anonymous = "allow"

[databases.main]
engine = "postgres"
dsn = "host=/tmp dbname=app"
default_metrics = ["lag"]

[databases.main.metrics.lag]
threshold = "3s"

[databases.main.metrics.queue_depth]
sql = "select count(*) from jobs"
threshold = 100

[[tokens]]
name = "oncall"
role = "operator"
sha256 = "%s"
""" % ("ab" * 32)


def rejected(content: str) -> list[str]:
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
        ('threshold = "3s"', "treshold = 3", "line 12, databases.main.metrics.lag.treshold: unkn"),
        ('threshold = "3s"', "threshold = nan", "line 12"),
        ('threshold = "3s"', "threshold = -3", "line 12"),
        ("threshold = 100", "", "line 14, databases.main.metrics.queue_depth.threshold"),
        ('engine = "postgres"', 'engine = "oracle"', "line 7"),
        ('engine = "postgres"', "", "databases.main.engine: is missing"),
        ("[agent]", "[agnet]", "line 2, agnet: unknown setting 'agnet'; did you mean 'agent'"),
        ("[databases.main]", "[database.main]", "line 6, database: unknown setting 'database'"),
        ('["lag"]', '["lagg"]', "names 'lagg'"),
        ("127.0.0.1:9000", "0.0.0.0:9000", "not loopback"),
        ("127.0.0.1:9000", "nonsense", "must be host:port"),
        ('role = "operator"', 'role = "god"', "line 20, tokens.0.role"),
        ("ab" * 32, "secret", "SHA-256 of the token"),
        ("[databases.main]", "[databases.'a b']", "database name 'a b'"),
    ],
)
def test_a_fault_names_its_line(old: str, new: str, told: str) -> None:
    assert any(told in fault for fault in rejected(GOOD.replace(old, new))), told


def test_not_toml_says_where() -> None:
    assert "line 2" in rejected("[agent]\nname = = 1")[0]


def test_nesting_without_end_is_a_fault() -> None:
    assert "nested too deeply" in rejected("x = " + "[" * 100_000)[0]


def test_lint_errors_reject_the_file() -> None:
    custom = GOOD.replace(
        'sql = "select count(*) from jobs"',
        "mode = 'rate'\nsql = 'select xact_commit from pg_stat_database'",
    )
    assert "a fixed rate says nothing about health" in rejected(custom)[0]


def test_a_fault_of_the_environment_names_the_variable() -> None:
    with pytest.raises(InvalidSettings) as caught:
        parse_settings(GOOD, {"HEADGATE_MAX_BODY_BYTES": "64"}, source="a.toml")
    assert str(caught.value) == (
        'HEADGATE_MAX_BODY_BYTES: is 64 B, must be from 1 KiB to 16 MiB: did you mean "64 KiB"?'
    )
    agent = parse_settings(GOOD, {"HEADGATE_MAX_BODY_BYTES": "64 KiB"}).agent
    assert agent.max_body_bytes == 65536


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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("[agent]\nname = 'a'\n", "the file has no database"),
        ("[fleet]\netcd = ['http://127.0.0.1:2379']\n", "the file has no database"),
    ],
)
def test_a_file_without_a_database_is_rejected_with_what_to_do(
    tmp_path: Path, content: str, said: str
) -> None:
    """B8: it is valid TOML, and an agent that follows it decides nothing."""
    path = tmp_path / "headgate.toml"
    path.write_text(content.replace("etcd", "endpoints"))
    with pytest.raises(InvalidSettings, match=rf"databases: {said}: add \[databases\.NAME\]"):
        load_settings(path, {})


def test_an_agent_that_shows_a_fleet_needs_no_database(tmp_path: Path) -> None:
    path = tmp_path / "headgate.toml"
    path.write_text("[fleet]\nendpoints = ['http://127.0.0.1:2379']\nview = true\n")
    assert not load_settings(path, {}).databases


def test_a_disabled_metric_is_left_out() -> None:
    off = GOOD.replace("threshold = 100", "threshold = 100\nenabled = false")
    assert "queue_depth" not in parse_settings(off).databases["main"].metrics


# --- the shard ---------------------------------------------------------------------------------

SHARDED = """
[agent]
name = "db-a"
advertise = "https://db-a:8087/"

[peers]
token_file = "/etc/headgate/peers.token"

[databases.main]
engine = "postgres"
dsn = "host=/tmp"
shard = "commerce/-80"
labels = { region = "eu" }
discover = "https://{host}:8087"

[databases.main.peers.db-b]
url = "https://db-b:8087"

[databases.main.peers.db-c]
url = "http://127.0.0.1:9"
database = "other"
"""


def test_a_shard_in_the_file() -> None:
    """R36"""
    settings = parse_settings(SHARDED)
    main = settings.databases["main"]
    assert (main.shard, main.member, dict(main.labels)) == (
        "commerce/-80",
        "db-a",
        {"region": "eu"},
    )
    assert main.peers == (
        PeerSettings("db-b", "https://db-b:8087", "main"),
        PeerSettings("db-c", "http://127.0.0.1:9", "other"),
    )
    assert settings.agent.advertise == "https://db-a:8087"
    assert (main.idle_after_s, main.hibernate_after_s, main.heartbeat_lease_s) == (60, 600, 30)
    assert main.collect_interval_s == 0.25


def test_a_database_without_a_shard_has_none() -> None:
    main = parse_settings(GOOD).databases["main"]
    assert main.shard is None and main.peers == () and main.heartbeat_interval_s is None


def test_a_singular_agent_names_its_members_after_its_databases() -> None:
    """R52"""
    three = "".join(
        f"[databases.{name}]\nengine='postgres'\ndsn='x'\nshard='s'\n" for name in ("a", "b", "c")
    )
    databases = parse_settings(three).databases
    assert [d.member for d in databases.values()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('shard = "commerce/-80"\n', "", "databases.main.shard: has peers, so give it the name"),
        ("commerce/-80", "com merce", "line 12, databases.main.shard"),
        ("commerce/-80", "", "databases.main.shard"),
        ("commerce/-80", "s" * 128, "at most 127"),
        ("peers.db-b", "peers.db-a", "two members called 'db-a'"),
        ("peers.db-b", "peers.'-x'", "member name '-x'"),
        ('url = "https://db-b:8087"', "", "databases.main.peers.db-b.url: is missing"),
        ("https://db-b:8087", "https://db-b:99999", "peers.db-b.url: must read like"),
        ("https://db-b:8087", "http://[::1:8087", "peers.db-b.url: must read like"),
        ("https://db-b:8087", "https://u:pw@db-b:8087", "without path, user or password"),
        ("https://db-b:8087", "https://db-b:8087/v1", "must read like https://db1:8087"),
        ("https://db-b:8087", "db-b:8087", "must read like https://db1:8087"),
        ("https://{host}:8087", "https://db-x:8087", "must hold {host} or {name}"),
        ("https://{host}:8087", "ftp://{host}", "must read like"),
        ('token_file = "/etc/headgate/peers.token"', "", "authenticate to each other"),
        ('token_file = "/etc/headgate/peers.token"', "cert = 'c'", "and key go together"),
        ("[peers]", "[peer]", "did you mean 'peers'"),
        ('database = "other"', 'databse = "other"', "did you mean 'database'"),
        ('{ region = "eu" }', '"eu"', "table of at most 16 labels"),
        ("[peers]", "[databases.main.peers]\nx = 1\n[peers]", "one table per member"),
    ],
)
def test_a_fault_in_a_shard_names_its_place(old: str, new: str, told: str) -> None:
    assert any(told in fault for fault in rejected(SHARDED.replace(old, new))), told


def test_a_password_in_a_peers_address_is_not_repeated() -> None:
    for fault in rejected(SHARDED.replace("https://db-b", "https://u:hunter2@db-b")):
        assert "hunter2" not in fault


def test_agents_of_several_shards_have_names_of_their_own_in_each_where_there_is_a_fleet() -> None:
    """The same file on two hosts: with `main` on both, neither would find the other."""
    database = '[databases.{0}]\nengine = "postgres"\ndsn = "x"\nshard = "{1}"\n'
    file = "".join(database.format(*one) for one in (("main", "a/0"), ("x", "b/0"), ("y", "b/0")))
    agent = '[agent]\nname = "db-7"\n'

    def names(more: str = "") -> list[str]:
        return [d.member for d in parse_settings(agent + file + more).databases.values()]

    assert names('[fleet]\nendpoints = ["https://a:1"]\n') == ["db-7", "x", "y"]
    assert names() == ["main", "x", "y"]


def test_too_many_members_are_rejected() -> None:
    many = SHARDED + "".join(
        f"[databases.main.peers.m{i}]\nurl='http://127.0.0.1:{i + 1}'\n" for i in range(256)
    )
    assert any("258 members, at most 256" in fault for fault in rejected(many))


def test_members_may_be_known_by_certificates_instead_of_a_token() -> None:
    mutual = SHARDED.replace(
        'token_file = "/etc/headgate/peers.token"', "ca = 'ca'\ncert = 'cert'\nkey = 'key'"
    )
    assert str(parse_settings(mutual).peers.cert) == "cert"


def test_client_certificates_need_tls() -> None:
    exposed = SHARDED.replace("[agent]", "[agent]\ntls_client_ca = 'ca'")
    assert any("needs tls_cert and tls_key" in fault for fault in rejected(exposed))


def test_a_token_may_be_another_agents() -> None:
    peer = GOOD.replace('role = "operator"', 'role = "peer"')
    assert parse_settings(peer).tokens[0].role is GrantedRole.PEER


def test_a_standby_in_the_file() -> None:
    """R52"""
    standby = GOOD.replace("[agent]", "[agent]\nstandby_for = 'http://127.0.0.1:1'")
    agent = parse_settings(standby).agent
    assert agent.standby_for == "http://127.0.0.1:1"
    assert agent.takeover_after_s == 2.0 and agent.warm_standby and not agent.forward
    hasty = standby.replace("[agent]", "[agent]\ntakeover_after_s = 0.1")
    assert any("takeover_after_s" in fault for fault in rejected(hasty))


@pytest.mark.parametrize(
    "setting", ["idle_after_s", "hibernate_after_s", "heartbeat_lease_s", "heartbeat_interval_s"]
)
def test_0_is_never_or_always(setting: str) -> None:
    """R56, R60"""
    changed = SHARDED.replace('dsn = "host=/tmp"', f'dsn = "host=/tmp"\n{setting} = 0')
    assert getattr(parse_settings(changed).databases["main"], setting) == 0
    below = changed.replace(f"{setting} = 0", f"{setting} = -1")
    assert any(setting in fault for fault in rejected(below))


# --- alerts and starvation -----------------------------------------------------------------


def test_alerts_and_starvation_are_tables_of_their_own() -> None:
    settings = parse_settings(
        '[alerts]\nwebhook_url = "https://hooks.example/T1/secret"\nwebhook_token_file = "t"\n'
        "[starvation]\nwindow_s = 60\nwaterline = 0.1\nexemption_budget_s = 0\n"
    )
    assert settings.starvation == StarvationSettings(60.0, 0.1, 0.0)
    assert settings.alerts.webhook_url == "https://hooks.example/T1/secret"
    assert "secret" not in repr(settings), "the address of a webhook is a secret"
    assert parse_settings("").starvation == StarvationSettings(600.0, 0.05, 1200.0)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('[alerts]\nwebhook_url = "ftp://hooks.example/s3cret"', "must read like https://host"),
        ('[alerts]\nwebhook_url = "https://u:s3cret@hooks.example/"', "without user"),
        ('[alerts]\nwebhook_url = "https://hooks.example:99999/s3cret"', "must read like"),
        ('[alerts]\nwebhook_url = "https://hooks.example/s3cret\\\\nX: y"', "must read like"),
        ('[alerts]\nwebhook_token_file = "t"', "nowhere to go"),
        ('[alerts]\nwebhok_url = "x"', "did you mean 'webhook_url'"),
        ("[starvation]\nwaterline = 5", "waterline"),
        ("[starvation]\nwindow_s = 0", "window_s"),
        ("[starvation]\nexemption_budget_s = -1", "exemption_budget_s"),
    ],
)
def test_odd_alerts_are_rejected_and_no_secret_is_repeated(content: str, told: str) -> None:
    with pytest.raises(InvalidSettings) as rejected:
        parse_settings(content)
    assert told in str(rejected.value) and "s3cret" not in str(rejected.value)


def test_a_webhook_in_plain_text_is_advised_against() -> None:
    advice = parse_settings('[alerts]\nwebhook_url = "http://hooks.example/x"').advice
    assert [one.code for one in advice] == ["plain-webhook"]
    assert parse_settings('[alerts]\nwebhook_url = "http://127.0.0.1:9/x"').advice == ()


def test_a_key_in_the_wrong_section_is_sent_home_and_hides_no_fault_beside_it() -> None:
    content = """
[metrics.lag]
threshold = 1
[databases.main]
engine = "mysql"
dsn = "host=127.0.0.1"
rollup = "max"
[databases.main.metrics.lag]
dsn = "x"
"""
    settings, faults = examine_settings(content, {}, source="")
    home = "is not known here; it belongs in [databases.NAME"
    assert {fault.place: fault.message for fault in faults} == {
        "metrics": f"{home}.metrics.METRIC]",
        "databases.main.rollup": f"{home}.metrics.METRIC]",
        "databases.main.metrics.lag.dsn": f"{home}]",
    }
    # The host looks at the rest of it: that is no address of a MySQL.
    assert settings.databases["main"].dsn == "host=127.0.0.1"


def test_faults_of_a_database_do_not_hide_those_of_its_metrics() -> None:
    content = """
[databases.main]
engin = "postgres"
dsn = "host=db"
[databases.main.metrics.lag]
threshhold = 5
[databases.main.metrics.archive_backlog]
"""
    with pytest.raises(InvalidSettings) as rejected:
        parse_settings(content)
    places = [fault.place for fault in rejected.value.faults]
    assert "databases.main.engin" in places and "databases.main.metrics.lag.threshhold" in places
    assert not any("archive_backlog" in place for place in places), "fits one of the engines"
