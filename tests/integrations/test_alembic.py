"""Alembic's own command, with an env.py as the docs print it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

pytest.importorskip("alembic", reason="Alembic is not installed")

from alembic import command
from alembic.config import Config

from tests.client.scripted import REJECTED, ScriptedAgent

EXAMPLE = Path(__file__).parents[2] / "examples" / "alembic_env.py"
SCHEMA = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "{revision}", {down}
def upgrade():
    {body}
"""
MIGRATIONS = {
    "a1": (None, 'op.execute("CREATE TABLE t AS SELECT generate_series(1, 25) AS id")'),
    "a2": ("a1", 'op.add_column("t", sa.Column("done", sa.Boolean))'),
    "a3": (
        "a2",
        "gate = op.get_context().config.attributes['gate']\n"
        "    from headgate.integrations.alembic import in_batches\n"
        "    rows = in_batches(op, gate, 'UPDATE t SET done = true WHERE id IN'\n"
        "                      ' (SELECT id FROM t WHERE done IS NULL LIMIT 10)')\n"
        "    assert rows == 25",
    ),
}


@pytest.fixture
def config(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Config:
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(EXAMPLE.read_text())
    for revision, (down, body) in MIGRATIONS.items():
        text = SCHEMA.format(revision=revision, down=repr(down), body=body)
        (tmp_path / "versions" / f"{revision}.py").write_text(text)
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    config.set_main_option("sqlalchemy.url", database.replace("postgresql:", "postgresql+psycopg:"))
    return config


def test_each_migration_and_each_batch_waits(
    agent: ScriptedAgent, config: Config, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.script.plays.append(REJECTED)
    monkeypatch.setenv("HEADGATE_URL", agent.url)
    command.upgrade(config, "a2")
    after_schema = len(agent.heard)
    assert after_schema >= 3, "two migrations, and one rejection"
    command.upgrade(config, "head")
    batches = len(agent.heard) - after_schema
    assert 4 <= batches <= 7, "three, one that finds nothing, and Alembic's own; none asks twice"
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM t WHERE done").fetchone() == (25,)


def test_offline_nothing_is_checked(
    agent: ScriptedAgent, config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    command.upgrade(config, "a2", sql=True)
    assert "ALTER TABLE t ADD COLUMN done" in capsys.readouterr().out
    assert agent.heard == []
