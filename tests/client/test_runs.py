"""Runs over many items: how large a chunk is, how far the job is, where it resumes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headgate
from headgate import AsyncClient, Client, FileCursor
from headgate.client.runs import (
    Progress,
    Sizes,
    cursor_of,
    display_of,
    line_of,
    room,
    sizes_of,
    smoothed,
)
from headgate.errors import InvalidSettings
from tests.client import bodies
from tests.client.faketime import FakeTime
from tests.client.scripted import REJECTED, Play, ScriptedAgent, answer
from tests.fixtures.eventually import DEADLINE_S

ADAPTIVE = sizes_of(None, None, None, None)
used = st.none() | st.floats(0, 100, allow_nan=False)
took = st.floats(0, 1e6, allow_nan=False)


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    low = draw(st.integers(1, 1000))
    begin = low + draw(st.integers(0, 1000))
    high = begin + draw(st.integers(0, 10_000))
    return sizes_of(begin, low, high, draw(st.floats(0.001, 100)))


def test_nothing_said_adapts_and_a_size_alone_is_kept() -> None:
    assert Sizes(100, 10, 1000, 0.5, adapts=True) == ADAPTIVE
    fixed = sizes_of(500, None, None, None)
    assert not fixed.adapts
    assert fixed.next(500, took_s=60.0, utilization=0.99) == 500
    assert fixed.pause_s(took_s=0.001, utilization=0.99) == 0.0


@pytest.mark.parametrize(
    ("size", "took_s", "utilization", "next_size"),
    [
        (100, 0.1, 0.2, 150),  # at ease and quick: up by half
        (100, 0.5, 0.2, 100),  # takes as long as it may
        (100, 0.625, 0.2, 80),  # takes too long: what fits into target_s
        (100, 60.0, 0.2, 50),  # far too long: by half, and again
        (600, 0.1, 0.75, 505),  # half-way to the threshold: half-way between the bounds
        (400, 0.1, 1.0, 200),
        (15, 0.1, 1.0, 10),  # at the threshold: as small as may be
        (15, 0.1, 7.0, 10),
        (100, 0.1, None, 100),  # nobody knows: no larger
        (1000, 0.0, 0.0, 1000),
        (10, 60.0, 0.0, 10),
    ],
)
def test_the_next_size(size: int, took_s: float, utilization: float | None, next_size: int) -> None:
    assert ADAPTIVE.next(size, took_s, utilization) == next_size


def test_one_item_grows_to_two() -> None:
    assert sizes_of(1, 1, 10, 1.0).next(1, took_s=0.01, utilization=0.0) == 2


@pytest.mark.parametrize(
    ("took_s", "utilization", "pause_s"),
    [(0.1, 0.5, 0.0), (0.1, 0.75, 0.2), (0.1, 1.0, 0.4), (0.1, 3.0, 0.4), (0.6, 1.0, 0.0)],
)
def test_chunks_are_spaced_out_towards_the_threshold(
    took_s: float, utilization: float, pause_s: float
) -> None:
    assert ADAPTIVE.pause_s(took_s, utilization) == pytest.approx(pause_s)


@given(sizes(), st.integers(1, 20_000), took, used)
def test_the_size_stays_within_its_bounds(
    plan: Sizes, size: int, took_s: float, utilization: float | None
) -> None:
    assert plan.min_size <= plan.next(size, took_s, utilization) <= plan.max_size
    assert 0 <= plan.pause_s(took_s, utilization) <= plan.target_s


@given(sizes(), st.integers(1, 20_000), took, st.floats(0, 100), st.floats(0, 100))
def test_more_utilization_never_gives_a_larger_chunk_nor_a_shorter_pause(
    plan: Sizes, size: int, took_s: float, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    assert plan.next(size, took_s, more) <= plan.next(size, took_s, less)
    assert plan.pause_s(took_s, more) >= plan.pause_s(took_s, less)


@given(sizes(), st.integers(1, 20_000), took, took, st.floats(0, 100))
def test_a_slower_chunk_is_never_followed_by_a_larger_one(
    plan: Sizes, size: int, one: float, other: float, utilization: float
) -> None:
    quick, slow = sorted((one, other))
    assert plan.next(size, slow, utilization) <= plan.next(size, quick, utilization)


@given(st.floats(0, 100))
def test_room_is_a_share(utilization: float) -> None:
    assert 0 <= room(utilization) <= 1


# --- against databases of three kinds -------------------------------------------------------
# 2,000 items/s are to be had; 1,000 are as many as the database sustained.


def instant() -> Callable[[float, float], float]:
    return lambda rate, dt_s: rate / 1000


def averaged() -> Callable[[float, float], float]:
    """As CPU and running statements: a mean of about a second."""
    mean = 0.0

    def utilization(rate: float, dt_s: float) -> float:
        nonlocal mean
        mean += (1 - math.exp(-dt_s)) * (rate / 1000 - mean)
        return mean

    return utilization


def backlog() -> Callable[[float, float], float]:
    """As replication lag: what is not replayed piles up."""
    waiting = 0.0

    def utilization(rate: float, dt_s: float) -> float:
        nonlocal waiting
        waiting = max(0.0, waiting + (rate - 800) * dt_s)
        return waiting / 2000

    return utilization


@pytest.mark.parametrize("database", [instant, averaged, backlog])
def test_work_settles_below_the_threshold_instead_of_stopping_and_going(
    database: Callable[[], Callable[[float, float], float]],
) -> None:
    utilization, rates, rejected = database(), [], 0
    size, pause_s, pressure = ADAPTIVE.size, 0.0, None
    for _ in range(300):
        took_s = size / 2000
        rates.append(size / (took_s + pause_s))
        used = utilization(rates[-1], took_s + pause_s)
        while used >= 1 and rates[-1] < 2000:
            rejected, used = rejected + 1, utilization(0.0, 0.3)
        pressure = smoothed(pressure, used)
        size = ADAPTIVE.next(size, took_s, pressure)
        pause_s = ADAPTIVE.pause_s(took_s, pressure)
    settled = rates[-100:]
    assert min(settled) > 750 and max(settled) < 900, settled
    assert rejected <= 5


def test_what_is_not_known_is_not_made_up() -> None:
    assert smoothed(0.9, None) is None
    assert smoothed(None, 0.9) == 0.9
    assert smoothed(0.5, 1.0) == 0.75


@pytest.mark.parametrize(
    ("given_sizes", "place"),
    [
        ((0, None, None, None), "size"),
        ((-1, None, None, None), "size"),
        ((100, 200, None, None), "size"),
        ((100, None, 50, None), "size"),
        ((None, 0, None, None), "size"),
        ((None, None, None, 0.0), "target_s"),
        ((None, None, None, math.inf), "target_s"),
    ],
)
def test_impossible_sizes_are_rejected_at_the_call(
    given_sizes: tuple[int | None, int | None, int | None, float | None], place: str
) -> None:
    with pytest.raises(InvalidSettings, match=place):
        sizes_of(*given_sizes)


# --- chunks and ranges, of both clients: sizes that follow the answers, cursors, progress ---


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


def test_each_chunk_is_checked(job: Job, agent: ScriptedAgent) -> None:
    """R30, also where a rejection comes in between."""
    agent.script.plays.extend([at(0.2), REJECTED, REJECTED])
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


def test_a_finished_cursor_says_so(
    job: Job, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ids.cursor"
    job.run("ranges", 1, 4, 4, cursor=path, body=lambda _: None)
    assert not caplog.messages
    job.run("ranges", 1, 4, 4, cursor=path, body=lambda _: None)
    (told,) = caplog.messages
    assert told.startswith(f"nothing was left to do: {path} is at 4; ")


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
def test_what_is_no_cursor_is_rejected(given: Any) -> None:
    with pytest.raises(InvalidSettings, match="cursor"):
        cursor_of(given)


def test_a_cursor_that_could_not_be_written_is_rejected_before_any_work(job: Job) -> None:
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


def test_progress_is_reported_after_each_chunk(job: Job) -> None:
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
