"""Host probes against files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import ProbeFailed
from headgate.metrics.probes.host import (
    HERE,
    HOST_METRICS,
    CounterProbe,
    HostFiles,
    HostProbe,
    RunQueueProbe,
    cores,
    disk_time,
    loadavg,
    pressure,
    refaults,
    runnable,
)
from headgate.metrics.samples import Cause

PSI = (
    "some avg10=12.50 avg60=3.00 avg300=1.00 total=123\n"
    "full avg10=99.00 avg60=0.00 avg300=0.00 total=9\n"
)


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "pressure").mkdir()
    cgroup.mkdir()
    (proc / "loadavg").write_text("6.00 4.00 2.00 1/100 4242\n")
    (proc / "self" / "cgroup").write_text("0::/\n")
    (proc / "pressure" / "io").write_text(PSI)
    return HostFiles(proc=proc, cgroup=cgroup, allowed_cores=lambda: 8)


def set_quota(files: HostFiles, group: str, text: str) -> None:
    folder = files.cgroup / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(text)


def test_load_is_per_allowed_core(files: HostFiles) -> None:
    assert loadavg(files) == 6.0 / 8


def test_a_cgroup_quota_below_the_affinity_counts(files: HostFiles) -> None:
    (files.proc / "self" / "cgroup").write_text("0::/pod/agent\n")
    set_quota(files, "pod", "150000 100000\n")
    set_quota(files, "pod/agent", "max 100000\n")
    assert cores(files) == 1.5
    assert loadavg(files) == 4.0


def test_a_quota_above_the_affinity_grants_no_more_cores(files: HostFiles) -> None:
    set_quota(files, ".", "1600000 100000\n")
    assert cores(files) == 8


@pytest.mark.parametrize("text", ["", "garbage", "max", "100000 0"])
def test_an_unreadable_quota_is_no_quota(files: HostFiles, text: str) -> None:
    set_quota(files, ".", text)
    assert cores(files) == 8


def test_pressure_is_the_share_in_which_some_task_waited(files: HostFiles) -> None:
    assert pressure("io")(files) == 0.125


def test_missing_pressure_is_unsupported_not_zero(files: HostFiles) -> None:
    with pytest.raises(ProbeFailed, match="psi=1") as caught:
        pressure("memory")(files)
    assert caught.value.cause is Cause.UNSUPPORTED


def test_pressure_without_its_line_is_unsupported(files: HostFiles) -> None:
    (files.proc / "pressure" / "cpu").write_text("full avg10=1.00\n")
    with pytest.raises(ProbeFailed) as caught:
        pressure("cpu")(files)
    assert caught.value.cause is Cause.UNSUPPORTED


@pytest.mark.parametrize("name", sorted(HOST_METRICS))
async def test_this_very_host_answers_or_says_why_not(name: str) -> None:
    probe = HostProbe(HOST_METRICS[name], HERE)
    try:
        assert await probe.read() >= 0
    except ProbeFailed as failed:
        assert failed.cause is Cause.UNSUPPORTED
    await probe.close()


# --- CPU, page cache and disk (R157), from files as a bare machine and a container have them -----

STAT = "cpu  10 0 5 100 0 0 0 0 0 0\nintr 1 2\nctxt 99\nprocesses 4242\nprocs_running {}\n"
DISKS = """\
   7       0 loop0 9 0 9 9 9 0 9 9 0 99999 9 0 0 0 0 0 0
 259       0 nvme0n1 1183 71 91786 163 5210 4133 181904 2010 0 {} 2173 0 0 0 0 0 0
   8       0 sda 12 0 96 4 0 0 0 0 0 {} 4
"""
MEMORY = "anon 8192\nfile 4096\nworkingset_refault_anon 5\nworkingset_refault_file {}\n"


class At:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_the_run_queue_is_a_mean_per_allowed_core(files: HostFiles) -> None:
    """R157: in a cgroup, of the cores that it grants."""
    probe = RunQueueProbe(files)
    for running in (1, 17, 33):
        (files.proc / "stat").write_text(STAT.format(running))
        value = await probe.read()
    assert value == pytest.approx((0 + 16 + 32) / 3 / 8)
    set_quota(files, ".", "200000 100000\n")
    assert runnable(files) == 16.0
    (files.proc / "stat").write_text("cpu 1\n")
    with pytest.raises(ProbeFailed, match="procs_running"):
        await probe.read()


async def test_the_busiest_disk_counts_and_no_loop_device(files: HostFiles) -> None:
    """R157"""
    clock = At()
    disks = files.proc / "diskstats"
    every, one = (CounterProbe(disk_time(name), files, clock) for name in ("", "sda"))
    disks.write_text(DISKS.format(1000, 50))
    for probe in (every, one):
        with pytest.raises(ProbeFailed) as first:
            await probe.read()
        assert first.value.cause is Cause.WARMING_UP
    clock.now_s += 2.0
    disks.write_text(DISKS.format(2500, 150))
    assert (await every.read(), await one.read()) == pytest.approx((0.75, 0.05))
    clock.now_s += 2.0
    disks.write_text(DISKS.format(100, 150))  # Another device of that name.
    assert await every.read() == 0.0
    with pytest.raises(ProbeFailed, match="no device sdb"):
        disk_time("sdb")(files)


@pytest.mark.parametrize("place", ["proc/vmstat", "cgroup/pod/memory.stat"])
async def test_refaults_of_the_page_cache_on_a_host_and_in_a_cgroup(
    files: HostFiles, place: str
) -> None:
    """R157"""
    with pytest.raises(ProbeFailed) as caught:
        refaults(files)
    assert caught.value.cause is Cause.UNSUPPORTED
    (files.proc / "self" / "cgroup").write_text("0::/pod\n")
    path = files.proc.parent / place
    path.parent.mkdir(exist_ok=True)
    clock = At()
    probe = CounterProbe(refaults, files, clock)
    path.write_text(MEMORY.format(1000))
    with pytest.raises(ProbeFailed):
        await probe.read()
    clock.now_s += 0.5
    path.write_text(MEMORY.format(1750))
    assert await probe.read() == 1500.0


def test_pressure_of_a_cgroup_where_the_hosts_is_hidden(files: HostFiles) -> None:
    """R157"""
    (files.proc / "self" / "cgroup").write_text("0::/pod\n")
    (files.cgroup / "pod").mkdir()
    (files.cgroup / "pod" / "memory.pressure").write_text(PSI)
    assert pressure("memory")(files) == 0.125


@pytest.mark.parametrize(
    "probe", [RunQueueProbe(), CounterProbe(disk_time()), CounterProbe(refaults)]
)
async def test_this_very_host_is_measured_or_says_why_not(
    probe: RunQueueProbe | CounterProbe,
) -> None:
    """R157"""
    for _ in range(2):
        try:
            value = await probe.read()
        except ProbeFailed as failed:
            assert failed.cause in (Cause.UNSUPPORTED, Cause.WARMING_UP)
        else:
            assert value >= 0
