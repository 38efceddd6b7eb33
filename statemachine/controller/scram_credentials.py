"""SCRAM credentials of users: pure functions of the state, with Kafka's answers to refused changes (KIP-554).

A credential is what RFC 5802, section 3, has a server store. A password cannot be computed from it, only
guessed, and it lets its holder neither log in nor, without the salted password, play a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from strandline.statemachine.controller.controller_commands import AlterScramCredentials
from strandline.statemachine.kafka_errors import KafkaError, Refused


class ScramMechanism(IntEnum):
    """Kafka's numbers."""

    SHA_256 = 1
    SHA_512 = 2


KEY_BYTES: Final = {ScramMechanism.SHA_256: 32, ScramMechanism.SHA_512: 64}
MIN_ITERATIONS: Final = 4096
"""RFC 7677, section 4, and Kafka's least."""
MAX_ITERATIONS: Final = 16384
"""Kafka's most: a client has to compute so many for each login."""
MAX_SALT: Final = 1024
MAX_NAME: Final = 255
MAX_CREDENTIALS: Final = 10_000


class ScramCredential(NamedTuple):
    """One user's credential for one mechanism."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


Credentials = Mapping[tuple[str, int], ScramCredential]
"""By user and mechanism."""


def alter(
    credentials: dict[tuple[str, int], ScramCredential], command: AlterScramCredentials
) -> int | Refused:
    """Make the changes of a command; gives the number of credentials that its user has then."""
    changes = _plan(credentials, command)
    if isinstance(changes, Refused):
        return changes
    for key, credential in changes.items():
        if credential is None:
            del credentials[key]
        else:
            credentials[key] = credential
    return sum((command.user, mechanism) in credentials for mechanism in ScramMechanism)


def in_force(credentials: Credentials, command: AlterScramCredentials) -> int | None:
    """The number of credentials that the user has, if all that the command asks for is so; else None.

    It is for a command that was tried twice: what the first application deleted, the second does not find.
    """
    there = {
        mechanism: known
        for mechanism in ScramMechanism
        if (known := credentials.get((command.user, mechanism)))
    }
    if not there.keys().isdisjoint(command.deletions):
        return None
    if any(there.get(ScramMechanism(one[0])) != ScramCredential(*one[1:]) for one in command.upsertions):
        return None
    return len(there)


def _plan(
    present: Credentials, command: AlterScramCredentials
) -> dict[tuple[str, int], ScramCredential | None] | Refused:
    """The changes that a command makes, None for a credential that goes; all of them or none."""
    user = command.user
    if not 1 <= len(user) <= MAX_NAME:
        reason = f"A user's name has 1 to {MAX_NAME} characters."
        return Refused(KafkaError.UNACCEPTABLE_CREDENTIAL, reason)
    changes: dict[tuple[str, int], ScramCredential | None] = {}
    for mechanism in command.deletions:
        if mechanism not in KEY_BYTES:
            return _UNKNOWN
        if (user, mechanism) not in present:
            reason = "Attempt to delete a user credential that does not exist"
            return Refused(KafkaError.RESOURCE_NOT_FOUND, reason)
        changes[user, mechanism] = None
    for mechanism, iterations, salt, stored_key, server_key in command.upsertions:
        if mechanism not in KEY_BYTES:
            return _UNKNOWN
        credential = ScramCredential(iterations, salt, stored_key, server_key)
        refused = _unacceptable(mechanism, credential)
        if refused is not None:
            return refused
        changes[user, mechanism] = credential
    if len(changes) < len(command.deletions) + len(command.upsertions):
        return Refused(
            KafkaError.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in a request"
        )
    new = sum(value is not None and key not in present for key, value in changes.items())
    if new and len(present) + new > MAX_CREDENTIALS:
        reason = (
            f"There are {len(present)} credentials, of {MAX_CREDENTIALS}: delete those that are not used."
        )
        return Refused(KafkaError.POLICY_VIOLATION, reason)
    return changes


_TWICE: Final = "A user credential cannot be altered twice in the same request"
_UNKNOWN: Final = Refused(KafkaError.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _unacceptable(mechanism: int, credential: ScramCredential) -> Refused | None:
    iterations, salt, *keys = credential
    if iterations < MIN_ITERATIONS:
        reason = "Too few iterations"
    elif iterations > MAX_ITERATIONS:
        reason = "Too many iterations"
    elif not 1 <= len(salt) <= MAX_SALT:
        reason = f"A salt has 1 to {MAX_SALT} bytes."
    elif any(len(key) != KEY_BYTES[ScramMechanism(mechanism)] for key in keys):
        reason = "The keys do not have the length of the mechanism's hash."
    else:
        return None
    return Refused(KafkaError.UNACCEPTABLE_CREDENTIAL, reason)
