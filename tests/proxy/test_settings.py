"""A proxy's settings: what is wrong is reported with its place, and so is what is odd."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.base.declared import table_of
from headgate.budgets.identity import (
    IdentitySource,
    SourceKind,
)
from headgate.errors import InvalidSettings
from headgate.proxy.model import (
    Act,
    Band,
    GateMode,
    ListenTls,
    Protocol,
    ReleaseKind,
    SessionRoute,
)
from headgate.settings.proxy import STRUCTS, ProxySettings, parse_proxy_settings

LEAST = """
[proxy]
protocol = "postgres"
directory = "/var/lib/headgate-proxy"

[[listen]]
address = "127.0.0.1:6432"

[[server]]
address = "127.0.0.1"
"""
AGENT = """
[agent]
url = "http://127.0.0.1:8087"
database = "main"
"""


def taken(more: str = "", **environment: str) -> ProxySettings:
    return parse_proxy_settings(LEAST + more, environment)


def faults(content: str) -> list[str]:
    with pytest.raises(InvalidSettings) as raised:
        parse_proxy_settings(content)
    return [str(fault) for fault in raised.value.faults]


def rejected(more: str) -> list[str]:
    return faults(LEAST + more)


def codes(settings: ProxySettings) -> set[str]:
    return {advice.code for advice in settings.advice}


def test_the_least_that_a_file_says() -> None:
    settings = taken()
    assert settings.relay.protocol is Protocol.POSTGRES
    assert [(one.host, one.port, one.route) for one in settings.listen] == [
        ("127.0.0.1", 6432, SessionRoute.READ_WRITE)
    ]
    assert [(one.host, one.port) for one in settings.servers] == [("127.0.0.1", 5432)]
    assert settings.control_socket == Path("/var/lib/headgate-proxy/control.sock")
    assert settings.gate.mode is GateMode.WARN
    assert settings.gate.clients == ()
    assert settings.advice == ()


def test_everything_that_is_missing_is_reported_at_once() -> None:
    told = "\n".join(faults(""))
    for place in ("proxy.protocol", "proxy.directory", "listen", "server"):
        assert f"{place}: is missing" in told


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("[gaet]\n", "line 11, gaet: unknown setting 'gaet'; did you mean 'gate'?"),
        ("[gate]\nmod = 'warn'\n", "gate.mod: unknown setting 'mod'; did you mean 'mode'?"),
        ("[gate]\nmode = 'enforced'\n", "must be one of 'off', 'warn', 'enforce'"),
        ("[gate]\nmax_delay_s = '5 parsecs'\n", "must read like 250ms, 90s"),
        ("[gate]\naction = 'warn'\n", "must be one of 'delay', 'block', 'close'"),
        ("[gate]\nbands = [{at = 1, ratio = 1}, {at = 0.5, ratio = 1}]\n", "ascending order"),
        ("[gate]\nbands = [{at = 1}]\n", "gate.bands: ratio is missing"),
        ("[gate]\nclients = ['a b']\n", "level 'a b' must be"),
        ("[identity]\norder = ['tags:x']\n", "unknown setting 'tags'; did you mean 'tag'?"),
        ("[identity]\norder = ['user:x']\n", "names 'user:x', must be user"),
        ("[identity]\norder = ['tag']\n", "must be tag:NAME"),
        ("[[identity.trust]]\nusers = ['app']\n", "identity.trust.0.tag: is missing"),
        ("[[identity.trust]]\ntag = 'x'\nsigned = true\n", "signed tags need a key"),
        ("[[listen]]\naddress = '127.0.0.1:6432'\n", "has 127.0.0.1:6432 twice"),
        ("[[listen]]\naddress = '0.0.0.0:1'\n", "0.0.0.0 is not loopback: give tls_cert"),
        ("[[listen]]\naddress = '127.0.0.1'\n", "must be host:port"),
        ("[[listen]]\naddress = '/s'\ntls = 'require'\n", "needs tls_cert and tls_key"),
        ("[[listen]]\naddress = '/s'\ntls_cert = 'c'\n", "and tls_key go together"),
        ("[[server]]\naddress = 'db2'\n", "has 2 primaries"),
        ("[[server]]\naddress = 'db2'\nrole = 'standby'\n", "must be one of 'primary', 'replica'"),
        (
            "[[server]]\naddress = 'b'\nrole = 'replica'\ntls = 'verify-full'\n",
            "needs an authority",
        ),
        ("[[server]]\naddress = 'b'\nrole = 'replica'\ntls_ca = 'c'\n", "is 'off', so the other"),
        ("[follow]\n", "agent: is missing: [follow] follows what an agent says"),
        ("[gate]\nclients = ['etl']\n", "gate.clients: needs [agent]"),
        ("[release]\nkind = 'pi'\n", "release.kind: needs [agent]"),
        ("[policy]\nfrom_agent = true\n", "policy.from_agent: needs [agent]: the policy"),
        (AGENT + "[policy]\nfile = 'p'\nfrom_agent = true\n", "exclude each other"),
        ("[agent]\nurl = 'ftp://x'\ndatabase = 'm'\n", "must read like https://db1:8087"),
        ("[agent]\nurl = []\ndatabase = 'm'\n", "agent.url: is empty: name at least one agent"),
        ("[control]\naddress = '0.0.0.0:1'\n", "0.0.0.0 is not loopback"),
        (f"[control]\nsocket = '/{'x' * 100}'\n", "control.socket: is too long"),
        (f"[[listen]]\naddress = '/{'x' * 100}'\n", "listen.1.address: is too long"),
        ("[control]\nsocket_mode = '0999'\n", "must be an octal mode"),
        ("[[tokens]]\nname = 'x'\n", "tokens.0.role: is missing"),
        (f"[[tokens]]\nname = 'x'\nrole = 'peer'\nsha256 = '{'0' * 64}'\n", "has no peers"),
        ("[slowlog]\nper_s = -1\n", "must be at least 0"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(more: str, told: str) -> None:
    assert told in "\n".join(rejected(more))


@pytest.mark.parametrize(
    ("listen", "server"),
    [
        ("127.0.0.1:6432", "127.0.0.1:6432"),
        ("127.0.0.1:6432", "localhost:6432"),
        ("localhost:6432", "[::1]:6432"),
        ("/run/s", "/run/s"),
        ("[::]:6432", "127.0.0.1:6432"),
    ],
)
def test_a_proxy_is_not_its_own_server(listen: str, server: str) -> None:
    """One client would become all the sessions that there are."""
    content = LEAST.replace("127.0.0.1:6432", listen).replace('"127.0.0.1"', f'"{server}"')
    content = content.replace("[[server]]", "allow_plaintext = true\n[[server]]")
    assert "is this proxy's own [[listen]]" in "\n".join(faults(content))
    elsewhere = content.replace("6432", "6433", 1).replace("/run/s", "/run/t", 1)
    parse_proxy_settings(elsewhere)


def test_a_directory_has_room_for_sockets() -> None:
    """Said before anything starts, with how much there is."""
    (told,) = faults(LEAST.replace("/var/lib/headgate-proxy", "/tmp/" + "x" * 100))
    assert "line 4, proxy.directory: is too long" in told and "99" in told


def test_what_is_given_wrongly_is_not_reported_as_missing() -> None:
    (told,) = rejected("[agent]\nurl = 'db1:8087'\ndatabase = 'main'\n")
    assert "must read like" in told
    (told,) = faults(LEAST.replace('address = "127.0.0.1"\n', "address = 5\n"))
    assert "server.0.address: must be a string" in told
    (told,) = rejected("[[listen]]\nx = 1\n[[listen]]\naddress = '127.0.0.1:6433'\n")
    assert "listen.1.x" in told


def test_a_fault_has_its_line() -> None:
    assert rejected("[gate]\nmode = 1\n")[0].startswith("line 12, gate.mode: ")


def test_plans_are_for_postgres() -> None:
    """MariaDB's EXPLAIN has no cost that could be gone by."""
    content = LEAST.replace('"postgres"', '"mysql"') + "[plans]\ndsn = 'host=x'\n"
    assert "is for Postgres" in "\n".join(faults(content))


