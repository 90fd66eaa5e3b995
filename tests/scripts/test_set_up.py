"""scripts/lib.sh on machines that lack something: one clear line with what to run, and no harm.

Each test runs the real scripts in a copy of them, with a PATH of its own: what is not linked into
that folder is not on the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = """
bash env sh id dirname basename cat mkdir rm touch stat tail sed grep sha256sum cut sleep flock find
head mktemp mv chmod printf date tr wc true readlink
"""
Ran = subprocess.CompletedProcess[str]

PROBE = """\
#!/usr/bin/env bash
SELF="$(readlink -f "$0")"
cd "${{SELF%/*}}/.." || exit
source scripts/lib.sh
{body}
"""


class Machine:
    """A checkout of the scripts alone, and a PATH that holds what the machine has."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "a clone with spaces"
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", self.checkout / "scripts")
        shutil.copytree(ROOT / "requirements", self.checkout / "requirements")
        shutil.copy(ROOT / "pyproject.toml", self.checkout)
        for name in NEEDED.split():
            self.has(name)

    def has(self, name: str) -> None:
        found = shutil.which(name)
        assert found is not None, name
        (self.bin / name).symlink_to(found)

    def has_script(self, name: str, text: str) -> None:
        (self.bin / name).unlink(missing_ok=True)  # It may be a link to the real one.
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)

    def has_python(self) -> None:
        """One that can make environments, whatever ours can."""
        base = getattr(sys, "_base_executable", sys.executable)
        self.has_script("python3", f'exec "{os.path.realpath(base)}" "$@"')

    def run(self, *argv: str, prefix: str = "cd /;", **env: str) -> Ran:
        given = {"PATH": str(self.bin), "HOME": str(self.checkout), **env}
        command = f'{prefix} exec "$0" "$@"'
        return subprocess.run(
            ["/bin/bash", "-c", command, str(self.checkout / "scripts" / argv[0]), *argv[1:]],
            env=given,
            cwd=self.bin,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )

    def probe(self, body: str, prefix: str = "", **env: str) -> Ran:
        """A script that does all that ours do first, and then `body`."""
        path = self.checkout / "scripts" / "probe"
        path.write_text(PROBE.format(body=body))
        path.chmod(0o755)
        return self.run("probe", prefix=prefix, **env)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def first_error(ran: Ran) -> str:
    assert ran.returncode == 1, (ran.returncode, ran.stdout, ran.stderr)
    errors = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ran.stderr
    assert "Traceback" not in ran.stderr
    return errors[0]


@pytest.mark.parametrize("script", ["test", "demo"])
def test_an_old_python_is_named_with_the_remedy(machine: Machine, script: str) -> None:
    machine.has_script("python3", 'case "$1" in -V) echo "Python 3.9.2";; *) exit 1;; esac')
    said = first_error(machine.run(script))
    assert "Python 3.11 or newer is needed, and this machine has Python 3.9.2" in said
    assert "Run: sudo apt-get install -y python3" in said
    assert not (machine.checkout / ".venv").exists()


def test_an_old_python_is_the_only_error_where_root_lacks_a_compiler(machine: Machine) -> None:
    """The demo looks for Python before it lets apt fetch one."""
    machine.has_script("python3", 'case "$1" in -V) echo "Python 3.9.2";; *) exit 1;; esac')
    machine.has_script("id", "echo 0")
    machine.has_script("apt-get", "exit 1")
    ran = machine.run("demo")
    assert "this machine has Python 3.9.2" in first_error(ran)
    assert "command not found" not in ran.stderr


def test_no_python_at_all(machine: Machine) -> None:
    assert "this machine has none at all" in first_error(machine.run("demo"))


def test_a_python_that_cannot_make_environments_names_its_package(machine: Machine) -> None:
    """Debian's python3 without python3-venv; no apt, or not root."""
    fine = os.path.realpath(sys.executable)
    machine.has_script("python3", f'case "$2" in *ensurepip*) exit 1;; esac\nexec "{fine}" "$@"')
    said = first_error(machine.run("demo"))
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    assert "cannot make virtual environments" in said and package in said
    assert "There is no apt-get here" in said


def test_no_network_is_one_clear_line_and_the_next_run_goes_on(machine: Machine) -> None:
    machine.has_python()
    # Nobody listens there.
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    said = first_error(machine.run("demo", **nowhere))
    assert "the packages of requirements/run.lock could not be installed" in said
    assert "Check the network, the disk and pip's index" in said
    assert not (machine.checkout / ".venv" / "headgate.stamp").exists()
    again = machine.run("demo", **nowhere)
    assert "creating .venv" not in again.stderr, "what was made is whole, and is used"
    assert "could not be installed" in first_error(again)


