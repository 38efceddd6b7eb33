"""All client quotas, and the one that holds for a client: Kafka's order of precedence (KIP-13, KIP-55)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from strandline.statemachine.controller.client_quota import (
    CONNECTION_RATE,
    DEFAULT,
    QuotaEntity,
    QuotaKey,
    fault,
    shortest,
)
from strandline.statemachine.controller.controller_commands import AlterClientQuotas
from strandline.statemachine.kafka_errors import KafkaError, Refused

MAX_ENTITIES: Final = 10_000
MAX_CHARACTERS: Final = 1 << 20
"""Of all names: they are in each snapshot of the controller."""


class Limit(NamedTuple):
    """The quota that holds for a client."""

    entity: QuotaEntity
    """The entity that has it."""
    value: float
    shared_by: QuotaEntity
    """The clients that use it up together: each user, client id or pair of the entity has its own."""


class QuotaSet:
    """Quotas by entity, in the order in which they came. `version` goes up with each change."""

    def __init__(self, quotas: Iterable[tuple[QuotaEntity, Mapping[str, float]]] = ()) -> None:
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self._entities_with: Counter[str] = Counter()
        self._characters = 0
        self.version = 0
        for entity, values in quotas:
            self._put(entity, dict(values))

    def __iter__(self) -> Iterator[tuple[QuotaEntity, Mapping[str, float]]]:
        return iter(self._quotas.items())

    def __len__(self) -> int:
        return len(self._quotas)

    def alter(self, command: AlterClientQuotas) -> int | Refused:
        """Change an entity's quotas, all or none; gives how many it has then."""
        planned = self.plan(command)
        if isinstance(planned, Refused):
            return planned
        self._put(QuotaEntity(command.user, command.client_id, command.ip), planned)
        self.version += 1
        return len(planned)

    def plan(self, command: AlterClientQuotas) -> dict[str, float] | Refused:
        """The quotas that the entity would have; changes nothing (Kafka's validate_only)."""
        entity = QuotaEntity(command.user, command.client_id, command.ip)
        if refused := fault(entity, command.changes):
            return refused
        values = dict(self._quotas.get(entity, {}))
        for key, value in command.changes:
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        if values and entity not in self._quotas:
            if len(self._quotas) >= MAX_ENTITIES:
                return _full(f"There are quotas of {len(self._quotas)} entities, of {MAX_ENTITIES}")
            if self._characters + _characters(entity) > MAX_CHARACTERS:
                return _full(f"The entities with quotas would have more than {MAX_CHARACTERS} characters")
        return values

    def limit(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        """The quota of a client for `key`; a client without an id has none of a client id, as in Kafka."""
        if not self._entities_with[key]:
            return None
        for entity in _in_order(user, client_id):
            value = self._quotas.get(entity, {}).get(key)
            if value is not None:
                shared_by = QuotaEntity(
                    None if entity.user is None else user, None if entity.client_id is None else client_id
                )
                return Limit(entity, value, shared_by)
        return None

    def connection_rate(self, address: str) -> tuple[QuotaEntity, float] | None:
        """The entity whose quota holds for connections of an IP address, and connections a second."""
        if not self._entities_with[CONNECTION_RATE]:
            return None
        for name in (shortest(address) or address, DEFAULT):
            entity = QuotaEntity(None, None, name)
            if (value := self._quotas.get(entity, {}).get(CONNECTION_RATE)) is not None:
                return entity, value
        return None

    def _put(self, entity: QuotaEntity, values: dict[str, float]) -> None:
        present = self._quotas.get(entity)
        if present is not None:
            self._entities_with.subtract(present.keys())
        if values:
            self._entities_with.update(values.keys())
            self._quotas[entity] = values
            self._characters += _characters(entity) if present is None else 0
        elif present is not None:
            del self._quotas[entity]
            self._characters -= _characters(entity)


def _in_order(user: str, client_id: str) -> Iterator[QuotaEntity]:
    """The entities that may have a client's quota, the first that has one decides."""
    for name in (user, DEFAULT):
        if client_id:
            yield QuotaEntity(name, client_id)
            yield QuotaEntity(name, DEFAULT)
        yield QuotaEntity(name, None)
    if client_id:
        yield QuotaEntity(None, client_id)
        yield QuotaEntity(None, DEFAULT)


def _characters(entity: QuotaEntity) -> int:
    return sum(len(name) for _, name in entity.parts)


def _full(reason: str) -> Refused:
    return Refused(KafkaError.POLICY_VIOLATION, f"{reason}: remove those that are not used.")
