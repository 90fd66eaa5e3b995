"""`headgate debug bundle`: everything that helps, nothing that opens doors."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.app import Agent
from headgate.base.redaction import HIDDEN, Scrubber, shown, shown_dsn
from headgate.cli import debug
from headgate.cli.debug_items import (
    DATABASE_ROUTES,
    PROXY_ROUTES,
    ROUTES,
    BundleItem,
    NotThere,
    log_tail,
)
from headgate.cli.debug_scrub import (
    Names,
    known_secrets,
    lines_without_literals,
    shape_of,
    without_literals,
)
from headgate.errors import HeadgateError
from headgate.http import control
from headgate.proxy.control import ROUTES as SERVED_BY_PROXY
from headgate.settings.agent import parse_settings
from tests.cli.conftest import Run
from tests.fixtures.eventually import DEADLINE_S, aeventually

ROOT = Path(__file__).parents[2]
KNOWN = {
    "dsn": "dsn-hunter2-word",
    "dsn_uri": "uri-p@ss/word?x",
    "password_file": "file-word-é-1",
    "peers": "peers-shared-token",
    "hook_path": "T0K3N-in-the-path",
    "hook_token": "hook-bearer-token",
    "etcd": "etcd-pass-word",
    "metric_user": "metric-user-pass",
    "metric_query": "metric-query-value",
    "command": "argument-pass",
    "header": "collector-api-key",
    "operator": "operator-token-xyz",
    "environment": "pg-env-password",
}
"""Planted where each belongs; and, all of them, in a log and in a rule's reason."""
UNKNOWN = (
    "never-seen-bearer-1",
    "never-seen-password-2",
    "never-seen-userinfo-3",
    "never-seen-query-4",
    "never-seen-basic-5",
    "bmV2ZXIgc2VlbiBwZW0gNg",
    "never-seen-json-7",
    "literal-8-of-somebody",
)
"""In the log alone: by their looks."""


def settings(folder: Path) -> str:
    for name in ("password_file", "peers", "hook_token", "etcd"):
        (folder / name).write_text(KNOWN[name] + "\n")
    uri = "uri-p%40ss%2Fword%3Fx"
    return f"""
[agent]
name = "db-berlin-7"
listen = "127.0.0.1:0"
socket = "{folder}/a.sock"
state = "{folder}/state.db"
[page]
enabled = false
[[tokens]]
name = "ops"
role = "operator"
sha256 = "{"0" * 64}"
[peers]
token_file = "{folder}/peers"
[alerts]
webhook_url = "https://hooks.example.com/services/{KNOWN["hook_path"]}?sig={KNOWN["hook_path"]}"
webhook_token_file = "{folder}/hook_token"
[patroni]
endpoints = ["http://127.0.0.1:1"]
username = "headgate"
password_file = "{folder}/etcd"
[databases.orders]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 user=probe password={KNOWN["dsn"]} dbname=orders"
[databases.orders.metrics.loadavg]
threshold = 100000
interval_s = 0.05
[databases.orders.metrics.queue]
url = "http://probe:{KNOWN["metric_user"]}@127.0.0.1:1/x?key={KNOWN["metric_query"]}"
threshold = 5
[databases.orders.metrics.script]
command = ["/bin/sh", "-c", "exit 3", "--password={KNOWN["command"]}"]
threshold = 5
[databases.users]
engine = "postgres"
dsn = "postgresql://probe:{uri}@127.0.0.1:1/users?sslpassword=x"
[databases.users.metrics.loadavg]
threshold = 100000
[databases.events]
engine = "postgres"
dsn = "host=127.0.0.1 port=1 user=probe"
password_file = "{folder}/password_file"
[databases.events.metrics.loadavg]
threshold = 100000
"""


