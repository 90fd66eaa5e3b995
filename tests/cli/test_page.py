"""`headgate page`: a link that a person can use, from wherever the agent was asked."""

from __future__ import annotations

import json
import socket
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.scripted import ScriptedAgent

LINK = "/sign-in#a-code"


def link(listens: str | None) -> dict[str, Any]:
    return {"path": LINK, "expires_in_s": 120.0, "name": "uid:0", "listens": listens}


def by_socket(run: Run, tmp_path: Path, listens: str | None) -> tuple[int, list[str], str]:
    with ScriptedAgent().serving(tmp_path / "s") as agent:
        agent.says("/v1/page/links", link(listens), method="POST", status=201)
        ran = run("page", url=agent.url)
    return ran.code, ran.out.splitlines(), ran.err


def test_by_the_socket_it_prints_where_the_agent_listens(run: Run, tmp_path: Path) -> None:
    code, lines, _ = by_socket(run, tmp_path, "https://10.1.2.3:8087")
    assert (code, lines[0]) == (0, f"https://10.1.2.3:8087{LINK}")
    assert lines[1] == "good once, within 120 s; signs in as uid:0, who may change things"


@pytest.mark.parametrize(
    ("listens", "here"),
    [("http://0.0.0.0:8087", "127.0.0.1"), ("http://[::]:8087", "[::1]")],
)
def test_an_agent_that_listens_everywhere_is_here_and_elsewhere(
    run: Run, tmp_path: Path, listens: str, here: str
) -> None:
    _, lines, _ = by_socket(run, tmp_path, listens)
    assert lines[0] == f"http://{here}:8087{LINK}"
    assert lines[1] == f"from elsewhere: http://{socket.gethostname()}:8087{LINK}"


def test_an_agent_without_a_port_says_what_to_set(run: Run, tmp_path: Path) -> None:
    code, lines, told = by_socket(run, tmp_path, None)
    assert code and not lines and "set `listen` of [agent]" in told


def test_by_a_url_the_link_is_at_that_url(scripted: ScriptedAgent, run: Run) -> None:
    """As the person reaches it: through a tunnel the agent's own address is of no use."""
    scripted.says("/v1/page/links", link("http://10.9.9.9:1"), method="POST", status=201)
    assert run("page").out.splitlines()[0] == f"{scripted.url}{LINK}"
    assert json.loads(run("page", "--json").out)["path"] == LINK


def test_the_browser_is_opened_on_request(
    scripted: ScriptedAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def opens(url: str) -> bool:
        opened.append(url)
        return len(opened) == 1

    monkeypatch.setattr(webbrowser, "open", opens)
    scripted.says("/v1/page/links", link(None), method="POST", status=201)
    assert run("page", "--open").code == 0
    assert opened == [f"{scripted.url}{LINK}"]
    ran = run("page", "--open")
    assert ran.code and "no browser could be opened" in ran.err


def test_an_agent_that_serves_no_page_is_reported_as_it_says(
    scripted: ScriptedAgent, run: Run
) -> None:
    told = {"status": 404, "detail": "this agent serves no page: set `enabled = true` in [page]"}
    scripted.says("/v1/page/links", told, method="POST", status=404)
    ran = run("page")
    assert ran.code and "this agent serves no page" in ran.err and not ran.out
