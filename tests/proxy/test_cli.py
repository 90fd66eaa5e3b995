"""`headgate proxy`: pages from documents, exit codes, and words for what is not there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from headgate.cli.app import app
from headgate.cli.documents import read
from headgate.cli.render import Canvas, drawn
from headgate.errors import HeadgateError, InvalidSettings
from headgate.present.proxy import proxy_view, reloaded_view, sessions_view
from headgate.present.view import Block
from headgate.proxy.api import ProxyReloadedDoc, ProxySessionListDoc, ProxyStatusDoc
from headgate.proxy.assemble import check_files
from headgate.proxy.status import status_document
from headgate.settings.proxy import load_proxy_settings
from tests.cli.scripted import ScriptedAgent
from tests.cli.terminal import terminal
from tests.fixtures.eventually import eventually
from tests.proxy.test_status import FACTS, seen

GOOD = """
[proxy]
protocol = "postgres"
directory = "{0}"
[[listen]]
address = "127.0.0.1:6432"
[[server]]
address = "127.0.0.1:5432"
"""


class Host:
    def __init__(self) -> None:
        self.ran: list[Path] = []

    def run_proxy(self, settings: Path) -> int:
        self.ran.append(settings)
        return 0

    def check_proxy(self, settings: Path) -> None:
        raise HeadgateError("the relay cannot be built")

    def build_proxy(self) -> Path:
        return Path("/built.so")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "proxy.toml"
    file.write_text(GOOD.format(tmp_path))
    return file


def invoke(*argv: str, host: Host | None = None) -> Any:
    return CliRunner().invoke(app, ["proxy", *argv], obj=host or Host())


def shown(blocks: Iterable[Block]) -> str:
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(drawn(blocks, Canvas(160)))
    return captured.get()


def status_shown(document: dict[str, Any]) -> str:
    return shown(proxy_view(read(ProxyStatusDoc, document)))


@pytest.mark.parametrize("argv", [["run"], []])
def test_a_file_alone_is_run(path: Path, argv: list[str]) -> None:
    host = Host()
    assert invoke(*argv, str(path), host=host).exit_code == 0
    assert host.ran == [path]


def test_lint_shows_faults_with_their_lines(path: Path) -> None:
    assert invoke("lint", str(path)).exit_code == 0
    path.write_text(path.read_text() + "[gate]\nmood = 1\n")
    done = invoke("lint", str(path))
    assert done.exit_code == 1
    assert "did you mean 'mode'?" in done.output


def test_lint_shows_what_is_odd(path: Path) -> None:
    path.write_text(path.read_text().replace("127.0.0.1:5432", "db1:5432"))
    done = invoke("lint", str(path))
    assert done.exit_code == 0 and "plain-server" in done.output
    assert invoke("lint", "--strict", str(path)).exit_code == 1


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ('[[budgets]]\nname = "web"\nmood = 1\n', "unknown"),
        ("[budgets", "is not TOML"),
        (None, "cannot be read"),
    ],
)
def test_lint_reads_the_policy_file(
    path: Path, tmp_path: Path, policy: str | None, said: str
) -> None:
    """L5: it said "no faults" where `proxy run` then blocked the policy."""
    file = tmp_path / "policy.toml"
    if policy is not None:
        file.write_text(policy)
    path.write_text(path.read_text() + f'[policy]\nfile = "{file}"\n')
    done = invoke("lint", str(path))
    assert done.exit_code == 1
    flat = " ".join(done.output.split())
    assert f"fault policy.file ({file}:" in flat and said in flat
    host = Host()
    assert invoke("check", str(path), host=host).exit_code == 1
    file.write_text("")
    assert invoke("lint", str(path)).exit_code == 0


def test_check_also_builds(path: Path) -> None:
    done = invoke("check", str(path))
    assert isinstance(done.exception, HeadgateError)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("[slowlog]\npath = '{0}/away/slow.log'\n", "slowlog.path: {0}/away does not exist"),
        ("[slowlog]\npath = '{0}'\n", "slowlog.path: {0} is a directory"),
        ("[plans]\ndsn = 'host=x nonsense=3'\n", "plans.dsn: is no connection string"),
    ],
)
def test_check_reports_what_only_the_host_knows(path: Path, more: str, told: str) -> None:
    path.write_text(path.read_text() + more.format(path.parent))
    with pytest.raises(InvalidSettings) as blocked:
        check_files(load_proxy_settings(path, {}))
    assert told.format(path.parent) in str(blocked.value)


def test_check_reports_a_directory_that_is_a_file(path: Path) -> None:
    path.write_text(GOOD.format(path))
    with pytest.raises(InvalidSettings, match=r"proxy\.directory: .* is no directory"):
        check_files(load_proxy_settings(path, {}))


def test_build_says_where(path: Path) -> None:
    assert "built /built.so" in invoke("build").output


def test_a_proxy_that_does_not_run_is_reported_with_what_to_do(path: Path) -> None:
    done = invoke("status", str(path))
    assert "no proxy answers at unix://" in str(done.exception)
    assert "headgate proxy run FILE" in str(done.exception)


def test_status_shows_who_is_blocked_by_what() -> None:
    text = status_shown(status_document(FACTS, seen(targets=[])))
    assert "serving" in text
    assert "unidentified 25.0%" in text
    assert "health 2" in text
    assert "PROBLEM  no server takes sessions" in text


def test_no_message_steers_a_terminal() -> None:
    document = status_document(FACTS, seen())
    document["clients"][0]["client"] = "\x1b[31mred"
    assert "\x1b" not in status_shown(document)


def test_sessions_and_reload_have_pages() -> None:
    session = {
        "id": 7, "client": "etl", "username": "app", "database": "shop", "peer": "127.0.0.1:5",
        "server": "db1", "server_process": 42, "age_s": 3.0, "phase": "held",
        "in_transaction": True, "statement_s": 0.5,
    }  # fmt: skip
    text = shown(sessions_view(read(ProxySessionListDoc, {"sessions": [session], "next": 7})))
    assert "held, in transaction" in text and "db1/42" in text and "there are more" in text
    assert "no sessions" in shown(sessions_view(ProxySessionListDoc([], None)))
    done = {"changed": ["gate"], "waits_for_restart": ["proxy.threads"], "advice": ["odd"]}
    text = shown(reloaded_view(read(ProxyReloadedDoc, done)))
    assert "RELOADED" in text and "proxy.threads" in text and "odd" in text


def test_watching_a_proxy_is_a_view_of_the_live_screen() -> None:
    agent = ScriptedAgent()
    agent.says("/v1/proxy/status", json.loads(json.dumps(status_document(FACTS, seen()))))
    agent.says("/v1/proxy/sessions", {"sessions": [], "next": None})
    watch = ("proxy", "status", "--watch", "--interval", "0.2s", "--url")
    with agent.serving(), terminal(*watch, agent.url) as shown_there:
        eventually(lambda: "1 proxy" in shown_there.text and "serving" in shown_there.text)
        shown_there.press(b"2")
        eventually(lambda: "no sessions" in shown_there.text)
        shown_there.press(b"xq")
        assert shown_there.wait() == 0
        assert "Traceback" not in shown_there.text