def test_times_are_seconds_or_read_like_500ms() -> None:
    settings = taken("[gate]\nmax_delay_s = '500ms'\nstale_after_s = 2\n")
    assert (settings.gate.max_delay_s, settings.gate.stale_after_s) == (0.5, 2.0)


def test_the_environment_overrides_the_table_of_the_proxy() -> None:
    settings = taken(HEADGATE_PROXY_THREADS="3", HEADGATE_PROXY_LOG="json")
    assert settings.relay.threads == 3
    assert settings.log.value == "json"


def test_everything_at_once(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef\n")
    settings = taken(
        AGENT
        + f"""
[follow]
shard = "s1"
tls = "require"
[identity]
order = ["tag:job", "attribute:program_name", "variable:headgate.client", "user"]
priority_tag = "priority"
secret_file = "{secret}"
[[identity.trust]]
tag = "job"
users = ["etl"]
signed = true
[gate]
clients = ["*"]
mode = "enforce"
action = "block"
bands = [{{at = 0.8, ratio = 0.25}}, {{at = 1, ratio = 1}}]
hard_limit = 2
on_loss = "delay"
[release]
kind = "steps"
max = 0.9
[policy]
from_agent = true
"""
    )
    assert settings.follow is not None
    assert (settings.follow.shard, settings.follow.port) == ("s1", 5432)
    assert settings.identity.sources[0] == IdentitySource(SourceKind.TAG, "job")
    assert settings.identity.secret == b"0123456789abcdef"
    assert "0123456789" not in repr(settings), "a secret is never shown"
    assert settings.gate.bands == (Band(0.8, 0.25), Band(1.0, 1.0))
    assert (settings.gate.action, settings.gate.on_loss) == (Act.BLOCK, Act.DELAY)
    assert (settings.release.kind, settings.release.most) == (ReleaseKind.STEPS, 0.9)


def test_a_secret_that_is_too_short_is_rejected_without_being_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    told = "\n".join(rejected(f"[identity]\nsecret_file = '{tmp_path}/secret'\n"))
    assert "holds 7 bytes, must hold 16 to 64" in told
    assert "hunter2" not in told


def test_a_certificate_makes_tls_possible() -> None:
    settings = taken("[[listen]]\naddress = '0.0.0.0:1'\ntls_cert = 'c'\ntls_key = 'k'\n")
    assert settings.listen[1].tls is ListenTls.ALLOW


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("[[server]]\naddress = '10.0.0.2'\nrole = 'replica'\n", "plain-server"),
        ("[[server]]\naddress = '10.0.0.2'\nrole = 'replica'\n", "cpus"),
        ("[[server]]\naddress = '10.0.0.2'\nrole = 'replica'\n", "unused-replica"),
        ("[[server]]\naddress = 'b'\nrole = 'replica'\ntls = 'prefer'\n", "unverified-server"),
        (AGENT + "[gate]\nmode = 'enforce'\nclients = ['*']\n", "untrusted-tag"),
        (AGENT + "[gate]\nmode = 'enforce'\n", "gate-for-nobody"),
        (AGENT + "[gate]\non_loss = 'block'\n", "fail-closed"),
        ("[gate]\nmax_delayed = 0\n", "no-queue"),
        ("[identity]\norder = []\n", "nobody"),
        ("[[identity.trust]]\ntag = 'x'\n", "trusts-nobody"),
        (AGENT.replace("127.0.0.1", "db1") + "token_file = 't'\n", "plain-token"),
        ("[plans]\ndsn = 'host=x password=hunter2'\n", "password-in-dsn"),
        ("[plans]\ndsn = 'postgresql://u:hunter2@x/d'\n", "password-in-dsn"),
        (AGENT + "[release]\nkind = 'steps'\ntarget = 1\nmax = 0.5\n", "release-target"),
    ],
)
def test_what_is_odd_is_reported(more: str, code: str) -> None:
    assert code in codes(taken(more))


def test_a_secret_that_everybody_can_read_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef")
    for mode, told in ((0o644, True), (0o640, False)):
        path.chmod(mode)
        for more in (
            f"[identity]\nsecret_file = '{path}'\n",
            AGENT + f"token_file = '{path}'\n",
            f"[plans]\ndsn = 'host=x'\npassword_file = '{path}'\n",
        ):
            assert ("open-secret" in codes(taken(more))) is told, more


def test_a_dry_run_is_reported() -> None:
    assert "dry-run" in codes(taken(HEADGATE_PROXY_DRY_RUN="true"))


def test_every_row_has_a_meaning_and_no_secret_for_a_default() -> None:
    for heading, struct in STRUCTS.items():
        for row in table_of(struct).values():
            assert row.about.endswith((".", ")")), f"{heading} {row.name}"
