"""The image's recipe: linted, its files there, its packages those of the lock, its health asked."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest
import trustme
from packaging.requirements import Requirement

from tests.deploy.charts import DEPLOY, ROOT, need
from tests.deploy.test_units import settings_of

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
PIN = re.compile(r"^([A-Za-z0-9_.\-]+)==([^\s;]+)((?:.*\\\n)(?: +--hash=\S+(?: \\)?\n)+)", re.M)


def pins(path: Path) -> dict[str, tuple[str, set[str]]]:
    """Versions and hashes, by name. Of a package that is pinned twice (by Python), the first."""
    found: dict[str, tuple[str, set[str]]] = {}
    for name, version, rest in PIN.findall(path.read_text()):
        found.setdefault(name, (version, set(re.findall(r"--hash=(\S+)", rest))))
    return found


def test_the_linter_has_nothing_to_say() -> None:
    done = subprocess.run([need("hadolint"), DEPLOY / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def copied() -> list[str]:
    """What is copied from the checkout."""
    found = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", DOCKERFILE, re.M)
    return [path for paths in found for path in paths.split()]


def test_what_is_copied_is_there_and_let_through() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    let_through = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    assert "*" in ignore, "a folder with secrets beside it must not become part of an image"
    assert set(copied()) == let_through
    assert [path for path in copied() if not (ROOT / path).exists()] == []


def test_it_runs_as_a_number_that_is_not_root() -> None:
    _, _, last = DOCKERFILE.rpartition("\nFROM ")
    (user,) = re.findall(r"^USER (\S+)$", last, re.M)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "runAsNonRoot cannot tell who a name is"
    assert "HEALTHCHECK" in last


def test_it_installs_nothing_without_its_hash() -> None:
    installs = re.findall(r"pip (?:install|wheel) ([^\\&\n]+)", DOCKERFILE)
    assert installs
    for options in installs:
        assert "--require-hashes" in options or "--no-deps" in options, options


@pytest.mark.parametrize("lock", ["requirements.lock", "build.lock"])
def test_its_locks_are_part_of_the_lock(lock: str) -> None:
    """Of a file that was tested, another one must not be shipped."""
    tested, shipped = pins(ROOT / "requirements" / "develop.lock"), pins(DEPLOY / lock)
    assert shipped
    for name, (version, hashes) in shipped.items():
        if name in tested:  # Others are for systems that the lock leaves out.
            assert tested[name][0] == version, f"{name}: run scripts/lock"
            assert tested[name][1] & hashes
    assert len(shipped.keys() & tested.keys()) >= 0.9 * len(shipped)


def needed(package: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> None:
    name = re.sub(r"[-_.]+", "-", package).lower()
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    for text in importlib.metadata.requires(package) or ():
        one = Requirement(text)
        wanted = one.marker is None or any(
            one.marker.evaluate({"extra": extra}) for extra in (*extras, "")
        )
        if wanted:
            needed(one.name, frozenset(one.extras), seen)


def test_nothing_that_the_agent_needs_is_missing() -> None:
    seen: set[tuple[str, frozenset[str]]] = set()
    needed("headgate", frozenset({"all"}), seen)
    shipped = pins(DEPLOY / "requirements.lock").keys() | {"headgate"}
    assert {name for name, _ in seen} - shipped == set()


def test_it_carries_no_tool_of_the_tests() -> None:
    assert not {"pytest", "mypy", "ruff", "hypothesis"} & pins(DEPLOY / "requirements.lock").keys()


# ── HEALTHCHECK ──


@pytest.fixture(scope="module")
def healthcheck() -> ModuleType:
    spec = importlib.util.spec_from_file_location("healthcheck", DEPLOY / "healthcheck.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 404)
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nobody reads it."""


@pytest.fixture(params=["http", "https"])
def listening(request: pytest.FixtureRequest) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answering)
    if request.param == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("db1.example").configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"{request.param}://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_agent_that_serves_is_healthy(healthcheck: ModuleType, listening: str) -> None:
    assert healthcheck.main({"HEADGATE_URL": listening}) == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1:1", "unix:///gone/a"])
def test_a_dead_one_is_not_healthy_and_the_message_says_where(
    healthcheck: ModuleType, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert healthcheck.main({"HEADGATE_URL": url}) == 1
    assert capsys.readouterr().err.startswith(f"{url}/healthz: ")


def test_it_is_a_program_that_runs_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-I", DEPLOY / "healthcheck.py"],
        env={"HEADGATE_URL": "unix:///gone/a"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "unix:///gone/a/healthz" in done.stderr


def test_units_and_image_agree_where_the_program_is() -> None:
    (start,) = settings_of("headgate.service")["ExecStart"]
    assert start.startswith("/opt/headgate/bin/headgate agent ")
    assert "python -m venv /opt/headgate " in DOCKERFILE
