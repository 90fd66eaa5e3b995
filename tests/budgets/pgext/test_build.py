"""The extension is built from a clean copy of its sources, or says which package is missing."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.budgets.pgext import build, operate
from headgate.budgets.pgext.build import BuildFailed, PgConfig, missing_for, read_pg_config
from headgate.budgets.pgext.operate import (
    Extension,
    ServerNotFound,
    ServerSettings,
    conf_lines,
    find_pg_config,
)
from headgate.errors import HeadgateError
from tests.fixtures import pgkits
from tests.fixtures.pgkits import NEWEST, OLDEST, ExtendedServers


@pytest.fixture(scope="module")
def config() -> PgConfig:
    return read_pg_config(pgkits.kit(NEWEST).pg_config)


def test_a_pg_config_tells_all_that_a_build_needs(config: PgConfig) -> None:
    kit = pgkits.kit(NEWEST)
    assert (config.major, config.bin_dir, config.compiler) == (NEWEST, kit.bin_dir, "gcc")
    assert config.extension_dir == kit.prefix / "share" / "extension"
    assert missing_for(config) == []


@pytest.mark.parametrize(
    ("text", "major"),
    [("PostgreSQL 15.19 (Debian 15.19-0+deb12u1)", 15), ("PostgreSQL 18beta1", 18)],
)
def test_majors_of_all_shapes_are_read(text: str, major: int) -> None:
    assert build.major_of(text) == major


def test_missing_headers_name_the_package_of_that_version(config: PgConfig) -> None:
    bare = replace(config, headers=Path("/nonexistent"), pgxs=Path("/nonexistent/pgxs.mk"))
    assert [said.count(f"postgresql-server-dev-{NEWEST}") for said in missing_for(bare)] == [1, 1]


def test_missing_tools_are_named(config: PgConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    said = "\n".join(missing_for(config))
    assert "package make" in said and "packages gcc and libc6-dev" in said


def test_an_unsupported_version_is_rejected_before_anything_is_built(config: PgConfig) -> None:
    said = missing_for(replace(config, major=13, version="PostgreSQL 13.4"))
    assert said == ["PostgreSQL 13.4 is not supported: the extension is made for 14 to 19"]


@pytest.mark.parametrize("program", ["/nonexistent", "/bin/true", "/bin/ls"])
def test_what_is_no_pg_config_is_named(program: str) -> None:
    with pytest.raises(BuildFailed, match=program):
        read_pg_config(Path(program))


def test_compiler_errors_are_shown(
    config: PgConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    for part in build.PARTS:
        shutil.copytree(build.sources() / part, broken / part, ignore=build.NO_SOURCES)
    source = next((broken / build.EXTENSION / "src").glob("*.c"))
    source.write_text("#error this cannot be")
    monkeypatch.setattr(build, "sources", lambda: broken)
    with pytest.raises(BuildFailed, match="this cannot be"):
        build.build_extension(config.path, tmp_path / "into")


def test_a_clean_checkout_installs_into_a_server_that_then_starts_with_it(
    servers_dir: Path,
) -> None:
    kit = pgkits.copied_kit(NEWEST, servers_dir / "installed")
    done = Extension().install(pg_config=kit.pg_config, data_directory=None, dsn=None)
    assert Path(done["library"]).is_file() and Path(done["control"]).is_file()
    assert done["settings"][0] == "shared_preload_libraries = 'pg_headgate'"
    with pgkits.start_extended(servers_dir, NEWEST, using=kit) as server:
        assert (server.traffic_dir / "server.json").is_file()
        with server.connect() as session:
            session.execute("CREATE EXTENSION pg_headgate")


def test_what_is_preloaded_already_stays() -> None:
    server = ServerSettings(15, "15.18", None, "pg_stat_statements, pg_headgate")
    assert conf_lines(server)[0] == "shared_preload_libraries = 'pg_stat_statements,pg_headgate'"


def test_a_running_server_leads_to_its_own_pg_config(extended_servers: ExtendedServers) -> None:
    server = extended_servers.of(NEWEST)
    by_data = find_pg_config(None, server.data_dir, None)
    asked = operate.ask_server(server.dsn())
    assert asked.major == NEWEST and asked.preloaded == "pg_headgate"
    by_dsn = find_pg_config(None, None, asked)
    assert by_data.bin_dir == by_dsn.bin_dir == server.kit.bin_dir


def test_the_wrong_pg_config_for_a_server_is_rejected(extended_servers: ExtendedServers) -> None:
    server = extended_servers.of(NEWEST)
    other = pgkits.kit(OLDEST).pg_config
    with pytest.raises(Exception, match=f"the server is a Postgres {NEWEST}"):
        Extension().install(pg_config=other, data_directory=None, dsn=server.dsn())


@pytest.mark.parametrize(
    ("running", "installed", "headers", "says"),
    [
        ("15.20", "15.20", "15.20", None),
        (None, "15.20", "15.20", None),
        (None, None, "15.20", None),  # a host that only builds
        ("15.18", "15.20", "15.20", "Restart the server"),
        ("15.18", "15.18", "15.20", "postgresql-server-dev-15="),
        (None, "15.18", "15.20", "or the package postgresql-15-headgate"),
    ],
)
def test_a_half_done_upgrade_is_told(
    running: str | None, installed: str | None, headers: str | None, says: str | None
) -> None:
    fault = build.minor_fault(15, running=running, installed=installed, headers=headers)
    assert fault is None if says is None else says in (fault or "")


@pytest.mark.parametrize("by", ["data directory", "connection"])
def test_headers_of_another_minor_stop_an_installation_before_anything_is_built(
    extended_servers: ExtendedServers, servers_dir: Path, by: str
) -> None:
    server = extended_servers.of(NEWEST)
    kit = pgkits.copied_kit(NEWEST, servers_dir / "of-another-minor")
    header = kit.prefix / "include" / "server" / "pg_config.h"
    text = re.sub(r'(#define PG_VERSION) "[^"]+"', rf'\1 "{NEWEST}.99"', header.read_text())
    header.unlink()  # A link to the kit's own.
    header.write_text(text)
    data_directory = server.data_dir if by == "data directory" else None
    dsn = server.dsn() if by == "connection" else None
    with pytest.raises(HeadgateError, match=rf"headers are of Postgres {NEWEST}\.99"):
        Extension().install(pg_config=kit.pg_config, data_directory=data_directory, dsn=dsn)
    assert not (kit.prefix / "lib" / "pg_headgate.so").exists()
    shutil.rmtree(kit.prefix)


def test_program_files_that_were_replaced_under_a_server_stop_it(servers_dir: Path) -> None:
    kit = pgkits.copied_kit(NEWEST, servers_dir / "replaced")
    with pgkits.start_extended(
        servers_dir, NEWEST, using=kit, settings=pgkits.UNEXTENDED
    ) as server:
        (kit.bin_dir / "postgres").rename(kit.bin_dir / "postgres.old")
        (kit.bin_dir / "postgres").write_text(
            f"#!/bin/sh\necho 'postgres (PostgreSQL) {NEWEST}.99'\n"
        )
        (kit.bin_dir / "postgres").chmod(0o755)
        with pytest.raises(HeadgateError, match="upgrade was installed under it"):
            Extension().install(pg_config=None, data_directory=server.data_dir, dsn=None)
        (kit.bin_dir / "postgres.old").rename(kit.bin_dir / "postgres")


def test_a_folder_that_holds_no_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerNotFound, match="no PG_VERSION"):
        find_pg_config(None, tmp_path, None)


def test_a_server_that_is_down_is_known_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "PG_VERSION").write_text("15\n")
    monkeypatch.setattr(operate, "PLACES", (str(pgkits.KITS / "{major}" / "bin" / "pg_config"),))
    assert find_pg_config(None, tmp_path, None).major == 15
    (tmp_path / "PG_VERSION").write_text("99\n")
    with pytest.raises(ServerNotFound, match="postgresql-server-dev-99"):
        find_pg_config(None, tmp_path, None)


def test_several_servers_have_to_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operate, "PLACES", (str(pgkits.KITS / "{major}" / "bin" / "pg_config"),))
    with pytest.raises(ServerNotFound, match=r"--pg-config, --data-directory or --server"):
        find_pg_config(None, None, None)


def test_a_server_that_cannot_be_reached_is_told_without_its_password() -> None:
    with pytest.raises(ServerNotFound) as told:
        operate.ask_server("host=127.0.0.1 port=1 user=me password=s3cret dbname=x")
    assert "s3cret" not in str(told.value)
