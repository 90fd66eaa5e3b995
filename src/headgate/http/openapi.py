"""The API for programs: an OpenAPI 3.1 document that follows from the table of routes."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from headgate.base.problems import CONTENT_TYPE, Problem
from headgate.check.answers import STATUS
from headgate.check.model import VERDICT_MEANINGS, Verdict
from headgate.check.questions import CheckBody
from headgate.http.fields import FIELDS
from headgate.http.routes import (
    PLACES,
    Caller,
    Route,
    SettingsBody,
    Text,
    Unread,
    Verdicts,
    parameters,
)
from headgate.version import VERSION

_REF = "#/components/schemas/{name}"
_NULL = {"type": "null"}
_SECURITY: dict[Caller, list[dict[str, list[str]]]] = {
    Caller.OPERATOR: [{"token": []}],
    Caller.PEER: [{"token": []}, {"certificate": []}],
}
_LISTENERS = (405, 413, 414, 415, 431)
"""What the listener itself answers a check with."""


@cache
def document(routes: tuple[Route, ...]) -> dict[str, Any]:
    used = {doc for route in routes for doc in structs(route)}
    by_name = sorted(used, key=lambda doc: doc.__name__)
    _, schemas = msgspec.json.schema_components(by_name, ref_template=_REF)
    for kind in _kinds(by_name):
        # Two of one name are told apart by their modules.
        whole = schemas.get(kind.__name__) or schemas[f"{kind.__module__}.{kind.__name__}"]
        for name, one in whole.get("properties", {}).items():
            one.setdefault("description", field_docs(kind).get(name) or FIELDS.get(name, ""))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headgate agent", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _kinds(found: Iterable[type]) -> set[type]:
    """These, and every struct inside of them."""
    known: set[type] = set()
    waiting: list[Any] = [msgspec.inspect.type_info(one) for one in found]
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if info.cls in known:
                continue
            known.add(info.cls)
            waiting += [one.type for one in info.fields]
        for name in ("type", "item_type", "key_type", "value_type"):
            inner = getattr(info, name, None)
            waiting += [inner] if isinstance(inner, msgspec.inspect.Type) else []
        waiting += [*getattr(info, "types", ()), *(getattr(info, "item_types", ()) or ())]
    return known


def field_docs(kind: type) -> dict[str, str]:
    """What the string below each field says; nothing where the source is not installed."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__[:-1]):
        found |= _docs_in(one.__module__).get(one.__name__, {})
    return found


@cache
def _docs_in(module: str) -> dict[str, dict[str, str]]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {
        node.name: dict(_of_class(node)) for node in tree.body if isinstance(node, ast.ClassDef)
    }


def _of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id.rstrip("_"), " ".join(str(below.value.value).split())


def documents(route: Route) -> tuple[type, ...]:
    """What it answers with, where that is a document."""
    answer = route.answer.documents if isinstance(route.answer, Verdicts) else route.answer
    found = answer if isinstance(answer, tuple) else (answer,)
    return tuple(one for one in found if isinstance(one, type))


def structs(route: Route) -> Iterator[type]:
    yield from (*documents(route), Problem, CheckBody)
    if isinstance(route.body, Unread):
        yield route.body.document
    elif isinstance(route.body, type):
        yield route.body


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": [*_places(route), *_query(route)],
        "responses": _responses(route),
    }
    if route.about:
        operation["description"] = route.about
    if route.body is not None:
        content: dict[str, Any] = {"schema": body_schema(route)}
        content |= {} if route.sends is None else {"example": route.sends}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    if route.role in _SECURITY:
        operation["security"] = _SECURITY[route.role]
    return operation


def _places(route: Route) -> Iterator[dict[str, Any]]:
    reaches = route.query is not None and "reach" in parameters(route.query)
    for name in route.places:
        schema = PLACES[name]
        if name == "database" and reaches:  # Each database of the agents that it reaches.
            schema = {"anyOf": [schema, {"const": "*"}]}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query(route: Route) -> Iterator[dict[str, Any]]:
    for name, schema in ({} if route.query is None else parameters(route.query)).items():
        told = {key: value for key, value in schema.items() if key not in ("required", "about")}
        given = {"description": told.pop("description")} if "description" in told else {}
        row = {"name": name, "in": "query", "required": schema["required"], **given}
        yield {**row, "schema": told}


def body_schema(route: Route) -> dict[str, Any]:
    body = route.body
    if isinstance(body, SettingsBody):
        return body.schema()
    assert body is not None
    return _schema(body.document if isinstance(body, Unread) else body)


def _responses(route: Route) -> dict[str, Any]:
    problems = {str(status): _problem(route, status) for status in route.statuses}
    if isinstance(route.answer, Verdicts):
        return _by_verdict(route, problems)
    if isinstance(route.answer, Text):
        told: dict[str, Any] = {"description": route.summary, "content": {}}
        told["content"][route.answer.media_type] = {}
    else:
        told = _content(_answer(route), route.summary)
    found = {"200": told, **({"201": told} if route.created else {}), **problems}
    return {**found, "503": told} if route.path == "/readyz" else found


def _by_verdict(route: Route, problems: dict[str, Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for verdict, code in STATUS.items():
        told = f"{verdict.value}: {VERDICT_MEANINGS[verdict]}"
        if verdict is Verdict.INTERNAL_ERROR:
            answers[str(code)] = {**_problem(route, code), "description": told}
            continue
        known = answers.setdefault(str(code), _content(_answer(route), told))
        if told not in known["description"]:
            known["description"] += f"; or {told}"
    for status in _LISTENERS:
        problems[str(status)] = _problem(route, status)
    for told_status, problem in problems.items():
        answers.setdefault(told_status, problem)["content"] |= problem["content"]
    return answers


def _answer(route: Route) -> dict[str, Any]:
    found = [_schema(doc) for doc in documents(route)]
    if not found:
        schema: dict[str, Any] = route.answer
        return schema
    return found[0] if len(found) == 1 else {"anyOf": found}


def _problem(route: Route, status: int) -> dict[str, Any]:
    told = f"Rejected: {route.rejects}" if status == 422 and route.rejects else "RFC 9457 problem"
    return {"description": told, "content": {CONTENT_TYPE: {"schema": _schema(Problem)}}}


def _content(schema: Any, description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _schema(doc: type) -> dict[str, Any]:
    return {"$ref": _REF.format(name=doc.__name__)}


def check_schema() -> dict[str, Any]:
    """A database, or a list of checks with everything inside."""
    string = {"type": "string"}
    one = {"required": ["database"], "properties": {"database": string, "checks": _NULL}}
    inside = {"database": _NULL, "metrics": {"maxItems": 0}, "scope": _NULL, "cost": _NULL}
    inside |= {"budget": _NULL, "cpu_s": _NULL}
    many = {
        "required": ["checks"],
        "properties": {"checks": {"type": "array", "minItems": 1}, **inside},
    }
    free = {"properties": {"budget": _NULL, "cpu_s": _NULL}}
    both_said = {"budget": string, "cpu_s": {"type": "number"}}
    charged = {"required": ["budget", "cpu_s"], "properties": both_said}
    both = {"allOf": [one, {"oneOf": [free, charged]}]}
    return {"allOf": [_schema(CheckBody), {"oneOf": [both, many]}]}
