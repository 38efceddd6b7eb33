"""Builds responses of any spoken version from one set of fields.

Every version of a response has its own classes in kio, and they differ by a field here and there. A handler
names all the fields it knows; those that a version lacks are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from kio.index import load_payload_module
from kio.static.constants import EntityType

from strandline.node.kafka.wire.apis import APIS

FORMER: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "FetchableTopicResponse": frozenset({"topic"}),
        "FindCoordinatorResponse": frozenset({"error_code", "error_message", "host", "node_id", "port"}),
        "MetadataResponse": frozenset({"cluster_authorized_operations"}),
        "OffsetFetchResponse": frozenset({"error_code", "topics"}),
        "OffsetFetchResponsePartition": frozenset(
            {"committed_leader_epoch", "committed_offset", "error_code", "metadata", "partition_index"}
        ),
        "OffsetFetchResponseTopic": frozenset({"name", "partitions"}),
        "TopicProduceResponse": frozenset({"name"}),
        "UpdatableFeatureResult": frozenset({"error_code", "error_message", "feature"}),
        "UpdateFeaturesResponse": frozenset({"results"}),
    }
)
"""Fields of structures that earlier spoken versions of a response have, and the last has not. So no other
version than the last has to be imported to know them all."""


class ResponseTypes:
    """The classes of one response version: `response_types(key, version).FetchResponse(...)`.

    A field that this version lacks is dropped; a structure that it lacks is None, to be dropped with its
    field. Raises AttributeError for a class, and TypeError for a field, that no spoken version has.
    """

    def __init__(self, api_key: int, version: int) -> None:
        self._api_key = api_key
        self._classes = _classes(api_key, version)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        make = _maker(self._api_key, name, self._classes.get(name))
        setattr(self, name, make)
        return make


@cache
def response_types(api_key: int, version: int) -> ResponseTypes:
    """The classes of the response to `api_key` in `version`, which is in the table of APIs."""
    return ResponseTypes(api_key, version)


def prepare_responses(api_key: int, version: int) -> None:
    """Import what `response_types` needs, and what it looks into for a field that this version lacks; any
    thread may."""
    response_types(api_key, version)
    load_payload_module(api_key, APIS[api_key].last, EntityType.response)


def _classes(api_key: int, version: int) -> dict[str, type[Any]]:
    module = load_payload_module(api_key, version, EntityType.response)
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.__name__
    }


def _maker(api_key: int, name: str, entity: type[Any] | None) -> Callable[..., Any]:
    lacking: set[str] = set()
    if entity is None:
        if not _names(api_key, name):
            raise AttributeError(f"no spoken version of api key {api_key} has a {name}")
        return lambda **_values: None
    own = frozenset(field.name for field in fields(entity))

    def make(**values: Any) -> Any:
        if values.keys() <= own:
            return entity(**values)
        for unknown in values.keys() - own - lacking:
            if unknown not in _names(api_key, name):
                raise TypeError(f"no spoken version of {name} has a field {unknown!r}")
            lacking.add(unknown)
        return entity(**{key: value for key, value in values.items() if key in own})

    return make


@cache
def _names(api_key: int, name: str) -> frozenset[str]:
    """The fields of a structure in all spoken versions together; the last is imported for it."""
    entity = _classes(api_key, APIS[api_key].last).get(name)
    found = frozenset() if entity is None else frozenset(field.name for field in fields(entity))
    return found | FORMER.get(name, frozenset())
