"""Plug-ins as users write and install them: a function and an entry point."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from headgate.errors import InvalidSettings
from headgate.metrics.probes.plugin import PluginProbe, load_plugin
from headgate.metrics.samples import Cause
from tests.fixtures.eventually import eventually
from tests.metrics.probes.reading import becomes, failure, within, works

EXAMPLE = """
import asyncio, sys, threading

released = threading.Event()
both = threading.Barrier(2)

def depth(options):
    return options["base"] + 2

async def later(options):
    await asyncio.sleep(0)
    return 7

def broken(options):
    raise RuntimeError("the queue is away")

def word(options):
    return "12"

def held(options):
    released.wait()
    return 5

def meets(options):
    return both.wait()

def leaves(options):
    sys.exit("done here")

def interrupts(options):
    raise KeyboardInterrupt

def stops(options):
    next(iter(()))

async def leaves_later(options):
    sys.exit("done here")

async def cancels(options):
    raise asyncio.CancelledError

async def sleeps(options):
    await asyncio.sleep(600)

constant = 3
"""
ROGUES = ["held", "leaves", "interrupts", "stops", "leaves_later", "cancels", "sleeps"]
_names = itertools.count()

Load = Callable[..., PluginProbe]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Installs EXAMPLE as a distribution, as pip would leave it on sys.path."""
    module = f"queue_plugin_{next(_names)}"
    (tmp_path / f"{module}.py").write_text(EXAMPLE)
    info = tmp_path / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    functions = ["depth", "later", "broken", "word", "meets", "constant", "absent", *ROGUES]
    entries = "\n".join(f"{name} = {module}:{name}" for name in functions)
    lost = "lost = no_such_module_at_all:read"
    (info / "entry_points.txt").write_text(f"[headgate.probes]\n{entries}\n{lost}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name, **options: load_plugin("mine", name, MappingProxyType(options))
    if module in sys.modules:
        release()
        del sys.modules[module]
    # A call that was given up counts against the next one of its name until it has returned.
    eventually(lambda: not any(t.name.startswith("plug-in") for t in threading.enumerate()))


async def test_a_function_is_enough(load: Load) -> None:
    """R3"""
    assert await load("depth", base=40).read() == 42


async def test_it_may_be_a_coroutine_function(load: Load) -> None:
    assert await load("later").read() == 7


async def test_what_it_raises_is_a_failed_reading(load: Load) -> None:
    failed = await failure(load("broken"))
    assert failed.cause is Cause.FAILED
    assert "RuntimeError: the queue is away" in failed.detail


async def test_what_is_no_number_is_invalid(load: Load) -> None:
    failed = await failure(load("word"))
    assert failed.cause is Cause.INVALID
    assert "plug-in word" in failed.detail


async def test_a_stuck_plugin_neither_blocks_the_agent_nor_piles_up(load: Load) -> None:
    probe = load("held")
    with pytest.raises(TimeoutError):
        await within(probe, 0.05)
    assert (await failure(probe)).cause is Cause.TIMED_OUT


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("leaves", "SystemExit: done here"),
        ("interrupts", "KeyboardInterrupt"),
        ("stops", "StopIteration"),
        ("leaves_later", "SystemExit: done here"),
        ("cancels", "CancelledError"),
    ],
)
async def test_what_would_end_a_program_is_a_failed_reading_each_time(
    load: Load, name: str, said: str
) -> None:
    probe = load(name)
    for _ in range(2):
        failed = await failure(probe)
        assert failed.cause is Cause.FAILED
        assert f"plug-in {name} raised" in failed.detail
        assert said in failed.detail


async def test_a_cancelled_read_stays_cancelled(load: Load) -> None:
    reading = asyncio.create_task(load("sleeps").read())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()


async def test_a_metric_recreated_leaves_no_hung_thread_each_time(load: Load) -> None:
    before = threading.active_count()
    with pytest.raises(TimeoutError):
        await within(load("held"), 0.05)
    for n in range(20):
        failed = await failure(load("held", patched=n))
        assert failed.cause is Cause.TIMED_OUT
        assert "has not returned yet" in failed.detail
    assert threading.active_count() <= before + 1
    release()
    await becomes(lambda: works(load("held")))


async def test_metrics_of_one_plugin_are_read_at_the_same_time(load: Load) -> None:
    """Each waits for the other."""
    readings = [load("meets", n=n).read() for n in range(2)]
    assert sorted(await asyncio.gather(*readings)) == [0, 1]


def release() -> None:
    [module] = [found for name, found in sys.modules.items() if name.startswith("queue_plugin_")]
    module.released.set()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere", "known: absent, broken, cancels, constant, depth"),
        ("lost", "no_such_module_at_all"),
        ("absent", "cannot be imported"),
        ("constant", "is no function"),
    ],
)
def test_what_cannot_be_loaded_is_said_at_once(load: Load, name: str, said: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load(name)
    assert said in str(caught.value)
    assert "metrics.mine.plugin" in str(caught.value)
