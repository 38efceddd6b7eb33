"""Client quotas by way of Kafka's own requests: librdkafka lacks them, so the command speaks itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from strandline.cluster.broker_connection import connect
from strandline.cluster.failure import CommandFailed, one_line
from strandline.snapshot.connection import Api, ConnectionLost

_DESCRIBE: Final = Api(48, 1)
_ALTER: Final = Api(49, 1)

Entity = tuple[tuple[str, str | None], ...]
"""Kafka's types and names; None is the default."""


class Quota(NamedTuple):
    """The quotas of one entity, by key."""

    entity: Entity
    values: Mapping[str, float]


class QuotaClient:
    """Asks the first broker of `bootstrap` that answers. Everything raises CommandFailed."""

    def __init__(self, bootstrap: str) -> None:
        self._connection = connect(bootstrap)

    def all(self) -> list[Quota]:
        """Every entity's quotas."""
        a = _DESCRIBE.request
        answer = self._ask(_DESCRIBE, a.DescribeClientQuotasRequest(components=(), strict=False))
        _check("the quotas cannot be listed", answer)
        found = (
            Quota(
                tuple((part.entity_type, part.entity_name) for part in entry.entity),
                {value.key: value.value for value in entry.values},
            )
            for entry in answer.entries or ()
        )
        return sorted(found, key=lambda quota: [(name is None, name or "") for _, name in quota.entity])

    def alter(self, what: str, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set an entity's quotas, or remove those that are None."""
        a = _ALTER.request
        entry = a.EntryData(
            entity=tuple(a.EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
            ops=tuple(
                a.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
                for key, value in changes.items()
            ),
        )
        request = a.AlterClientQuotasRequest(entries=(entry,), validate_only=False)
        (done,) = self._ask(_ALTER, request).entries
        _check(what, done)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _ask(self, api: Api, request: Any) -> Any:
        try:
            return self._connection.ask(api, request)
        except ConnectionLost as lost:
            raise CommandFailed(one_line(str(lost)), "see the log of that node") from None


def _check(what: str, answer: Any) -> None:
    if answer.error_code is not ErrorCode.none:
        told = answer.error_message or answer.error_code.name
        cure = "correct what was asked for"
        if answer.error_code is ErrorCode.cluster_authorization_failed:
            cure = "ask as a user that may alter-configs (to list, describe-configs) the cluster"
        raise CommandFailed(f"{what}: {one_line(told)}", cure)
