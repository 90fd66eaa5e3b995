"""Install what is in dist/ as a new user does, in a root without a compiler, and use it.

scripts/release --try runs it in a clean Debian root, as root, in a folder with dist/, docs/ and
README.md. The commands are those of the README and of the how-tos, as they are printed.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path.cwd()
SECRET = "s3cret"
WITHIN_S = 60.0
GOAL_S = 300
POLICY = """\
[[budgets]]
name = "exports"
mode = "enforce"
max_workers = 0
[[budgets.rules]]
match = { username = "etl" }
"""
PROXY = """\
[proxy]
protocol = "postgres"
directory = "/run/headgate-proxy"
cpus = 2
max_connections = 100
[[listen]]
address = "127.0.0.1:6432"
[[server]]
address = "127.0.0.1:5432"
tls = "off"
[policy]
file = "/etc/headgate/budgets.toml"
"""


def console(page: str, after: str, holding: str) -> list[str]:
    """The commands of a block below a heading, without what their comments say."""
    text = (HERE / page).read_text()
    text = text[text.index(after) :]
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        lines = [line.strip() for line in block.splitlines()]
        found = [re.sub(r"\s+#.*", "", line[2:]) for line in lines if line.startswith("$ ")]
        if any(holding in command for command in found):
            return found
    sys.exit(f"{page} has no commands with {holding!r} below {after!r}")


def shell(command: str, *, code: int | None = 0) -> str:
    """Both streams; a wrong exit code ends the trial."""
    print(f"$ {command}")
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines = done.stdout.splitlines()
    shown = lines if len(lines) <= 24 else [*lines[:4], "…", *lines[-19:]]
    print("\n".join(f"    {line}" for line in shown))
    print(f"    exit code {done.returncode} after {time.monotonic() - began:.1f} s")
    if code is not None and done.returncode != code:
        sys.exit(f"FAILED: exit code {done.returncode}, not {code}: {command}")
    return done.stdout


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"FAILED: not within {WITHIN_S:.0f} s: {what}")
        time.sleep(0.5)


def expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"FAILED: {what}")
    print(f"  ok: {what}")


def started(command: str, log: str) -> subprocess.Popen[bytes]:
    print(f"$ {command} &")
    with (HERE / log).open("wb") as written:
        return subprocess.Popen(shlex.split(command), stdout=written, stderr=written)


def psql(sql: str, dsn: str = "", *, code: int | None = 0) -> str:
    to = shlex.quote(dsn) if dsn else "-d postgres"
    run_as = "" if dsn else "cd /; sudo -u postgres "
    return shell(f"{run_as}psql -X -v VERBOSITY=verbose -Atc {shlex.quote(sql)} {to}", code=code)


def free(port: int) -> int:
    """This one, or another: a root shares the network with its machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def server_port() -> int:
    return int(shell("pg_lsclusters -h").split()[2])


def version_of(package: str) -> str:
    return shell(f"dpkg-query -Wf '${{Version}} ${{Status}}' {package}", code=None)


# ── README: from the wheel to a rejected check ──


def first_check() -> tuple[float, subprocess.Popen[bytes]]:
    began = time.monotonic()
    page, after = "README.md", "## Five minutes"
    for command in console(page, after, "-m venv"):
        if "scripts/release" not in command:
            shell(command)
    created = re.search(r"create role headgate[^;]*;", (HERE / page).read_text())
    assert created is not None
    psql(created[0].replace("…", SECRET))
    psql("create database app")
    for command in console(page, after, "headgate init"):
        shell(command.replace("password=…", f"port={server_port()} password={SECRET}") + " --yes")
    settings = HERE / "headgate.toml"
    settings.write_text(settings.read_text().replace(":8087", f":{free(8087)}"))
    doctor, start = console(page, after, "headgate doctor")
    shell(doctor)
    agent = started(start, "agent.log")
    export, check, *looks = console(page, after, "export HEADGATE_URL")
    eventually((HERE / "headgate.sock").exists, "the agent listens")
    url = f"{export}; "
    eventually(lambda: "ADMITTED" in shell(url + check, code=None), "a check is admitted")
    for look in looks:
        shell(f"{url}{look} --once" if look.endswith("top") else url + look)
    change, check, explain, revert = console(page, after, "metrics set")
    shell(url + change)
    eventually(lambda: "REJECTED" in shell(url + check, code=None), "a check is rejected")
    took = time.monotonic() - began
    shell(url + check, code=10)
    expect("commit_delay must fall" in shell(url + explain), "explain says why")
    shell(url + revert)
    expect(took <= GOAL_S, f"from the wheel to a rejected check in {took:.0f} s")
    return took, agent


# ── The extension from its package, and the proxy from the wheel ──


