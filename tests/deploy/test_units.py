"""The units: systemd itself finds no fault, and little to attack."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headgate.app import STOP_GRACE_S
from headgate.base.notify import LONGEST_SIGN_INTERVAL_S, SIGNS_PER_DEADLINE
from headgate.cli.files import FILES
from tests.deploy.charts import DEPLOY, ROOT

UNITS = sorted(path.name for path in DEPLOY.glob("*.service"))
AGENTS = ["headgate.service", "headgate@.service"]
PROXY = "headgate-proxy.service"
WORST_EXPOSURE = 2.0
SANDBOX = (
    *("LimitCORE", "CapabilityBoundingSet", "AmbientCapabilities", "NoNewPrivileges"),
    *("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectClock"),
    *("ProtectControlGroups", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules"),
    *("ProtectKernelTunables", "RestrictAddressFamilies", "RestrictNamespaces"),
    *("RestrictRealtime", "RestrictSUIDSGID", "LockPersonality", "MemoryDenyWriteExecute"),
    *("RemoveIPC", "SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber"),
)
ANALYZE_S = 60.0


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not on this machine (Debian: package systemd)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=ANALYZE_S)
    if "Failed to create directory '/run/systemd" in done.stderr:
        pytest.skip("systemd-analyze needs /run/systemd, which this user may not make")
    return done


def settings_of(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / unit).read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_there_are_units() -> None:
    assert ["headgate-proxy.service", *AGENTS] == UNITS


def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    for unit in UNITS:
        # The programs of an installation are not here: only that they are named is left unsaid.
        text = (DEPLOY / unit).read_text().replace("/opt/headgate/bin/headgate", "/bin/true")
        (tmp_path / unit).write_text(text)
    done = analyze("verify", "--man=no", *(tmp_path / unit for unit in UNITS))
    said = [
        line for line in done.stderr.splitlines() if str(tmp_path) in line or "headgate" in line
    ]
    assert said == []
    assert done.returncode == 0, done.stderr


def test_systemd_would_find_a_fault(tmp_path: Path) -> None:
    text = (DEPLOY / "headgate.service").read_text()
    (tmp_path / "headgate.service").write_text(text.replace("Type=notify", "Type=notified"))
    done = analyze("verify", "--man=no", tmp_path / "headgate.service")
    assert "notified" in done.stderr


@pytest.mark.parametrize("unit", UNITS)
def test_there_is_little_to_attack(unit: str, tmp_path: Path) -> None:
    copy = tmp_path / unit.replace("@", "@x")
    copy.write_text((DEPLOY / unit).read_text())
    done = analyze("security", "--offline=yes", "--no-pager", copy)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge files (before 250)")
    level = re.search(r"exposure level for .*: ([0-9.]+)", done.stdout)
    assert level is not None, done.stderr
    assert float(level[1]) <= WORST_EXPOSURE


def test_the_proxy_has_the_agents_sandbox() -> None:
    """M8: it reads bytes of anyone who connects."""
    agent, proxy = settings_of(AGENTS[0]), settings_of(PROXY)
    assert {name: proxy.get(name) for name in SANDBOX} == {name: agent[name] for name in SANDBOX}


def system_calls(group: str) -> set[str]:
    """Of a group of systemd's, with those of the groups in it."""
    found: set[str] = set()
    for line in analyze("--no-pager", "syscall-filter", group).stdout.splitlines()[1:]:
        name = line.strip()
        if name.startswith("@"):
            found |= system_calls(name)
        elif name and not name.startswith("#"):
            found.add(name)
    return found


def test_the_proxy_may_call_what_its_loop_needs() -> None:
    allowed: set[str] = set()
    for value in settings_of(PROXY)["SystemCallFilter"]:
        groups = value.removeprefix("~").split()
        named = set().union(*(system_calls(group) for group in groups))
        allowed = allowed - named if value.startswith("~") else allowed | named
    needed = {"epoll_wait", "recvfrom", "sendto", "sendmsg", "memfd_create"}
    assert needed <= allowed


@pytest.mark.parametrize("unit", AGENTS)
def test_a_stuck_loop_is_restarted_and_logs_where_it_was_stuck(unit: str) -> None:
    settings = settings_of(unit)
    assert settings["Type"] == ["notify"]
    deadline_s = float(settings["WatchdogSec"][0])
    assert deadline_s >= LONGEST_SIGN_INTERVAL_S * SIGNS_PER_DEADLINE
    assert settings["Restart"] == ["always"]
    assert settings["StartLimitIntervalSec"] == ["0"], "one that gives up leaves a host alone"
    assert "PYTHONFAULTHANDLER=1" in settings["Environment"]


@pytest.mark.parametrize("unit", AGENTS)
def test_a_rejected_file_is_not_tried_forever(unit: str) -> None:
    assert settings_of(unit)["RestartPreventExitStatus"] == ["2"]


@pytest.mark.parametrize("unit", AGENTS)
def test_a_stop_has_the_time_that_it_takes(unit: str) -> None:
    assert float(settings_of(unit)["TimeoutStopSec"][0]) >= 2 * STOP_GRACE_S


def test_the_template_is_the_unit_by_another_name() -> None:
    one, many = (settings_of(unit) for unit in AGENTS)
    differ = {name for name in one.keys() | many.keys() if one.get(name) != many.get(name)}
    assert differ == {"Description", "ExecStart", "StateDirectory", "RuntimeDirectory"}
    assert all("%i" in many[name][0] for name in differ)


def test_the_user_of_the_units_is_made() -> None:
    users = (DEPLOY / "headgate.sysusers").read_text()
    assert {settings_of(unit)["User"][0] for unit in UNITS} == set(
        re.findall(r"^u (\S+)", users, re.M)
    )


def test_the_page_shows_the_units_that_there_are() -> None:
    page = (ROOT / "docs" / "howto" / "run-as-a-service.md").read_text()
    names = {file.path: name for name, file in FILES.items()}
    for unit in AGENTS:
        assert f"headgate files {names[unit]}" in page