def log_lines() -> str:
    basic = base64.b64encode(f"probe:{UNKNOWN[4]}".encode()).decode()
    return "\n".join(
        [
            *(f"some words {secret} and more" for secret in KNOWN.values()),
            *(json.dumps({"event": "x", "detail": secret}) for secret in KNOWN.values()),
            *(base64.b64encode(secret.encode()).decode() for secret in KNOWN.values()),
            f"GET / Authorization: Bearer {UNKNOWN[0]}",
            f"conninfo: host=a password={UNKNOWN[1]} user=b",
            f"connecting to postgres://u:{UNKNOWN[2]}@h/db?token={UNKNOWN[3]}&a=b",
            f"Authorization: Basic {basic}",
            f"-----BEGIN RSA PRIVATE KEY-----\n{UNKNOWN[5]}\n-----END RSA PRIVATE KEY-----",
            json.dumps({"event": "x", "api_key": UNKNOWN[6], "tokens": 5, "token": None}),
            f"LOG:  statement: SELECT * FROM people WHERE name = '{UNKNOWN[7]}' AND id = 1234567",
            "an honest line about db-berlin-7, etl:nightly and 10.1.2.3",
        ]
    )


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Agent]:
    path = folder / "headgate.toml"
    agent = Agent(parse_settings(settings(folder), source=str(path)))
    await agent.start()
    try:
        healths = agent.rooms.check.board.healths
        await aeventually(lambda: healths["orders"].standings["loadavg"].sample)
        yield agent
    finally:
        await agent.stop()


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        found = {}
        for info in tar.getmembers():
            file = tar.extractfile(info)
            assert file is not None
            found[info.name.partition("/")[2]] = file.read()
    return found


def forms(secret: str) -> set[bytes]:
    return {
        secret.encode(),
        json.dumps(secret)[1:-1].encode(),
        base64.b64encode(secret.encode()).rstrip(b"="),
    }


def assert_clean(raw: bytes, where: str) -> None:
    for secret in [*KNOWN.values(), *UNKNOWN]:
        for form in forms(secret):
            assert form not in raw, f"{secret} is in {where}"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "w"
    folder.mkdir()
    (folder / "headgate.toml").write_text(settings(folder))
    (folder / "agent.log").write_text(log_lines())
    monkeypatch.setenv("PGPASSWORD", KNOWN["environment"])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS_TOKEN", KNOWN["header"])
    return folder


async def packed(run: Run, agent: Agent, folder: Path, *more: str) -> tuple[Path, str]:
    out = folder / "bundle.tar.gz"
    rule = {"target": "etl", "kind": "hold", "reason": f"said {' '.join(KNOWN.values())}"[:200]}

    def called() -> str:
        from headgate.cli.api import connect

        url = f"unix://{folder}/a.sock"
        api = connect(url, None)
        api.change("POST", "/v1/rules", rule)
        api.ask("/v1/check", app="job7:etl:nightly", database="orders")
        ran = run(
            "debug", "bundle", "--output", str(out), "--log", str(folder / "agent.log"), *more,
            url=url,
        )  # fmt: skip
        assert ran.code == 0, ran.err
        return ran.out + ran.err

    return out, await asyncio.to_thread(called)


async def test_no_secret_is_in_any_byte_of_it(run: Run, world: Path) -> None:
    async with serving(world) as agent:
        out, said = await packed(run, agent, world, "--token", KNOWN["operator"], "--json")
    raw = out.read_bytes()
    assert_clean(raw, "the file")
    assert_clean(gzip.decompress(raw), "the archive")
    assert_clean(said.encode(), "what was printed")
    found = members(out)
    for name, content in found.items():
        assert_clean(content, name)
    assert out.stat().st_mode & 0o777 == 0o600
    # And yet everything is there, and readable.
    for name, content in found.items():
        if name.endswith(".json"):
            json.loads(content)
    manifest = json.loads(found["MANIFEST.json"])
    states = {row["path"]: (row["state"], row["why"]) for row in manifest["items"]}
    here = json.loads(found["here/settings.json"])
    assert here["databases"]["orders"]["dsn"].endswith(f"password={HIDDEN} dbname=orders")
    assert here["alerts"]["webhook_url"] == f"https://hooks.example.com/{HIDDEN}"
    assert "an honest line about db-berlin-7" in found["logs/1-agent.log"].decode()
    assert "name = ?" in found["logs/1-agent.log"].decode()
    assert states["agent/databases/orders/policy.json"][0] == "missing"
    for path in ("agent/status.json", "agent/rules.json", "agent/audit.json", "agent/clients.json"):
        assert states[path][0] == "packed", states[path]


