"""One set of vectors, two deciders: the agent behind its HTTP edge, and the SDK behind the wire."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.demand import Demands
from headgate.check.routes import CheckRoutes
from headgate.check.snapshot import decided
from headgate.check.snapshot_api import Snapshot, SnapshotReader, SnapshotWriter, hello
from headgate.client.answers import Answer
from headgate.client.local_answers import answer_of
from headgate.client.parsing import parse_answer
from headgate.client.question import make_asker
from headgate.client.target import parse_target
from headgate.history.recorder import Recorder
from headgate.http.listener import Request
from tests.builders import NOW
from tests.fixtures.fakes import HandClock
from tests.vectors import loading
from tests.vectors.loading import Vector, check_of, line_of

WORLDS, VECTORS = loading.load()
SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "make_decide_vectors.py"
Decide = Callable[[Vector], Answer]


def by_the_agent(vector: Vector) -> Answer:
    """As a request comes in, and as an answer goes out."""
    board, clock, view = Board(), HandClock(), WORLDS.view(vector)
    board.healths["main"] = view.health
    checker = Checker(
        board,
        Recorder(max_clients=9),
        Demands(clock),
        clock,
        lambda: vector.roll,
        anonymous_may_pass=False,
    )
    checker.rules = view.rules
    target = parse_target("http://h:1")
    asker = make_asker(vector.app, "main", target, None, vector.scope or None)
    names = [name for name in vector.metrics.split(",") if name]
    path = asker.may_write(names).request.split(b" ")[1]
    answer = CheckRoutes(checker).prepare(Request("GET", path, (), b"", True))
    assert callable(answer)
    return parse_answer(answer().partition(b"\r\n\r\n")[2], ("main",))


def over_the_wire(vector: Vector, ours_s: float = 5000.0) -> Snapshot:
    """As a client has it whose clock shows `ours_s` when the agent's shows NOW."""
    writer, reader = SnapshotWriter(), SnapshotReader(ours_s)
    messages = [hello(NOW.mono_s, 1.0), writer.change(WORLDS.view(vector), NOW), writer.whole(NOW)]
    for message in (messages[0], messages[2]):
        kind, data = message.decode().removesuffix("\n\n").split("\n")
        reader.take(kind.removeprefix("event: "), data.removeprefix("data: "), ours_s)
    assert reader.snapshot is not None
    return reader.snapshot


def by_the_sdk(vector: Vector) -> Answer:
    snapshot = over_the_wire(vector)
    now = snapshot.now(5000.0)
    return answer_of(decided(snapshot.view, check_of(vector), now=now, roll=vector.roll))


@pytest.mark.parametrize("decide", [by_the_agent, by_the_sdk])
def test_every_vector_is_decided_as_it_says(decide: Decide) -> None:
    wrong = {
        str(vector): (line_of(answer), vector.answer)
        for vector in VECTORS
        if line_of(answer := decide(vector)) != vector.answer
    }
    assert wrong == {}


def test_the_answers_are_the_same_in_every_field() -> None:
    """Reason, utilisation, every metric with its age: all but who decided."""
    fields = [name for name in Answer.__match_args__ if name not in ("decided", "raw")]
    for vector in VECTORS:
        asked, local = by_the_agent(vector), by_the_sdk(vector)
        assert [getattr(local, f) for f in fields] == [getattr(asked, f) for f in fields], vector
        for name in ("app", "rule", "rules"):
            assert local.raw[name] == asked.raw[name]


def test_the_vectors_are_what_the_script_makes() -> None:
    """A decision that changes shows as a changed line."""
    made, kept = script().document(), json.loads(loading.PATH.read_text())
    assert made == kept, "run scripts/make_decide_vectors.py, and read the difference"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_decide_vectors", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