def test_a_release_without_its_tools_names_them_and_keeps_the_last_one(machine: Machine) -> None:
    machine.has("uname")
    last = machine.checkout / "dist" / "SHA256SUMS"
    last.parent.mkdir()
    last.touch()
    said = first_error(machine.run("release"))
    assert "these parts need programs that are not here: wheels sdist debs rpms" in said
    assert "gcc libc6-dev make" in said and "rpm dpkg" in said
    assert last.exists() and not (machine.checkout / ".venv").exists()


def test_a_package_that_was_cut_short_is_installed_again(machine: Machine) -> None:
    """kill -9 while pip unpacks a wheel that begins with its metadata: pip takes it for whole."""
    site = machine.checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    for name, files in {"whole": ("METADATA", "INSTALLER"), "cut": ("METADATA", "RECORD")}.items():
        (site / f"{name}-1.0.dist-info").mkdir(parents=True)
        for file in files:
            (site / f"{name}-1.0.dist-info" / file).write_text("pip\n")
    ran = machine.probe("forget_incomplete_packages")
    assert ran.returncode == 0, ran.stderr
    assert [path.name for path in site.iterdir()] == ["whole-1.0.dist-info"]


def test_a_package_that_cannot_be_unpacked_is_an_answer_and_leaves_nothing(
    machine: Machine,
) -> None:
    """A full disk, say: the caller says what to do. What is there already stays."""
    machine.has_script("apt-get", 'case "$*" in *download*) : >a.deb; : >b.deb;; esac')
    machine.has_script("dpkg", "echo no room >&2; exit 2")
    home = machine.checkout / ".cache" / "tool"
    (home / "usr").mkdir(parents=True)
    stale = machine.checkout / ".cache" / "tool.new" / "tree" / "of-a-killed-run"
    stale.mkdir(parents=True)
    ran = machine.probe('locked tool unpack_debs "$CACHE/tool" a b || say "to be had: no"')
    assert ran.returncode == 0, ran.stderr
    assert "to be had: no" in ran.stderr and "no room" in ran.stderr
    assert (home / "usr").is_dir() and not stale.parents[1].exists()
    machine.has_script("dpkg", 'mkdir -p "$3/usr/bin"')
    ran = machine.probe('locked tool unpack_debs "$CACHE/tool" a b')
    assert ran.returncode == 0, ran.stderr
    assert (home / "usr" / "bin").is_dir() and not stale.parents[1].exists()


def test_a_run_that_waits_for_another_says_so(machine: Machine) -> None:
    ran = machine.probe(
        """
        mkdir -p "$CACHE"
        exec 8>>"$CACHE/python.lock"
        flock 8
        { until grep -q waiting "$CACHE/said" 2>/dev/null; do sleep 0.1; done; } &
        exec 8>&- # Held by the one in the background alone, until it has read that we wait.
        locked python echo set up 2>"$CACHE/said"
        """
    )
    assert (ran.returncode, ran.stdout) == (0, "set up\n"), ran.stderr


def test_too_little_disk_is_said_before_anything_is_installed(machine: Machine) -> None:
    said = first_error(machine.probe("need_disk 999999999 scripts/test"))
    assert "scripts/test needs about 999999999 MB of disk" in said and "Free some" in said


@pytest.mark.parametrize("apt", [False, True], ids=["no-apt", "a-user"])
def test_no_compiler_names_the_packages(machine: Machine, apt: bool) -> None:
    machine.has_script("id", "echo 1000")
    if apt:
        machine.has_script("apt-get", "exit 1")
    said = first_error(machine.probe("locked system install_system_packages"))
    assert "the tests need a C compiler" in said
    assert "gcc make libc6-dev libssl-dev" in said
    assert ("sudo apt-get install" in said) == apt


def test_a_package_that_root_cannot_install_ends_the_run(machine: Machine) -> None:
    machine.has_script("id", "echo 0")
    machine.has_script("apt-get", 'echo "E: no such mirror" >&2; exit 100')
    ran = machine.probe('need_packages "the tests need gcc" gcc')
    assert "the tests need gcc. Run: sudo apt-get update" in first_error(ran)
    assert "E: no such mirror" in ran.stderr, "apt's own words are shown"


IGNORED = "trap '' INT TERM PIPE HUP;"


