"""What the demo decides before anything runs: ports, settings, who decides on statements."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from typer import BadParameter

from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext.build import BuildFailed
from headgate.cli.host import _ports
from headgate.demo import servers, traffic
from headgate.demo.agents import DemoAgent, DemoPlan, Tokens
from headgate.demo.postgres import PostgresServer, ServerPaths
from headgate.demo.servers import ServerProcess
from headgate.demo.traffic import POLICY, ROGUE_BUDGET, Enforcement
from headgate.errors import NativeUnavailable
from headgate.settings.agent import parse_settings
from headgate.settings.sections import GrantedRole


def server(name: str) -> PostgresServer:
    place = ServerPaths(Path("/bin"), Path("/home"), Path("/tmp"), name)
    return PostgresServer(place, 5432, cast(ServerProcess, None), upstream=None)


def test_ports_are_taken_from_the_range_that_was_handed_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "FIRST_PORT", servers.FIRST_PORT)
    monkeypatch.setattr(servers, "PORT_COUNT", servers.PORT_COUNT)
    first = servers.FIRST_PORT
    servers.use_ports(first, first + 40)
    found = servers.distinct_ports(3)
    assert len(set(found)) == 3 and all(first <= port <= first + 40 for port in found)


@pytest.mark.parametrize("said", ["", "20000", "20000-", "30000-20000", "80-90", "1-70000", "a-b"])
def test_a_range_of_ports_that_is_none_is_rejected(said: str) -> None:
    with pytest.raises(BadParameter, match="20000-21500"):
        _ports(said)


def test_the_agents_settings_are_taken_with_tokens_tour_and_policy(tmp_path: Path) -> None:
    agents = [DemoAgent(name, 20_000 + n, tmp_path, "t") for n, name in enumerate(("db-a", "db-b"))]
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "peers.token").write_text("secret")
    tokens = Tokens.new()
    directories = {"db-a": tmp_path / "pg_headgate"}
    plan = DemoPlan(tokens, "http://127.0.0.1:20009", tmp_path / "policy.toml", directories)
    for agent, other in (agents, agents[::-1]):
        agent.write_settings(server(agent.name), [other], plan)
    settings = parse_settings(agents[0].settings.read_text())
    assert {token.role for token in settings.tokens} == {GrantedRole.OPERATOR, GrantedRole.VIEWER}
    assert settings.page.tour == "http://127.0.0.1:20009"
    assert settings.databases["main"].traffic is not None
    assert settings.databases["main"].traffic.directory == directories["db-a"]
    assert tokens.operator not in agents[0].settings.read_text()
    other_traffic = parse_settings(agents[1].settings.read_text()).databases["main"].traffic
    assert other_traffic is not None and other_traffic.directory is None


def test_the_policy_warns_of_best_effort_and_leaves_the_critical_alone() -> None:
    """R127: tiers; the critical one has no budget at all."""
    policy = parse_policy(tomllib.loads(POLICY))
    modes: Mapping[str, str] = {budget.name: budget.mode.value for budget in policy.budgets}
    assert modes == {"important": "warn", ROGUE_BUDGET: "warn"}
    assert f'"{traffic.CRITICAL_ROLE}"' not in POLICY


def no_compiler(folder: Path) -> Path:
    raise BuildFailed("no C compiler gcc: install the packages gcc and libc6-dev")


def no_relay() -> object:
    raise NativeUnavailable("no C compiler to build the relay with: install gcc")


def test_the_best_that_can_be_built_decides_on_statements(tmp_path: Path) -> None:
    library = tmp_path / "pg_headgate.so"
    inside = traffic.choose(tmp_path, lambda folder: library)
    assert inside.way is Enforcement.EXTENSION
    assert inside.server_settings == {"shared_preload_libraries": str(library)}

    proxied = traffic.choose(tmp_path, no_compiler, lambda: None)
    assert proxied.way is Enforcement.PROXY and proxied.proxy_dir is not None
    proxied.proxy_dir.rmdir()
    assert proxied.directories([server("db-a"), server("db-b")]) == {"db-a": proxied.proxy_dir}

    nobody = traffic.choose(tmp_path, no_compiler, no_relay)
    assert nobody.way is Enforcement.NONE and nobody.server_settings == {}
    assert "install the packages gcc" in nobody.words() and "nor can the proxy" in nobody.words()
