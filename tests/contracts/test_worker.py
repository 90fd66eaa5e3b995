"""The thread behind a store: bounded, with deadlines, and never in doubt about an answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from headgate.errors import StoreUnavailable
from headgate.store.worker import Ticket, Worker
from tests.fixtures.eventually import DEADLINE_S, aeventually


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("state.db (writing)", max_waiting=2)
    yield made
    made.stop()


def soon(within_s: float = DEADLINE_S) -> float:
    return time.monotonic() + within_s


class Hang:
    """A job that the disk holds, until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.accepted: bool | None = None

    def __call__(self, ticket: Ticket[str]) -> None:
        self.begun.set()
        self.let_go.wait()
        self.accepted = ticket.settle("late")


async def test_a_job_answers(worker: Worker) -> None:
    def job(ticket: Ticket[int]) -> None:
        assert ticket.settle(7)

    assert await worker.run(job, until_mono_s=soon()) == 7


async def test_a_job_that_raises_does_not_end_the_thread(worker: Worker) -> None:
    def job(ticket: Ticket[int]) -> None:
        raise KeyError("gone")

    for _ in range(3):
        with pytest.raises(KeyError, match="gone"):
            await worker.run(job, until_mono_s=soon())


async def test_a_hung_disk_does_not_hang_the_caller(worker: Worker) -> None:
    """And the late answer is known to be late, to the job alone."""
    hang = Hang()
    while not hang.begun.is_set():  # A thread that comes too late does not begin it.
        with pytest.raises(StoreUnavailable, match=r"writing.*no answer in \S+ s.*disk"):
            await worker.run(hang, until_mono_s=soon(0.05))
    assert hang.accepted is None
    hang.let_go.set()
    await aeventually(lambda: hang.accepted is not None)
    assert hang.accepted is False


async def test_an_answer_that_is_there_first_is_never_dropped(worker: Worker) -> None:
    """The loop may be busy while the deadline passes; the work was done and is reported."""

    done = threading.Event()

    def job(ticket: Ticket[str]) -> None:
        assert ticket.settle("kept")
        done.set()

    while not done.is_set():
        until = soon(0.1)
        waiting = asyncio.create_task(worker.run(job, until_mono_s=until))
        await asyncio.sleep(0)
        while time.monotonic() < until:
            done.wait(until - time.monotonic())  # The loop stands still; the thread does not.
            time.sleep(0.01)  # noqa: ASYNC251 -- likewise
        if not done.is_set():  # Nor did the thread.
            with pytest.raises(StoreUnavailable):
                await waiting
    assert await waiting == "kept"


async def test_what_waited_past_its_deadline_is_never_begun(worker: Worker) -> None:
    hang, second = Hang(), Hang()
    first = asyncio.create_task(worker.run(hang, until_mono_s=soon()))
    await aeventually(hang.begun.is_set)
    with pytest.raises(StoreUnavailable):
        await worker.run(second, until_mono_s=soon(0.02))
    hang.let_go.set()
    assert await first == "late"
    third = Hang()
    third.let_go.set()
    await worker.run(third, until_mono_s=soon())
    assert not second.begun.is_set()


async def test_too_many_waiting_are_rejected_at_once(worker: Worker) -> None:
    hang = Hang()
    tasks = [asyncio.create_task(worker.run(hang, until_mono_s=soon()))]
    await aeventually(hang.begun.is_set)
    tasks += [asyncio.create_task(worker.run(hang, until_mono_s=soon())) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="2 operations are already waiting"):
        await worker.run(hang, until_mono_s=soon())
    hang.let_go.set()
    assert await asyncio.gather(*tasks) == ["late"] * 3


async def test_a_cancelled_caller_is_seen_by_the_job(worker: Worker) -> None:
    hang = Hang()
    task = asyncio.create_task(worker.run(hang, until_mono_s=soon()))
    await aeventually(hang.begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    hang.let_go.set()
    await aeventually(lambda: hang.accepted is not None)
    assert hang.accepted is False