def budget(major: str) -> None:
    """By the how-to, with this root's major."""
    page = "docs/howto/traffic-control-postgres.md"
    server = version_of(f"postgresql-{major}")
    psql(f"create role etl login password '{SECRET}'")
    [install] = console(page, "## 1. Install", "./dist/postgresql-")
    shell(install.replace("15", major))
    expect(version_of(f"postgresql-{major}") == server, "the server's package is untouched")
    conf = Path(f"/etc/postgresql/{major}/main/conf.d/headgate.conf")
    lines = re.search(
        r"(?m)^ *shared_preload_libraries = .*\n *pg_headgate.enabled = on$",
        (HERE / page).read_text(),
    )
    assert lines is not None
    conf.write_text(lines[0] + "\n")
    shell(f"pg_ctlcluster {major} main restart")
    (HERE / "traffic.toml").write_text(POLICY)
    [enable] = console(page, "## 2. Enable", "pg enable")
    expect("version" in shell(enable.replace("/15/", f"/{major}/")), "the policy is published")
    dsn = f"host=127.0.0.1 port={server_port()} dbname=app password={SECRET}"
    blocked = psql("select 1", f"{dsn} user=etl", code=1)
    expect("53000" in blocked, "the budget blocks etl inside the server")
    psql("select 1", f"{dsn} user=headgate")
    [status] = console(page, "## 4. Look", "pg status")
    shell(status.replace("/15/", f"/{major}/"))
    [disable] = console(page, "## 5. Disable", "pg disable")
    shell(disable.replace("/15/", f"/{major}/"))
    psql("select 1", f"{dsn} user=etl")


def proxy() -> None:
    port = free(6432)
    settings = PROXY.replace("6432", str(port)).replace("5432", str(server_port()))
    for path, text in (("proxy.toml", settings), ("budgets.toml", POLICY)):
        Path("/etc/headgate").mkdir(exist_ok=True)
        Path("/etc/headgate", path).write_text(text)
    Path("/run/headgate-proxy").mkdir(mode=0o700)
    checked = shell("headgate proxy check /etc/headgate/proxy.toml")
    expect("building" not in checked, "the relay is in the wheel: nothing is built")
    running = started("headgate proxy run /etc/headgate/proxy.toml", "proxy.log")
    dsn = f"host=127.0.0.1 port={port} dbname=app password={SECRET}"
    eventually(
        lambda: "1" in psql("select 1", f"{dsn} user=headgate", code=None).split(),
        "the proxy passes statements on",
    )
    blocked = psql("select 1", f"{dsn} user=etl", code=None)
    expect("53000" in blocked, "the budget blocks etl in the proxy")
    shell("headgate proxy status /etc/headgate/proxy.toml")
    running.terminate()
    expect(running.wait(timeout=60) == 0, "the proxy ends")


def removed(major: str) -> None:
    server = version_of(f"postgresql-{major}")
    said = shell(f"apt-get remove -y postgresql-{major}-headgate")
    expect("DO NOT START AGAIN" in said, "a removal warns while the server still preloads it")
    Path(f"/etc/postgresql/{major}/main/conf.d/headgate.conf").unlink()
    shell(f"pg_ctlcluster {major} main restart")
    expect(psql("select 1").strip() == "1", "the server starts without it")
    expect(version_of(f"postgresql-{major}") == server, "the server's package is untouched")


# ── The others ──


def files() -> None:
    names = re.findall(r'"name": "([a-z-]+)"', shell("headgate files --json"))
    expect(len(names) >= 8, "`headgate files` has units, alerts and a dashboard")
    for name in names:
        expect(bool(shell(f"headgate files {name}").strip()), f"headgate files {name}")


def rpms(major: str) -> None:
    """No server here has its layout: its files are those of the .deb, and it comes and goes."""
    shell("DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends rpm")
    [package] = (HERE / "dist").glob(f"pg_headgate_{major}-*.rpm")
    shell(f"rpm -i --nodeps --nosignature --root /srv/rpm {package}")
    shell(f"dpkg -x dist/postgresql-{major}-headgate_*.deb /srv/deb")
    shell(
        f"cmp /srv/rpm/usr/pgsql-{major}/lib/pg_headgate.so "
        f"/srv/deb/usr/lib/postgresql/{major}/lib/pg_headgate.so"
    )
    shell(f"rpm -e --nodeps --noscripts --root /srv/rpm pg_headgate_{major}")
    expect(not any(Path(f"/srv/rpm/usr/pgsql-{major}").rglob("*.so")), "the .rpm comes and goes")


def from_source() -> None:
    """The wheel for any platform and the sdist, on a host that has a compiler."""
    shell(
        "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "
        "gcc libc6-dev libssl-dev"
    )
    for kind in ("*-none-any.whl", "*.tar.gz"):
        [package] = (HERE / "dist").glob(f"headgate-{kind}")
        shutil.rmtree("/opt/other", ignore_errors=True)
        shell("python3 -m venv /opt/other")
        shell(f"/opt/other/bin/pip install -q '{package}[agent,postgres]'")
        shell("/opt/other/bin/headgate files systemd")
    said = shell("/opt/other/bin/headgate proxy check /etc/headgate/proxy.toml")
    expect("building the relay for this host's OpenSSL (once" in said, "a build says what it does")


def main() -> None:
    expect(shutil.which("cc") is None and shutil.which("gcc") is None, "there is no compiler")
    major = max(path.name for path in Path("/etc/postgresql").iterdir())
    shell(f"pg_ctlcluster {major} main start")
    check_s, agent = first_check()
    began = time.monotonic()
    budget(major)
    proxy()
    more_s = time.monotonic() - began
    expect(more_s <= GOAL_S, f"extension and proxy in {more_s:.0f} s more")
    agent.terminate()
    expect(agent.wait(timeout=60) == 0, "the agent ends")
    removed(major)
    files()
    rpms(major)
    from_source()
    python, server = sys.version.split()[0], psql("show server_version").split()[0]
    print(f"result: {python} | {server} | {check_s:.0f} s | {more_s:.0f} s | ok |")


if __name__ == "__main__":
    main()
