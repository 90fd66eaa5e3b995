"""Host probes against files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.errors import ProbeFailed
from headgate.metrics.probes.host import (
    HERE,
    HOST_METRICS,
    HostFiles,
    HostProbe,
    cores,
    loadavg,
    pressure,
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
