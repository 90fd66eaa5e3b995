"""The Python in the docs runs as it is printed, against a real agent.

Every command in them is one that the command line takes, with these options and values. And what
the docs say of failures names its proof.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import typer
from typer._click.exceptions import BadOptionUsage, MissingParameter, UsageError

import headgate
from headgate.cli.app import app
from headgate.client.events import EVENTS
from tests.http.serving import Plan, Served, serving

ROOT = Path(__file__).parent.parent
ASKING = ROOT / "docs" / "howto" / "check-from-a-job.md"
SDK = ROOT / "docs" / "reference" / "sdk.md"
WITHOUT = ROOT / "docs" / "explanation" / "without-a-throttler.md"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
AGENT = re.compile(r"https?://[\w.-]+:8087")
ROWS = [{"id": number} for number in range(1, 251)]


def blocks() -> list[Any]:
    """Those that ask; the README's others belong to other tests."""
    pages = (ROOT / "README.md", ASKING, SDK, WITHOUT)
    found = [(page, match) for page in pages for match in PYTHON.finditer(page.read_text())]
    return [
        pytest.param(match[1], id=f"{page.stem}-{page.read_text()[: match.start()].count(chr(10))}")
        for page, match in found
        if re.search(r"headgate\.(Async)?Client\(", match[1])
    ]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    plan = Plan(databases=("main", "orders", "users"))
    with serving(asyncio.SelectorEventLoop, tmp_path_factory.mktemp("agent"), plan) as served:
        yield served


@pytest.fixture
def world() -> dict[str, Any]:
    """What a job brings along, and what the examples do not explain."""
    done: list[Any] = []

    async def asend(chunk: Any) -> None:
        done.append(chunk)

    return {
        "headgate": headgate,
        "done": done,
        "messages": ROWS[:5],
        "handle": done.append,
        "rows": ROWS,
        "write": done.append,
        "delete": done.append,
        "asend": asend,
        "execute": lambda *statement: done.append(statement),
        "select": lambda *statement: ROWS,
        "print": lambda *told: None,
    }


def compiled(block: str, agent: Served) -> CodeType:
    """With the agent that runs here in every place: under another name in each."""
    names = iter(
        (
            agent.base_url,
            f"unix://{agent.socket_path}",
            agent.base_url.replace("127.0.0.1", "localhost"),
        )
    )
    text = AGENT.sub(lambda _: next(names), block)
    code: CodeType = compile(text, "docs", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return code


@pytest.mark.parametrize("block", blocks())
async def test_the_docs_examples_run(
    block: str,
    agent: Served,
    world: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADGATE_URL", agent.base_url)
    monkeypatch.chdir(tmp_path)
    code = compiled(block, agent)
    try:
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, world)
        else:
            await asyncio.to_thread(exec, code, world)
    finally:
        for made in list(world.values()):
            if isinstance(made, headgate.Client):
                made.close()
    if "chunks(" in block or "ranges(" in block:
        assert world["done"], "it did its work"


def test_there_are_examples() -> None:
    assert len(blocks()) >= 8


def test_the_certificates_of_the_five_minute_shard_are_good(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "shard.md").read_text()
    commands = page.split("```sh\n")[1].split("```")[0]
    subprocess.run(
        ["bash", "-euc", commands], cwd=tmp_path, check=True, capture_output=True, timeout=60
    )
    assert (tmp_path / "peers.token").stat().st_size > 32
    for host, other in (("db-a", "db-b"), ("db-b", "db-a")):
        shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        shown.load_cert_chain(tmp_path / f"{host}.pem", tmp_path / f"{host}.key")
        trusting = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        trusting.verify_flags |= ssl.VERIFY_X509_STRICT  # As Python 3.13 does by default.
        assert handshake(trusting, shown, host) is None
        assert "mismatch" in str(handshake(trusting, shown, other))


def handshake(
    client: ssl.SSLContext, server: ssl.SSLContext, name: str
) -> ssl.SSLCertVerificationError | None:
    """In memory, until both sides are done or the client rejects the certificate."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as fault:
                return fault
    assert ours.getpeercert()
    return None


def test_every_event_is_documented() -> None:
    page = SDK.read_text()
    assert [kind.__name__ for kind in EVENTS if f"`{kind.__name__}`" not in page] == []


def test_every_row_of_the_table_of_failures_names_tests_that_exist() -> None:
    _, _, table = WITHOUT.read_text().partition("## What happens when which part dies")
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"def (test_\w+)\(", sources))
    assert len(rows) >= 12
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named and named <= known, row


# ── Commands ─────────────────────────────────────────────────────────────────

ALERTS = ROOT / "deploy" / "prometheus" / "headgate.rules.yml"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ALERTS]
FENCED = re.compile(r"^ *```(?:console|sh|bash)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
CALL = re.compile(r"(?:sudo |ssh (?:-t )?\S+ |[A-Z_]+=\S+ )*(?:\S*/)?headgate (.+)")


def arguments(line: str) -> Iterator[list[str]]:
    """Of each call of a command in a line of a shell, but those with something left out."""
    for part in re.split(r"\|\|?|&&|;|\$\(| > ", re.sub(r"^[$#] ", "", line.strip())):
        if call := CALL.fullmatch(part.strip()):
            given = shlex.split(call[1], comments=True)
            if not given[0].startswith("-") and not {"…", "--help"} & set(given):
                yield given


def fault_of(given: list[str], *, named: bool = False) -> str | None:
    """As the command line reads it, up to where the command would begin.

    `named`: a sentence may name a command, or one of its options, without what it needs. If it
    gives arguments, a reader will type it.
    """
    command: Any = typer.main.get_command(app)
    context: Any = None
    try:
        while hasattr(command, "resolve_command"):
            if not given:
                return None  # A group: it lists its commands, or has one of its own.
            context = command.context_class(command, parent=context)
            _, command, given = command.resolve_command(context, given)
        command.make_context(command.name, list(given), parent=context)
    except UsageError as error:
        typed = given and not given[0].startswith("-")
        if named and not typed and isinstance(error, MissingParameter | BadOptionUsage):
            return None
        return error.format_message()
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_the_docs_is_taken(page: Path) -> None:
    blocks = "\n".join(FENCED.findall(page.read_text())).replace("\\\n", " ")
    given = [words for line in blocks.splitlines() for words in arguments(line)]
    assert [(words, fault) for words in given if (fault := fault_of(words))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_sentence_or_an_alert_names_is_one(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\{\{.*?\}\}", "NAME", re.sub(r"(--\w+) …`", r"\1 TEXT`", text))
    named = re.findall(r"`(headgate\s[^`]+)`", text)
    lines = [" ".join(code.replace("\\|", "|").split()) for code in named]
    given = [words for line in lines for words in arguments(line)]
    assert [(words, fault) for words in given if (fault := fault_of(words, named=True))] == []


@pytest.mark.parametrize(
    "line",
    [
        "headgate chekc --as etl",
        "$ headgate check --as etl --databse main",
        "# headgate check --as etl --wait 600",
        "HEADGATE_URL=x sudo /opt/headgate/bin/headgate hold etl --for 1h | tee log",
    ],
)
def test_a_command_that_does_not_work_is_found(line: str) -> None:
    (given,) = arguments(line)
    assert fault_of(given) and fault_of(given, named=True)


def test_a_command_may_be_named_without_its_arguments() -> None:
    assert fault_of(["check"]) and fault_of(["explain", "--at"])
    assert not fault_of(["check"], named=True) and not fault_of(["explain", "--at"], named=True)
