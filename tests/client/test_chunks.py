"""chunks and ranges, of both clients: sizes that follow the answers, cursors, progress."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import AsyncClient, Client, FileCursor, InvalidSettings
from headgate.client.runs import Progress, cursor_of, display_of, line_of
from tests.client import bodies
from tests.client.faketime import FakeTime
from tests.client.scripted import REFUSED, Play, ScriptedAgent, answer
from tests.fixtures.eventually import DEADLINE_S

SOURCE = str(Path(headgate.__path__[0]).parent)


def at(utilization: float | None) -> Play:
    return answer(200, bodies.ok(utilization=utilization))


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    with ScriptedAgent(default=at(0.2)) as agent:
        yield agent


class Job:
    """Runs over chunks with either client; `body` is what is done with each."""

    def __init__(self, kind: str, agent: ScriptedAgent) -> None:
        self.kind = kind
        self.time = FakeTime()
        self._settings: dict[str, Any] = {"database": "main", "url": agent.url}
        self._settings["clock"] = self.time.clock

    def run(self, method: str, *args: Any, body: Callable[[Any], object], **options: Any) -> None:
        if self.kind == "sync":
            self._run(method, args, body, options)
        else:
            asyncio.run(self._arun(method, args, body, options))

    def _run(self, method: str, args: Any, body: Callable[[Any], object], options: Any) -> None:
        with Client("etl", sleep=self.time.sleep, **self._settings) as gate:
            for chunk in getattr(gate, method)(*args, **options):
                body(chunk)

    async def _arun(
        self, method: str, args: Any, body: Callable[[Any], object], options: Any
    ) -> None:
        async with AsyncClient("etl", sleep=self.time.asleep, **self._settings) as gate:
            async for chunk in getattr(gate, method)(*args, **options):
                body(chunk)

    def sizes(self, items: Iterable[Any], chunk_s: float, **options: Any) -> list[int]:
        """Of the chunks, where each takes `chunk_s`."""
        sizes: list[int] = []

        def body(chunk: list[Any]) -> None:
            sizes.append(len(chunk))
            self.time.now_s += chunk_s

        self.run("chunks", items, body=body, **options)
        return sizes


@pytest.fixture(params=["sync", "async"])
def job(request: pytest.FixtureRequest, agent: ScriptedAgent) -> Job:
    return Job(request.param, agent)


# --- sizes ----------------------------------------------------------------------------------


def test_a_size_alone_is_kept(job: Job) -> None:
    assert job.sizes(range(25), chunk_s=60.0, size=10) == [10, 10, 5]
    assert job.time.slept == []


def test_without_a_size_chunks_grow_while_the_database_is_at_ease(job: Job) -> None:
    assert job.sizes(range(700), chunk_s=0.01) == [100, 150, 225, 225]


def test_chunks_shrink_and_are_spaced_out_near_the_threshold(
    job: Job, agent: ScriptedAgent
) -> None:
    agent.script.default = at(1.0)
    sizes = job.sizes(range(160), chunk_s=0.1)
    assert sizes == [100, 50, 10]
    assert job.time.slept == pytest.approx([0.4, 0.4])


def test_chunks_that_take_too_long_shrink(job: Job) -> None:
    assert job.sizes(range(175), chunk_s=10.0, min_size=20, target_s=1.0) == [100, 50, 25]


def test_an_unknown_utilization_is_no_reason_to_grow(job: Job, agent: ScriptedAgent) -> None:
    agent.script.default = at(None)
    assert job.sizes(range(300), chunk_s=0.01) == [100, 100, 100]


def test_each_chunk_is_asked_for(job: Job, agent: ScriptedAgent) -> None:
    """R30, also where a refusal comes in between."""
    agent.script.plays.extend([at(0.2), REFUSED, REFUSED])
    assert job.sizes(range(30), chunk_s=0.0, size=10) == [10, 10, 10]
    assert len(agent.heard) == 5


# --- cursors --------------------------------------------------------------------------------


def stopping_after(count: int, into: list[Any]) -> Callable[[Any], None]:
    def body(chunk: Any) -> None:
        into.append(list(chunk))
        if len(into) == count:
            raise KeyboardInterrupt

    return body


def test_a_stopped_job_takes_up_after_the_last_chunk_that_was_done(
    job: Job, tmp_path: Path
) -> None:
    """The one that was cut short is done again."""
    path = tmp_path / "job.cursor"
    seen: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        job.run("chunks", range(10), 3, cursor=path, body=stopping_after(3, seen))
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert json.loads(path.read_text()) == {"position": 6}
    again: list[Any] = []
    job.run("chunks", range(10), 3, cursor=path, body=again.append)
    assert again == [[6, 7, 8], [9]]
    assert not path.exists(), "a count is of no use for another list"


def test_a_key_says_where_a_job_got_to(job: Job, tmp_path: Path) -> None:
    """Rows may have come or gone in between: it takes up behind the key, not at a count."""
    path = tmp_path / "job.cursor"
    seen: list[Any] = []
    rows = [{"id": number} for number in (2, 3, 5, 7, 11)]

    def key(row: dict[str, int]) -> int:
        return row["id"]

    with pytest.raises(KeyboardInterrupt):
        job.run("chunks", rows, 2, cursor=path, key=key, body=stopping_after(2, seen))
    again: list[Any] = []
    job.run("chunks", [{"id": 1}, *rows[1:]], 2, cursor=path, key=key, body=again.append)
    assert [[row["id"] for row in chunk] for chunk in again] == [[5, 7], [11]]
    assert FileCursor(path).load() == 11
    job.run("chunks", rows, 2, cursor=path, key=key, body=again.append)
    assert len(again) == 2, "a key stays: what is done is done"


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_chunk_that_ends_within_items_of_one_key_loses_none(
    job: Job, tmp_path: Path, size: int, stop: int
) -> None:
    """The rest of them would be passed over: those of an unfinished key are done again."""
    rows = [(day, n) for n, day in enumerate([1, 1, 1, 2, 3, 3, 3, 3, 3, 4])]
    path = tmp_path / "job.cursor"
    seen: list[Any] = []

    def key(row: tuple[int, int]) -> int:
        return row[0]

    def again(chunk: list[Any]) -> None:
        seen.append(chunk)

    with contextlib.suppress(KeyboardInterrupt):
        job.run("chunks", rows, size, cursor=path, key=key, body=stopping_after(stop, seen))
        seen.append([])
    cut_short = seen.pop()
    done = [row for chunk in seen for row in chunk]
    position = FileCursor(path).load()
    whole = {row for row in rows if position is not None and row[0] <= position}
    assert whole <= set(done), "what is passed over was done"
    job.run("chunks", rows, size, cursor=path, key=key, body=again)
    assert {row for chunk in seen for row in chunk} | set(cut_short) == set(rows)
    assert FileCursor(path).load() == 4


def test_a_key_of_several_columns_is_taken_up_after(job: Job, tmp_path: Path) -> None:
    """JSON gives a list for a tuple, and Python compares the two with nothing but an error."""
    path, rows = tmp_path / "job.cursor", [(d, n) for d in "ab" for n in range(3)]
    again: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        job.run("chunks", rows, 2, cursor=path, key=lambda r: r, body=stopping_after(3, []))
    job.run("chunks", rows, 2, cursor=path, key=lambda r: r, body=again.append)
    assert again == [[("b", 1), ("b", 2)]]


def test_items_out_of_order_are_not_lost_in_silence(job: Job, tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="items must be in order"):
        job.run(
            "chunks", [3, 4, 1, 2], 2,
            cursor=tmp_path / "c", key=lambda number: number, body=lambda chunk: None,
        )  # fmt: skip


def test_ranges_of_ids(job: Job, agent: ScriptedAgent, tmp_path: Path) -> None:
    path = tmp_path / "ids.cursor"
    seen: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        job.run("ranges", 1, 10, 4, cursor=path, body=stopping_after(2, seen))
    assert seen == [[1, 2, 3, 4], [5, 6, 7, 8]]
    left: list[range] = []
    job.run("ranges", 1, 10, 4, cursor=path, body=left.append)
    assert left == [range(5, 9), range(9, 11)]
    job.run("ranges", 1, 12, 4, cursor=path, body=left.append)
    assert left[2:] == [range(11, 13)], "more ids have come since"
    job.run("ranges", 5, 4, body=left.append)
    assert len(left) == 3
    assert len(agent.heard) == 5


def test_ids_below_zero_are_taken_up_as_well(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "ids.cursor"
    seen: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        job.run("ranges", -20, 4, 10, cursor=path, body=stopping_after(2, seen))
    left: list[range] = []
    job.run("ranges", -20, 4, 10, cursor=path, body=left.append)
    assert left == [range(-10, 0), range(5)]


def test_a_cursor_of_two_functions(job: Job) -> None:
    saved: list[Any] = [4]
    seen: list[Any] = []
    job.run("chunks", range(8), 2, cursor=(lambda: saved[-1], saved.append), body=seen.append)
    assert seen == [[4, 5], [6, 7]]
    assert saved == [4, 6, 8, None]


async def test_an_asynchronous_cursor_is_awaited(agent: ScriptedAgent) -> None:
    saved: list[Any] = []

    class Row:
        async def load(self) -> int | None:
            return 2

        async def save(self, position: Any) -> None:
            saved.append(position)

    async with AsyncClient("etl", database="main", url=agent.url) as gate:
        chunks = [chunk async for chunk in gate.chunks(range(6), 2, cursor=Row())]
    assert (chunks, saved) == ([[2, 3], [4, 5]], [4, 6, None])


def test_nothing_is_saved_for_a_loop_that_was_left(agent: ScriptedAgent, tmp_path: Path) -> None:
    path = tmp_path / "job.cursor"
    with Client("etl", database="main", url=agent.url) as gate:
        chunks = gate.chunks(range(9), 3, cursor=path)
        next(chunks)
        assert not path.exists()
        next(chunks)
        assert FileCursor(path).load() == 3
        chunks.close()  # type: ignore[attr-defined]  # as `break` does
    assert FileCursor(path).load() == 3


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"position"'])
def test_a_cursor_file_that_is_none_is_not_taken_for_the_beginning(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "job.cursor"
    path.write_text(text)
    with pytest.raises(InvalidSettings, match="delete it to start from the beginning"):
        FileCursor(path).load()


def test_a_cursor_survives_as_it_was_or_as_it_is(tmp_path: Path) -> None:
    cursor = FileCursor(tmp_path / "job.cursor")
    cursor.save([7, "x"])
    with pytest.raises(InvalidSettings, match="key= return a number or a text"):
        cursor.save({1, 2})
    assert cursor.load() == [7, "x"]
    assert [path.name for path in tmp_path.iterdir()] == ["job.cursor"]
    assert repr(cursor) == f"FileCursor({str(tmp_path / 'job.cursor')!r})"


@pytest.mark.parametrize("given", [7, (1, 2), object(), (len,)])
def test_what_is_no_cursor_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSettings, match="cursor"):
        cursor_of(given)


def test_a_cursor_that_could_not_be_written_is_refused_before_any_work(job: Job) -> None:
    done: list[Any] = []
    with pytest.raises(InvalidSettings, match="nothing can be written to /nowhere/at"):
        job.run("chunks", range(9), 3, cursor="/nowhere/at/all.cursor", body=done.append)
    assert done == []


def test_a_key_needs_a_cursor_and_a_saved_key_its_key(job: Job) -> None:
    for options, message in (
        ({"key": len}, "give a cursor"),
        ({"cursor": (lambda: "k", print)}, "is no number: give the key="),
    ):
        with pytest.raises(InvalidSettings, match=message):
            job.run("chunks", [1], 1, body=print, **options)


# --- progress -------------------------------------------------------------------------------


def test_progress_is_told_after_each_chunk(job: Job) -> None:
    told: list[Progress] = []

    def body(chunk: list[int]) -> None:
        job.time.now_s += 0.5

    job.run("chunks", range(5), 2, progress=told.append, body=body)
    assert told == [
        Progress(2, 5, 2, 0.5, 0.2),
        Progress(4, 5, 2, 1.0, 0.2),
        Progress(5, 5, 1, 1.5, 0.2),
    ]
    assert line_of(told[1]) == ("4 of 5 (80%), 4/s, chunks of 2, database at 20% of its threshold")


def test_progress_that_fails_ends_no_job_and_loses_no_position(
    job: Job, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "job.cursor"
    seen: list[Any] = []

    def broken(progress: Progress) -> None:
        seen.append((progress.done, FileCursor(path).load()))
        raise ValueError("no such dashboard")

    job.run("chunks", range(9), 3, cursor=path, progress=broken, body=lambda chunk: None)
    assert seen == [(3, 3)], "its position was saved before; and nobody is told twice"
    assert caplog.text.count("ValueError: no such dashboard") == 1


def test_progress_counts_what_earlier_runs_did(job: Job, tmp_path: Path) -> None:
    told: list[Progress] = []
    for method, args, options in (
        ("chunks", (range(10), 5), {"cursor": (lambda: 5, lambda _: None)}),
        ("chunks", (range(10), 5), {"cursor": (lambda: 4, lambda _: None), "key": lambda n: n}),
        ("ranges", (101, 110, 5), {"cursor": (lambda: 105, lambda _: None)}),
    ):
        job.run(method, *args, progress=told.append, body=lambda chunk: None, **options)
    assert [(one.done, one.total) for one in told] == [(10, 10)] * 3


def test_a_source_without_a_length_has_no_total() -> None:
    assert line_of(Progress(5000, None, 100, 0.0, None)) == "5,000, 0/s, chunks of 100"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("library", ["rich", "tqdm", "plain"])
def test_progress_on_a_terminal(
    library: str, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library != "plain":
        pytest.importorskip(library)
    for other in {"rich": ("tqdm",), "tqdm": ("rich.progress",)}.get(
        library, ("tqdm", "rich.progress")
    ):
        monkeypatch.setitem(sys.modules, other, None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    with Client("etl:nightly", database="main", url=agent.url) as gate:
        assert len(list(gate.chunks(range(50), 10, progress=True))) == 5
    assert "etl:nightly" in terminal.getvalue()
    assert "50" in terminal.getvalue()


def test_nothing_is_shown_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert display_of(True, "etl", 10) is None
    assert display_of(False, "etl", 10) is None


def test_a_job_that_is_killed_takes_up(agent: ScriptedAgent, tmp_path: Path) -> None:
    """By SIGKILL in the middle of its third chunk."""
    program = (
        "import os, signal, sys, headgate\n"
        "gate = headgate.Client('etl', database='main')\n"
        "for n, ids in enumerate(gate.ranges(1, 100, 10, cursor=sys.argv[1])):\n"
        "    print(ids[0], ids[-1], flush=True)\n"
        "    if n == 2 and len(sys.argv) > 2: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "job.cursor")]
    env = {"HEADGATE_URL": agent.url, "PYTHONPATH": SOURCE}
    killed, again = (
        subprocess.run(
            [*command, *more], env=env, capture_output=True, text=True, timeout=DEADLINE_S
        )
        for more in (["die"], [])
    )
    assert killed.returncode == -9
    assert killed.stdout.splitlines() == ["1 10", "11 20", "21 30"]
    assert again.stdout.splitlines()[:1] == ["21 30"]
    assert again.stdout.splitlines()[-1:] == ["91 100"]