def test_an_update_without_a_network_is_tried_again(machine: Machine) -> None:
    """apt-get warns and succeeds, unless it is told that any index matters."""
    strict = 'case "$*" in *Error-Mode=any*) exit 100;; esac'
    machine.has_script("apt-get", f'echo "$1" >>asked; {strict}')
    body = "apt_update || echo failed; own_apt_update || echo failed; ls $CACHE/apt* 2>/dev/null"
    for _ in range(2):
        ran = machine.probe(body)
        assert ran.stdout.splitlines().count("failed") == 2, ran.stderr
        assert "updated" not in ran.stdout


def test_signals_that_were_ignored_on_entry_act_as_usual(machine: Machine) -> None:
    ran = machine.probe("grep SigIgn /proc/self/status", prefix=IGNORED)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[1], 16) == 0


def test_ctrl_c_ends_what_runs_quietly(machine: Machine) -> None:
    """bash has what it starts in the background ignore SIGINT."""
    ran = machine.probe('quietly x grep SigIgn /proc/self/status; cat "$CACHE/logs/x.log"')
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[1], 16) == 0


def test_a_script_is_found_through_a_link(machine: Machine) -> None:
    link = machine.bin / "run-the-tests"
    link.symlink_to(machine.checkout / "scripts" / "test")
    assert "scripts/test --help" in first_error(machine.run(str(link), "-k"))
    command = 'cd ..; exec "a clone with spaces/scripts/test" -k;'
    assert "scripts/test --help" in first_error(machine.run("test", prefix=command)), "by its path"


def test_what_the_caller_has_set_changes_nothing(machine: Machine) -> None:
    odd = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": "/nowhere",
        "PYTEST_ADDOPTS": "--nonsense",
        "PGHOST": "elsewhere",
        "MYSQL_HOST": "elsewhere",
        "HEADGATE_URL": "http://elsewhere",
        "LANG": "de_DE.ISO-8859-1",
        "LC_ALL": "C",
    }
    ran = machine.probe("umask; env", prefix="umask 077;", **odd)
    assert ran.returncode == 0, ran.stderr
    first, *lines = ran.stdout.splitlines()
    seen = dict(line.partition("=")[::2] for line in lines)
    assert first == "0022"
    assert seen.keys() & odd.keys() == {"LC_ALL"} and seen["LC_ALL"] == "C.UTF-8"


@pytest.mark.parametrize("closed", ["exec <&-;", "exec </dev/null;"])
def test_no_standard_input_and_no_home(machine: Machine, closed: str) -> None:
    ran = machine.probe('cat; echo "$HOME"', prefix=f"{closed} unset HOME;")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == str(machine.checkout / ".cache" / "home")


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", "<&- >&-", "<&- >&- 2>&-"])
def test_streams_that_were_closed_are_there(machine: Machine, closed: str) -> None:
    """Else the next file that is opened is what gets printed to."""
    ran = machine.probe(
        'for fd in 0 1 2; do readlink "/proc/$$/fd/$fd" >&7; done 7>seen; echo out; echo err >&2',
        prefix=f"exec {closed};",
    )
    assert ran.returncode == 0, ran.stderr
    seen = (machine.checkout / "seen").read_text().splitlines()
    assert len(seen) == 3 and not [path for path in seen if path.startswith(str(machine.checkout))]


def test_options_with_a_value(machine: Machine) -> None:
    """`-k core` is about names, not about the folder; without a value, that is said."""
    said = first_error(machine.run("test", "-k"))
    assert "-k needs a value" in said
    machine.has_python()
    # The set-up is not what this is about.
    test = machine.checkout / "scripts" / "test"
    told = test.read_text().replace("set_up_python develop", 'echo "$kind: ${options[*]}"; exit')
    test.write_text(told)
    assert machine.run("test", "-k", "core").stdout == "part: -k core\n"
    assert machine.run("test", "core", "-k", "agent", "-n", "3").stdout == "core: -k agent -n 3\n"
    assert machine.run("test", "-n", "3").stdout == "whole: -n 3\n"


def test_help_needs_no_set_up(machine: Machine) -> None:
    for script in ("test", "fresh", "postgres-kits"):
        ran = machine.run(script, "--help")
        assert ran.returncode == 0 and f"scripts/{script}" in ran.stdout, ran.stderr
        script_text = (machine.checkout / "scripts" / script).read_text()
        last = script_text.partition("\nSELF=")[0].splitlines()[-1]
        assert ran.stdout.splitlines()[-1] == last.removeprefix("# "), "all of it is shown"
    assert not (machine.checkout / ".venv").exists()
