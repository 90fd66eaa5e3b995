"""What may stand before an operator's query, and what only looks like a comment."""

from __future__ import annotations

import pytest

from headgate.errors import InvalidSettings
from headgate.metrics.model import Engine, Sql
from headgate.metrics.settings import parse_metric_settings


def parsed(query: str) -> Sql:
    spec = parse_metric_settings("mine", {"sql": query, "threshold": 1}, Engine.MYSQL)
    assert isinstance(spec.source, Sql)
    return spec.source


@pytest.mark.parametrize(
    "query",
    ["-- x\nselect 1", "/* x */ select 1", "--\n\n/* a\n*b */-- c\n  select 1;", "/**/select 1"],
)
def test_comments_may_come_first(query: str) -> None:
    assert parsed(query) == Sql("select 1")


@pytest.mark.parametrize(
    "query",
    [
        "-- select 1",
        "/* select 1 */",
        "/* select 1",
        "-- x\ndelete from t",
        "/*! delete from t */ select 1",
        "/*M! delete from t */ select 1",
        "/*!50000 delete from t where 1 or */ select 1",
    ],
)
def test_what_follows_the_comments_must_be_a_query(query: str) -> None:
    """MySQL and MariaDB run what stands in `/*! … */`."""
    with pytest.raises(InvalidSettings, match="must be one SELECT"):
        parsed(query)