async def test_the_token_opens_the_process_and_its_stacks(run: Run, world: Path) -> None:
    async with serving(world) as agent:
        out, said = await packed(run, agent, world)
    found = members(out)
    process = json.loads(found["agent/process.json"])
    assert process["settings"]["agent"]["name"] == "db-berlin-7"
    assert process["process"]["rss_bytes"] > 0
    assert "probe orders/loadavg" in found["agent/stacks.txt"].decode()
    assert "agent/metrics.prom" in found
    assert "Before you send it, look for others in:" in said
    assert "logs/1-agent.log: whatever your log says" in said


async def test_names_become_hashes_the_same_throughout(run: Run, world: Path) -> None:
    async with serving(world) as agent:
        out, _ = await packed(run, agent, world, "--hash-names")
    found = members(out)
    everything = b"".join(found.values()) + " ".join(found).encode()
    for name in ("db-berlin-7", "job7", "nightly", "orders", "users", "10.1.2.3"):
        assert name.encode() not in everything.replace(b"/orders_", b""), name
    legend = json.loads((world / "bundle.tar.gz.names.json").read_text())
    by_name = {name: digest for digest, name in legend.items()}
    clients = json.loads(found["agent/clients.json"])["clients"]
    assert {by_name["job7"], by_name["nightly"]} <= set(clients[0]["client"].split(":"))
    databases = json.loads(found["agent/status.json"])["databases"]
    assert by_name["orders"] in {row["database"] for row in databases}
    assert f"agent/databases/{by_name['orders']}/shard.json" in json.dumps(
        json.loads(found["MANIFEST.json"])
    )
    assert "loadavg" in found["agent/metrics.json"].decode()


def test_without_an_agent_the_rest_is_packed(run: Run, world: Path) -> None:
    out = world / "b.tar.gz"
    ran = run(
        "debug", "bundle", "-o", str(out), "-c", str(world / "headgate.toml"),
        "--log", str(world / "agent.log"), "--log", str(world / "gone.log"),
        "--token", KNOWN["operator"],
        url="http://127.0.0.1:1",
    )  # fmt: skip
    assert ran.code == 0
    found = members(out)
    assert json.loads(found["here/settings.json"])["agent"]["name"] == "db-berlin-7"
    assert json.loads(found["here/machine.json"])["python"]
    rows = {row["path"]: row for row in json.loads(found["MANIFEST.json"])["items"]}
    assert "connection refused" in rows["agent/status.json"]["why"]
    assert rows["agent/audit.json"]["why"] == rows["agent/status.json"]["why"]
    assert "cannot be read" in rows["logs/2-gone.log"]["why"]
    assert "as above" in ran.out
    for name, content in found.items():
        assert_clean(content, name)


def test_a_settings_file_that_is_rejected_says_why_and_no_secret(run: Run, world: Path) -> None:
    path = world / "headgate.toml"
    path.write_text(path.read_text() + "\n[nonsense]\n[broken\n")
    out = world / "b.tar.gz"
    ran = run("debug", "bundle", "-o", str(out), "-c", str(path), "--log",
              str(world / "agent.log"), url="http://127.0.0.1:1")  # fmt: skip
    assert ran.code == 0
    found = members(out)
    assert "is not TOML" in json.loads(found["here/settings.json"])["rejected"][0]
    for name, content in found.items():
        if name != "logs/1-agent.log":
            assert_clean(content, name)


