"""`headgate doctor` against real servers, ports and certificates: each line OK, or what to do."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from headgate.demo.postgres import PostgresServer
from headgate.doctor import expires_at
from tests.fixtures.servers import Pair
from tests.live.test_init import headgate


def lines(folder: Path, code: int) -> Sequence[tuple[str, str, str]]:
    ran = headgate("doctor", "--json", cwd=folder)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return [(one["level"], one["subject"], one["says"]) for one in json.loads(ran.stdout)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture
def settings(postgres_pair: Pair[PostgresServer], tmp_path: Path) -> Path:
    made = headgate("init", postgres_pair.primary.dsn(), "--yes", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    path = tmp_path / "headgate.toml"
    path.write_text(path.read_text().replace(":8087", f":{free_port()}"))
    return path


def test_a_file_of_init_has_nothing_wrong_with_it(settings: Path) -> None:
    found = lines(settings.parent, 0)
    assert [one for one in found if one[0] == "fault"] == []
    said = {subject: says for level, subject, says in found if level == "ok"}
    assert "a primary, 1 replica connected" in " ".join(says for _, _, says in found)
    assert "rejects > 50 ms" in said["main/commit_delay"]
    assert any("no agent runs here" in says for says in said.values())
    assert "can be written" in said["headgate.db"]
    shown = headgate("doctor", cwd=settings.parent)
    assert shown.returncode == 0 and "main/commit_delay" in shown.stdout


def test_what_is_broken_is_told_with_what_to_do(settings: Path) -> None:
    """A port that another program has, a peer that is away, a metric that the server lacks, a
    folder that is missing: all in one run."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        text = settings.read_text()
        text = text.replace('state = "headgate.db"', 'state = "none/headgate.db"')
        at = text.index('listen = "')
        text = text[:at] + f'listen = "127.0.0.1:{taken}"' + text[text.index("\n", at) :]
        text += "[databases.main.metrics.archive_backlog]\n"
        text += f'[databases.main.peers.db-b]\nurl = "http://127.0.0.1:{free_port()}"\n'
        token = settings.with_name("peers.token")
        token.write_text("0123456789abcdef0123456789abcdef\n")
        token.chmod(0o600)
        text += f'[peers]\ntoken_file = "{token}"\n'
        text = text.replace("[databases.main]\n", '[databases.main]\nshard = "orders"\n')
        settings.write_text(text)
        found = lines(settings.parent, 1)
    faults = {subject: says for level, subject, says in found if level == "fault"}
    assert "mkdir -p none" in faults.get("none/headgate.db", ""), found
    assert "archive_mode is off" in faults["main/archive_backlog"]
    assert "is taken by a program that is no agent" in faults[f"127.0.0.1:{taken}"]
    [peer] = [says for subject, says in faults.items() if subject.startswith("peer db-b")]
    assert "does not answer" in peer


def test_a_server_that_is_away(settings: Path) -> None:
    port = free_port()
    text = settings.read_text()
    at = text.index("port=")
    settings.write_text(text[:at] + f"port={port}" + text[at:].lstrip("port=0123456789"))
    [fault] = [one for one in lines(settings.parent, 1) if one[0] == "fault"]
    assert fault[1] == "main" and "cannot be reached" in fault[2]


def test_faults_of_the_file_come_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text("[agent]\nlisen = 1\n")
    found = lines(tmp_path, 1)
    assert any("line 2, agent.lisen: unknown setting" in says for _, _, says in found)


def test_when_a_certificate_ends(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 10"
    subprocess.run(
        [*made.split(), "-subj", "/CN=db-a", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    shown = subprocess.run(
        ["openssl", "x509", "-in", cert, "-noout", "-enddate"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert expires_at(cert, key) == ssl.cert_time_to_seconds(shown.stdout.strip().split("=")[1])
