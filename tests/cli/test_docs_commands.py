"""The commands of the docs, page by page and in their order, at a real agent.

tests/test_docs_examples.py reads every command; here they run. What needs more than an agent (a
terminal, a proxy, etcd, a server of its own) runs in the tests that ELSEWHERE names.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.__main__ import main
from headgate.demo import servers
from tests.fixtures.agents import AgentProcess, reserve_port
from tests.fixtures.eventually import eventually
from tests.test_docs_examples import FENCED, PAGES, ROOT, arguments

SETTINGS = """
name = "db-a"
allow_runtime_sql = true
[peers]
token_file = "{folder}/peers.token"
[databases.main]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 dbname=none"
shard = "commerce/-80"
[databases.main.metrics.queue]
command = ["cat", "{folder}/queue"]
threshold = 5
[databases.main.metrics.lag]
[databases.main.metrics.threads_running]
[databases.main.metrics.commit_delay]
[databases.main.traffic]
directory = "{folder}/pg_headgate"
[databases.main.peers.db-b]
url = "http://127.0.0.1:1"
[databases.main.peers.db-c]
url = "http://127.0.0.1:1"
[databases.db-a]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 dbname=none"
shard = "commerce/80-"
[databases.db-a.metrics.lag]
[databases.db-b]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 dbname=none"
shard = "commerce/80-"
[databases.db-b.metrics.lag]
"""
FILES = {
    "queue": "1",
    "peers.token": "0123456789abcdef" * 4,
    "rule.toml": 'target = "etl"\nratio = 0.9\n',
    "policy.toml": '[[budgets]]\nname = "web"\nrules = [{ match = { username = "web" } }]\n',
}
ELSEWHERE = {
    "agent": "tests/system/test_readme.py",
    "debug bundle": "tests/cli/test_debug.py",
    "doctor": "tests/live/test_doctor.py",
    "fleet": "tests/cli/test_fleet_status.py",
    "init": "tests/live/test_init.py",
    "page --open": "tests/cli/test_page.py",
    "proxy": "tests/proxy/test_cli.py",
    "pg": "tests/budgets/pgext/test_operate.py",
    "rule resume": "tests/cli/test_reaching.py",
    "rule suspend": "tests/cli/test_reaching.py",
    "run": "tests/cli/test_run.py",
    "shard handover": "tests/cli/test_commands.py",
    "top": "tests/tui/test_top.py",
    "wait": "tests/cli/test_wait.py",
}
FLEET = {"--fleet", "--region", "--shard", "--cluster", "--host"}
"""Reaches: tests/fleet/live/ has them."""
IS_ANSWER = {"check": {0, *range(10, 20)}, "explain": {0, 10}}


def commands(page: Path) -> list[tuple[list[str], str | None]]:
    """What a page has a reader type, with the file to which its output goes."""
    text = "\n".join(FENCED.findall(page.read_text())).replace("\\\n", " ")
    return [
        (
            given,
            into[1] if (into := re.search(r" > (\S+)$", line.split("  #")[0].rstrip())) else None,
        )
        for line in text.splitlines()
        for given in arguments(line)
    ]


def elsewhere(given: list[str]) -> bool:
    return bool(FLEET & set(given)) or any(
        " ".join(given).startswith(f"{one} ") or " ".join(given) == one for one in ELSEWHERE
    )


TYPED = {page: [one for one in commands(page) if not elsewhere(one[0])] for page in PAGES}


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    folder = servers.make_folder(Path("/tmp"), "hg-")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "peers.token").chmod(0o600)
    (folder / "pg_headgate").mkdir(mode=0o700)
    agent = AgentProcess(folder, reserve_port())
    agent.write_settings("", SETTINGS.format(folder=folder))
    try:
        agent.start()
        eventually(lambda: agent.check(app="etl:nightly", metrics="queue")["verdict"] == "OK")
        yield agent
    finally:
        agent.end()


def filled_in(given: list[str], agent: AgentProcess) -> list[str]:
    """With what a reader has in the place of an example's names."""
    rules = [one["id"] for one in agent.get("/v1/rules").json["rules"] if one["kind"] == "ratio"]
    revision = agent.get("/v1/changes/history").json["revisions"]
    newest = revision[0]["n"] if revision else 0
    known = {"ID": rules[-1] if rules else "ID", "14": str(newest), "13": str(max(0, newest - 1))}
    words = [known.get(word, word) for word in given]
    if "--wait" in words:
        words[words.index("--wait") + 1] = "10ms"
    if words[:2] in (["changes", "apply"], ["changes", "rollback"]):
        words.append("--yes")  # A reader answers the prompt.
    words = [re.sub(r"^(https?|unix)://.*", f"unix://{agent.socket}", word) for word in words]
    return [re.sub(r"^/etc/headgate/headgate.toml$", str(agent.settings), word) for word in words]


@pytest.mark.parametrize(
    "page",
    [page for page, typed in TYPED.items() if typed],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_commands_of_a_page_run_in_their_order(
    page: Path,
    agent: AgentProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(agent.folder)
    monkeypatch.setenv("HEADGATE_URL", f"unix://{agent.socket}")
    failed = []
    nothing_set = (["changes", "rollback", "0"], None)
    for given, into in [nothing_set, *TYPED[page]]:
        argv = filled_in(given, agent)
        monkeypatch.setattr(sys, "argv", ["headgate", *argv])
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        told = capsys.readouterr()
        if into is not None:
            (agent.folder / Path(into).name).write_text(told.out)
        if code not in IS_ANSWER.get(argv[0], {0}):
            failed.append((argv, code, told.err, told.out))
    assert failed == []


def test_what_runs_elsewhere_is_typed_there() -> None:
    for command, path in ELSEWHERE.items():
        text = (ROOT / path).read_text()
        assert re.search(rf"[\"' ]{command.split()[-1]}\b", text), (command, path)
