"""The generated document describes the routes there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from flask import Flask


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def test_every_route_is_in_it_and_every_reference_leads_somewhere(app: Flask) -> None:
    answer = app.test_client().get("/openapi.json")
    document = answer.get_json()
    assert document["openapi"].startswith("3.1.")
    assert {"title", "version"} <= document["info"].keys()
    routes = {
        (re.sub(r"<(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert routes == {(path, method) for path, methods in document["paths"].items() for method in methods}
    schemas = document["components"]["schemas"]
    for node in walk(document):
        if "$ref" in node:
            name = node["$ref"].removeprefix("#/components/schemas/")
            assert name in schemas, node["$ref"]
    assert len(json.dumps(document)) < 200_000


def test_each_operation_is_well_formed(app: Flask) -> None:
    document = app.test_client().get("/openapi.json").get_json()
    ids = []
    for path, methods in document["paths"].items():
        for operation in methods.values():
            ids.append(operation["operationId"])
            assert operation["summary"]
            assert any(code.startswith("2") for code in operation["responses"])
            for answer in operation["responses"].values():
                assert answer["description"]
                assert all("schema" in kind for kind in answer["content"].values())
            in_path = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path))
            assert all("schema" in parameter for parameter in operation["parameters"])
    assert len(ids) == len(set(ids))


def test_the_schema_of_a_job_is_the_models(app: Flask) -> None:
    schemas = app.test_client().get("/openapi.json").get_json()["components"]["schemas"]
    assert schemas["JobRequest"]["properties"]["priority"]["maximum"] == 9
    assert schemas["JobRequest"]["additionalProperties"] is False
    assert schemas["SamplingParams"]["properties"]["max_tokens"]["default"] == 2048
