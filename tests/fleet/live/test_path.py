"""The path of a fleet's rule, as ARCHITECTURE.md draws it, against what a trace shows."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from uuid import uuid4

import headgate
from headgate.__main__ import ThisHost
from headgate.app import Agent
from headgate.cli.app import app
from headgate.settings.agent import load_settings
from tests.fixtures.etcd import EtcdCluster
from tests.fixtures.eventually import aeventually
from tests.fixtures.fleets import LONE
from tests.test_layers import drawn_path

ROOT = Path(headgate.__file__).parent
HANDED_ON = frozenset(
    {
        *("encode_request", "Connection.data_received", "serving.<locals>.serve"),
        *("Ruling.add_rule", "parse_rule", "revision_bytes", "Gateway._post", "Mirror.apply"),
        *("RuleKeeper.follow", "RuleBookDraft.book", "Checker.follow"),
    }
)
"""Calls that have the rule in hand: each file that is on the stack then takes part."""
OF_ALL = {"base/supervise", "cli/options"}
"""What runs every task, and every command."""


BEAT = "changes/beat"
"""Writes to the store meanwhile, and knows of no rule."""


@contextmanager
def stacks(found: dict[str, set[str]]) -> Iterator[None]:
    """Of this thread, and of those that begin meanwhile: the files on the stack, by the call."""

    def note(frame: FrameType, event: str, told: object) -> None:
        is_sent = event == "c_call" and getattr(told, "__name__", "") in ("send", "sendall")
        name = frame.f_code.co_qualname
        if not is_sent and (event != "call" or name not in HANDED_ON):
            return
        files, at = set[str](), frame.f_back
        files.add(_file(frame))
        while at is not None:
            files.add(_file(at))
            at = at.f_back
        if BEAT not in files:
            found.setdefault("sent" if is_sent else name, set()).update(files - {""})

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _file(frame: FrameType) -> str:
    """Empty: it is none of ours."""
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(ROOT).with_suffix("")) if path.is_relative_to(ROOT) else ""


async def test_the_path_of_a_fleets_rule_is_what_a_trace_shows(tmp_path: Path) -> None:
    socket = tmp_path / "a.sock"
    with EtcdCluster.started() as etcd:
        urls = ", ".join(f'"{url}"' for url in etcd.endpoints)
        settings = tmp_path / "headgate.toml"
        settings.write_text(
            f'[agent]\nname = "a"\nsocket = "{socket}"\nstate = "{tmp_path}/a.db"\n'
            f'[fleet]\nendpoints = [{urls}]\nprefix = "/{uuid4().hex[:6]}/"\n'
            f"register = false\n{LONE}"
        )
        agent = Agent(load_settings(settings), settings)
        running = asyncio.create_task(agent.run())
        try:
            found: dict[str, set[str]] = {}
            rules, fleet = agent.rooms.rules, agent.rooms.fleet
            assert fleet is not None
            await aeventually(lambda: fleet.log.follower.reader is not None)
            args = ["rule", "ratio", "etl", "0.5", "--fleet", "--yes", "--for", "1h"]
            with stacks(found):
                code = await asyncio.to_thread(_run, [*args, "--url", f"unix://{socket}"])
                await aeventually(lambda: bool(rules.book.rules))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert code == 0
    assert found.keys() == HANDED_ON | {"sent"}
    assert set().union(*found.values()) - OF_ALL == drawn_path(), found


def _run(args: list[str]) -> int:
    """As `headgate ARGS`, in a thread."""
    try:
        app(args, prog_name="headgate", obj=ThisHost())
    except SystemExit as done:
        return int(done.code or 0)
    return 0
