"""psql, pgbench, the backup and replication tools, and JDBC: directly and through the proxy."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.fixtures import peers
from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import ExtendedServer, Kit, kit
from tests.proxy.live.test_psycopg import new_name, runs_on, table
from tests.proxy.live.ways import PostgresWay

JAVA = Path(__file__).parent / "java"
PROGRAMS: Kit = kit(18)


def run(way: PostgresWay, name: str, *argv: str | Path, given: str | None = None) -> peers.Ran:
    env = {**PROGRAMS.env, **way.environment, "HOME": "/nonexistent"}
    return peers.run([PROGRAMS.bin_dir / name, *argv], env=env, given=given)


def psql(way: PostgresWay, script: str) -> peers.Ran:
    return run(way, "psql", "-X", "-qAt", "-v", "ON_ERROR_STOP=1", "-f", "-", given=script)


def test_psql_copies_from_and_to_files(pg: PostgresWay, tmp_path: Path) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("".join(f"{n},row {n}\n" for n in range(3000)))
    ran = psql(
        pg,
        f"CREATE TEMP TABLE t (a int, b text);\n\\copy t FROM '{source}' CSV\n"
        f"\\copy (SELECT * FROM t ORDER BY a) TO '{target}' CSV\nSELECT count(*) FROM t;\n",
    )
    assert (ran.returncode, ran.stdout) == (0, "3000\n"), ran.stderr
    assert target.read_text() == source.read_text()


def test_psql_watches_describes_and_runs_pipelines(pg: PostgresWay) -> None:
    ran = psql(pg, "SELECT 'seen' \\watch i=0.01 c=3\n\\d pg_class\n\\conninfo\n")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("seen") == 3 and "relfilenode" in ran.stdout
    script = (
        "\\startpipeline\nSELECT $1 \\bind 1 \\sendpipeline\nSELECT $1 \\bind 2 \\sendpipeline\n"
    )
    ran = psql(pg, script + "\\endpipeline\n")
    assert (ran.returncode, ran.stdout) == (0, "1\n2\n"), ran.stderr


def test_psql_is_interrupted_by_its_user(pg: PostgresWay, postgres: ExtendedServer) -> None:
    mark = new_name("sigint")
    env = {**PROGRAMS.env, **pg.environment, "HOME": "/nonexistent"}
    script = f"SELECT pg_sleep(600) /* {mark} */;\nSELECT 'goes on';\n"
    argv = [str(PROGRAMS.bin_dir / "psql"), "-X", "-qAt", "-f", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as psql_:
        assert psql_.stdin is not None
        psql_.stdin.write(script)
        psql_.stdin.close()
        psql_.stdin = None
        eventually(lambda: runs_on(postgres, mark))
        psql_.send_signal(signal.SIGINT)
        _, err = psql_.communicate(timeout=60)
    assert "canceling statement due to user request" in err
    assert not runs_on(postgres, mark)


@pytest.mark.parametrize("mode", ["simple", "extended", "prepared"])
def test_pgbench_loses_no_transaction(pg: PostgresWay, tmp_path: Path, mode: str) -> None:
    with table(pg, "a int PRIMARY KEY, n int") as name:
        with pg.connect() as session:
            session.execute(f"INSERT INTO {name} SELECT g, 0 FROM generate_series(1, 50) g")
        script = tmp_path / "add.sql"
        script.write_text(
            "\\set a random(1, 50)\nBEGIN;\nSELECT 1;\n"
            f"UPDATE {name} SET n = n + 1 WHERE a = :a;\nCOMMIT;\n"
            f"SELECT n FROM {name} WHERE a = :a;\n"
        )
        ran = run(pg, "pgbench", "-n", "-M", mode, "-c8", "-j2", "-t25", "-f", script)
        assert ran.returncode == 0, ran.stderr
        assert (
            "actually processed: 200/200" in ran.stdout and "failed transactions: 0" in ran.stdout
        )
        with pg.connect() as session:
            assert session.execute(f"SELECT sum(n) FROM {name}").fetchone() == (200,)


def test_pgbench_in_pipelines(pg: PostgresWay, tmp_path: Path) -> None:
    script = tmp_path / "pipeline.sql"
    script.write_text(
        "\\startpipeline\nSELECT 1;\nSELECT 2;\nSELECT pg_sleep(0);\n\\syncpipeline\n"
        "SELECT 3;\n\\endpipeline\n"
    )
    ran = run(pg, "pgbench", "-n", "-M", "extended", "-c4", "-t25", "-f", script)
    assert ran.returncode == 0, ran.stderr
    assert "actually processed: 100/100" in ran.stdout


def test_a_dump_and_its_restore(pg: PostgresWay) -> None:
    with table(pg, "a int, b text") as name:
        with pg.connect() as session:
            session.execute(f"INSERT INTO {name} SELECT g, 'v' FROM generate_series(1, 500) g")
        dumped = run(pg, "pg_dump", "-t", name)
        assert dumped.returncode == 0, dumped.stderr
        with pg.connect() as session:
            session.execute(f"DROP TABLE {name}")
        # pg_dump of these minors guards its output with \restrict, which psql knows.
        ran = psql(pg, dumped.stdout)
        assert ran.returncode == 0, ran.stderr
        with pg.connect() as session:
            assert session.execute(f"SELECT count(*) FROM {name}").fetchone() == (500,)


@pytest.mark.parametrize("pg", ["rules"], indirect=True)  # Of the whole server, each time.
def test_a_base_backup_goes_over_a_replication_connection(pg: PostgresWay, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    ran = run(pg, "pg_basebackup", "-D", target, "-X", "stream", "-c", "fast", "--no-sync", "-Ft")
    assert ran.returncode == 0, ran.stderr
    assert (target / "base.tar").stat().st_size > 1_000_000
    assert (target / "pg_wal.tar").exists()


def test_wal_streams_over_a_replication_connection(pg: PostgresWay, tmp_path: Path) -> None:
    slot = new_name("slot")
    env = {**PROGRAMS.env, **pg.environment}
    with pg.connect() as session:
        row = session.execute("SELECT pg_create_physical_replication_slot(%s, true)", [slot])
        row.fetchall()
        argv = [PROGRAMS.bin_dir / "pg_receivewal", "-D", tmp_path, "-S", slot, "--no-loop", "-n"]
        with subprocess.Popen([*map(str, argv), "--synchronous"], env=env) as receiver:
            session.execute("SELECT pg_logical_emit_message(false, 'm', repeat('w', 2000000))")
            session.execute("SELECT pg_switch_wal()")
            eventually(lambda: [p for p in tmp_path.iterdir() if ".partial" not in p.name])
            receiver.send_signal(signal.SIGINT)
            assert receiver.wait(60) == 0
        eventually(
            lambda: (
                not session.execute(
                    "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", [slot]
                ).fetchone()
            )
        )
        session.execute("SELECT pg_drop_replication_slot(%s)", [slot])


@pytest.mark.parametrize("pg", ["tls"], indirect=True)  # Java takes seconds to start.
def test_jdbc_prepares_batches_streams_copies_and_cancels(pg: PostgresWay) -> None:
    java, jar = peers.program("java"), peers.jar("postgresql.jar")
    peers.program("javac")
    tls = "sslmode=disable"
    if pg.ca is not None:
        tls = f"sslmode=verify-full&sslrootcert={pg.ca}"
    url = f"jdbc:postgresql://127.0.0.1:{pg.port}/parity?user=postgres&{tls}"
    quick = ["-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:+UseSerialGC"]
    ran = peers.run([java, *quick, "-cp", jar, JAVA / "PostgresParity.java", url])
    assert ran.returncode == 0, ran.stderr
    assert re.findall(r"^ok (\w+)$", ran.stdout, re.M) == [
        "prepared", "batch", "cursor", "transaction", "copy", "cancel", "survives",
    ]  # fmt: skip