def test_into_a_folder_or_a_pipe(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    assert run("debug", "bundle", "--folder", str(folder), url="http://127.0.0.1:1").code == 0
    assert json.loads((folder / "MANIFEST.json").read_text())["what"] == "headgate debug bundle"
    assert run("debug", "bundle", "--folder", str(folder)).code == 2
    ran = subprocess.run(
        [sys.executable, "-m", "headgate", "debug", "bundle", "--stdout"],
        capture_output=True,
        env={**os.environ, "HEADGATE_URL": "http://127.0.0.1:1"},
        timeout=DEADLINE_S,
    )
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as tar:
        assert any(name.endswith("/MANIFEST.json") for name in tar.getnames())
    assert b"files in standard output" in ran.stderr
    assert run("debug", "bundle", "--folder", "x", "--stdout").code == 2


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_plain_file_is_never_replaced(run: Run, tmp_path: Path, kind: str) -> None:
    """As root, `-o /dev/null` would else take the device away from every program of the host."""
    out, aim = tmp_path / "out", tmp_path / "aim"
    aim.write_text("kept")
    if kind == "pipe":
        os.mkfifo(out)
    elif kind == "link":
        out.symlink_to(aim)
    else:
        out.mkdir()
    before = out.lstat()
    ran = run("debug", "bundle", "-o", str(out), url="http://127.0.0.1:1")
    assert ran.code == 2 and "no plain file" in " ".join(ran.err.split())
    with pytest.raises(HeadgateError, match="no plain file"):
        debug._private(out, b"x")
    assert (out.lstat().st_ino, out.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert aim.read_text() == "kept"


def test_a_file_that_was_there_is_replaced_by_one_for_its_owner(tmp_path: Path) -> None:
    out = tmp_path / "x.tar.gz"
    out.write_text("an older one")
    out.chmod(0o644)
    debug._private(out, b"new")
    assert (out.read_bytes(), out.stat().st_mode & 0o777) == (b"new", 0o600)


def test_a_full_disk_leaves_nothing_behind_and_says_what_to_do(run: Run, tmp_path: Path) -> None:
    """Which is when a bundle is asked for: HeadgateStoreNotWritable."""
    large = debug.Bundle(files={"a": b"a" * 10, "b/c": b"c" * 1000})
    with largest_file(100):
        with pytest.raises(HeadgateError, match=r"cannot be written: .*; .*--stdout"):
            debug._private(tmp_path / "x.tar.gz", b"x" * 1000)
        with pytest.raises(HeadgateError, match=r"cannot be written: .*; .*--stdout"):
            debug._unpacked(large, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []
    ran = run("debug", "bundle", "--folder", "/proc/nope/f", url="http://127.0.0.1:1")
    assert ran.code == 1 and "cannot be written" in ran.err and "Traceback" not in ran.err


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """As a full disk does: a write fails in the middle."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)


def test_the_journal_is_that_of_a_unit_that_is_installed() -> None:
    default = debug.LogOptions().unit
    units = {path.stem for path in (ROOT / "deploy").glob("*.service")}
    assert default in units


# --- parts ---------------------------------------------------------------------------------------


def item(fetch: Callable[[], Any], **more: Any) -> BundleItem:
    return BundleItem("x.json", "something", fetch, **more)


def packed_one(content: Any, **more: Any) -> tuple[debug.ManifestRow, debug.Bundle]:
    gathered = debug.gather([item(lambda: content, **more)])
    bundle = debug.pack(gathered, debug.Safety(Scrubber([])), {})
    return bundle.entries[0], bundle


def test_what_is_too_large_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debug, "MAX_ITEM_BYTES", 200)
    entry, bundle = packed_one("begin " + "é" * 500 + " end", keeps="tail")
    assert (entry.state, entry.whole_bytes) == ("cut", 1010)
    text = bundle.files["x.json"].decode()
    assert text.endswith(" end")
    assert "cut here" in text
    assert len(bundle.files["x.json"]) <= 200
    monkeypatch.setattr(debug, "MAX_BUNDLE_BYTES", 10)
    entry, _ = packed_one("much")
    assert (entry.state, entry.why) == ("missing", "left out: the bundle is full")


def test_what_hangs_is_given_up_and_its_source_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    monkeypatch.setattr(debug, "ITEM_TIMEOUT_S", 0.05)
    let_go = threading.Event()

    def hangs() -> str:
        let_go.wait()
        return ""

    def fails() -> str:
        raise HeadgateError("no")

    def odd() -> str:
        raise KeyError("x")

    def gone() -> str:
        raise NotThere("not here")

    def rows() -> Iterator[BundleItem]:
        yield item(hangs)
        yield item(lambda: "never asked")
        # Nobody else is slow, however busy the machine is.
        monkeypatch.setattr(debug, "ITEM_TIMEOUT_S", DEADLINE_S)
        for fetch in (fails, odd, gone, lambda: "fine"):
            yield item(fetch, source="here")

    try:
        whys = [outcome.why for _, outcome in debug.gather(rows())]
    finally:
        let_go.set()
    assert whys == ["not had in 0.1 s"] * 2 + ["no", "failed here: KeyError", "not here", ""]
    late = debug.gather([item(lambda: "x")], timeout_s=0.0)
    assert "were over" in late[0][1].why


def test_a_secret_that_is_still_there_keeps_its_file_out() -> None:
    class Blind(Scrubber):
        def __call__(self, text: str) -> str:
            return text

    gathered = debug.gather([item(lambda: "has hunter2 in it")])
    bundle = debug.pack(gathered, debug.Safety(Blind(["hunter2"])), {})
    assert "x.json" not in bundle.files
    assert bundle.entries[0].why == "left out: a secret was still to be seen in it"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"token": null, "tokens": 5, "pwd": "a\\"b"}',
         '{"token": null, "tokens": 5, "pwd": "…"}'),
        ("PGPASSWORD=abc psql", "PGPASSWORD=… psql"),
        ("token_file = /etc/x", "token_file = /etc/x"),
        ("https://u:p@h/a?b=c d", "https://…@h/a?… d"),
        ("proxy-authorization: Basic YWJjZGVmZ2g=", "proxy-authorization: …"),
        ("a token bucket holds 5 tokens", "a token bucket holds 5 tokens"),
        ('headgate_x{token="abc"} 1', 'headgate_x{token="…"} 1'),
        ("AKIAABCDEFGHIJKLMNOP", "…"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret(text: str, left: str) -> None:
    assert Scrubber([])(text) == left


@pytest.mark.parametrize("secret", ["hunter2", "p@ss w/or%d", "ünï", 'q"uo\\te', "ab", "x" * 300])
def test_a_known_secret_is_found_in_every_form(secret: str) -> None:
    from urllib.parse import quote

    scrub = Scrubber([secret])
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    for text in (f"a {secret} b", json.dumps({"x": secret}), f"http://h/{quote(secret, safe='')}/"):
        assert secret not in scrub(text)
        assert json.dumps(secret)[1:-1] not in scrub(text)
    assert basic not in scrub(f"Authorization: Basic {basic}")


def test_settings_by_construction() -> None:
    raw = {
        "a": {"password": "x", "password_file": "/etc/p", "headers": {"X": "y"}, "api-key": "z"},
        "command": ["psql", "-W", "x"],
        "tokens": [{"name": "ops", "sha256": "aa"}],
        "ratio": 0.5,
    }
    assert shown(raw) == {
        "a": {"password": HIDDEN, "password_file": "/etc/p", "headers": {"X": HIDDEN},
              "api-key": HIDDEN},
        "command": ["psql", HIDDEN, HIDDEN],
        "tokens": [{"name": "ops", "sha256": HIDDEN}],
        "ratio": 0.5,
    }  # fmt: skip
    assert shown_dsn("host=a password='it\\'s' user=b") == f"host=a password={HIDDEN} user=b"
    assert shown_dsn("mysql://u:p@h:3306/x?ssl_ca=/a") == f"mysql://{HIDDEN}@h:3306/x?{HIDDEN}"


def test_literals_of_statements_are_gone() -> None:
    shape = shape_of("select /* a='x' */ 'secret', 42, \"col\" from t where x = $$b$$")
    assert shape == 'select /*…*/ ?, ?, "col" from t where x = ?'


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("ALTER ROLE app PASSWORD 'P'", "ALTER ROLE app PASSWORD ?"),
        ('CREATE USER bob IDENTIFIED BY "P"', "CREATE USER bob IDENTIFIED BY ?"),
        ("EXECUTE p('P')", "EXECUTE p(?)"),
        ("SET app.pan = 'P'", "SET app.pan = ?"),
        ("COPY t FROM 'P' WITH (key 'P')", "COPY t FROM ? WITH (key ?)"),
        ("STATEMENT:  DROP x\n\tAND 'P'\nand 5", "STATEMENT:  DROP x\n\tAND ?\nand 5"),
        ("SELECT $q$P$q$, 4111 /* P */", "SELECT ?, ? /*…*/"),
        ('update t set a = "P" where b = 0x41', "update t set a = ? where b = ?"),
        ("insert into t values (E'it\\'s P', 'P')", "insert into t values (E?"),
        ("WHERE pan = 'P'", "WHERE pan = ?"),
        ("bind parameters: $1 = 'P', $2 = NULL", "bind parameters: $1 = ?, $2 = NULL"),
        ("Key (a, b)=(P) already, P) already exists.", "Key (a, b)=(?) already exists."),
        ("DETAIL:  Failing row contains (P, null).", "DETAIL:  Failing row contains (?)."),
        ("Duplicate entry 'P' for key 'pan'", "Duplicate entry ? for key 'pan'"),
        ('invalid input syntax for type uuid: "P"', "invalid input syntax for type uuid: ?"),
        ('{"sql": "VALUES (\'P\', E\'it\\\\\'s P\')", "n": 5}', '{"sql": "VALUES (?", "n": 5}'),
        ('{"event": "x", "detail": "DO $$P$$"}', '{"event": "x", "detail": "DO ?"}'),
        ('detail="bad: SELECT a" database=main', 'detail="bad: SELECT a" database=main'),
        ("the agent's own 5 tokens, with 'lag' of 3", "the agent's own 5 tokens, with 'lag' of 3"),
    ],
)  # fmt: skip
def test_a_log_has_no_literal_of_a_statement_and_keeps_its_words(line: str, left: str) -> None:
    assert lines_without_literals(line) == left


def test_names_are_learned_wherever_statements_and_budgets_have_them() -> None:
    document = {
        "patterns": [{"username": "web-user", "application_name": "told-app"}],
        "rules": [{"match": [{"username": "etl-user", "tag.controller": "cart"}]}],
        "own_role": "probe-role",
        "exempt_usernames": ["dba-user"],
    }
    names = Names()
    names.learn(document)
    left = names(json.dumps(document))
    for name in ("web-user", "told-app", "etl-user", "cart", "probe-role", "dba-user"):
        assert name not in left


def test_what_a_command_is_called_with_stays_here() -> None:
    content = 'command = ["/bin/echo", "--db-password", "unlikely-word", "-v"]'
    assert "unlikely-word" in known_secrets([content], None)
    document = {"metrics": [{"name": "x", "command": ["/bin/echo", "--password", "unlikely-word"]}]}
    assert without_literals(document)["metrics"][0]["command"] == ["/bin/echo", HIDDEN, HIDDEN]


def test_the_end_of_a_long_log(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(f"line {n}" for n in range(100_000)))
    told = log_tail(path, 3)
    assert told == "line 99997\nline 99998\nline 99999\n"


def test_secrets_of_a_settings_file_and_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "h").write_text("x-key: value-of-header\nauthorization: Bearer abcdef\n")
    content = f'[tracing]\nheaders_file = "{tmp_path}/h"\n[x]\ndsn = "password=\'a b\' user=u"\n'
    found = known_secrets([content], "tok")
    assert {"value-of-header", "abcdef", "a b", "tok"} <= found
    names = Names()
    names.learn({"client": "job:etl", "metric": "lag", "url": "https://db9.example:1/x"})
    assert set(names.table) == {"job", "etl", "db9.example"}
    assert io.StringIO(names("lag of etl at db9.example")).read().startswith("lag of n-")


def test_every_route_of_a_bundle_is_served() -> None:
    """The proxy's two had other names, and no bundle ever had them."""
    wanted = {path.partition("?")[0] for _, _, path, _ in (*ROUTES, *DATABASE_ROUTES)}
    assert wanted <= {route.path for route in control.ROUTES if route.method == "GET"}
    served = {path for method, path, *_ in SERVED_BY_PROXY if method == "GET"}
    assert {path.partition("?")[0] for _, _, path, _ in PROXY_ROUTES} <= served
