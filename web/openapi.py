"""The OpenAPI 3.1 document, made from the routes and the models and from nothing else.

Each route says what it takes and gives by `@operation` (see `contract`); the schemas are those that validate. So the
document cannot tell what the service does not do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from flask import Flask
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from werkzeug.routing import Rule

import prorl_celery
from web.contract import Operation, operation_of
from web.problems import ProblemDocument

REFERENCE = "#/components/schemas/{model}"

Schemas = Mapping[tuple[Any, JsonSchemaMode], dict[str, Any]]


def document(app: Flask) -> dict[str, Any]:
    """The document of all routes of the application that made a promise."""
    routes = sorted(_routes(app), key=lambda route: (route[0], route[1]))
    schemas, definitions = models_json_schema(_models(promise for _, _, promise, _ in routes), ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for path, method, promise, rule in routes:
        paths.setdefault(path, {})[method] = _route(promise, rule, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ProRL on Celery",
            "version": prorl_celery.__version__,
            "description": "Rollout as a service for reinforcement learning of multi-turn LLM agents.",
        },
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _routes(app: Flask) -> Iterator[tuple[str, str, Operation, Rule]]:
    for rule in app.url_map.iter_rules():
        promise = operation_of(app.view_functions.get(rule.endpoint))
        if promise is None:
            continue
        path = re.sub(r"<(?:[^:<>]+:)?([^<>]+)>", r"{\1}", rule.rule)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            yield path, method.lower(), promise, rule


def _models(promises: Iterator[Operation]) -> list[tuple[type[BaseModel], JsonSchemaMode]]:
    """Every model of the document once: bodies as they are validated, answers as they are written."""
    wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {(ProblemDocument, "serialization"): None}
    for promise in promises:
        for body in promise.body:
            wanted[body, "validation"] = None
        for _, *models in promise.answers.values():
            wanted.update({(model, "serialization"): None for model in models})
    return list(wanted)


def _route(promise: Operation, rule: Rule, schemas: Schemas) -> dict[str, Any]:
    route: dict[str, Any] = {
        "summary": promise.summary,
        "operationId": rule.endpoint.replace(".", "_"),
        "parameters": _parameters(promise, rule),
        "responses": _answers(promise, schemas),
        "security": [{"token": []}] if promise.scope else [],
    }
    if promise.scope:
        route["description"] = f"Scope: {promise.scope}."
    if promise.body:
        bodies = [schemas[model, "validation"] for model in promise.body]
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        route["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return route


def _parameters(promise: Operation, rule: Rule) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in sorted(rule.arguments)
    ]
    if promise.query is not None:
        schema = promise.query.model_json_schema(ref_template=REFERENCE)
        for name, shape in schema.get("properties", {}).items():
            shape = dict(shape)
            parameter = {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": shape}
            if description := shape.pop("description", None):
                parameter["description"] = description
            found.append(parameter)
    return found


def _answers(promise: Operation, schemas: Schemas) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, (description, *models) in promise.answers.items():
        shapes = [schemas[model, "serialization"] for model in models]
        schema = {"type": "object"} if not shapes else shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
        content = {promise.media: schema if promise.media == "application/json" else {"type": "string"}}
        answers[str(status)] = {
            "description": description,
            "content": {} if status == 204 else {media: {"schema": shape} for media, shape in content.items()},
        }
    refusals = (401, 403) if promise.scope else ()
    for status in sorted({*promise.errors, *refusals, 500}):
        problem = {"schema": schemas[ProblemDocument, "serialization"]}
        answers[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {"application/problem+json": problem},
        }
    return answers
