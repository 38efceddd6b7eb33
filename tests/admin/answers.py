"""What an answer of the HTTP API must be: its own description says so."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from strandline.node.admin.openapi import OPENAPI
from tests.admin.small_node import Answer

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "array": (list,), "object": (dict,), "null": (type(None),),
}  # fmt: skip


def check(value: Any, schema: dict[str, Any], where: str = "answer") -> None:
    """That a value is what a schema of OpenAPI says; only what the API's own schemas use."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert type(value) in {kind for name in kinds for kind in TYPES[name]}, (where, value, kinds)
    assert value in schema.get("enum", [value]), (where, value)
    if isinstance(value, list):
        for item in value:
            check(item, schema["items"], f"{where}[]")
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) == set(schema["properties"]), where
        for name, item in value.items():
            check(item, schema["properties"][name], f"{where}.{name}")
    elif isinstance(value, dict) and "additionalProperties" in schema:
        for item in value.values():
            check(item, schema["additionalProperties"], f"{where}.*")


def schema_of(path: str, method: str = "get", code: str = "200") -> dict[str, Any]:
    answer = OPENAPI["paths"][path][method]["responses"][code]
    schema: dict[str, Any] = answer["content"]["application/json"]["schema"]
    return schema


def refused(answer: Answer, status: int) -> str:
    assert answer.status == status, answer
    error = answer.json()
    check(error, schema_of("/api/cluster", code="4XX"))
    return str(error["error"])


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(page: str) -> Samples:
    """By name and labels; a sample that comes twice makes Prometheus refuse the page."""
    found: Samples = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found
