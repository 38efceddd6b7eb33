"""`cluster.first_user`: a user that the cluster makes by itself where it has none, so that logins can begin.

It has no password, but what a SCRAM credential is made of, as PostgreSQL writes it:
`NAME:SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY`, the last three in base64.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Final, NamedTuple

from strandline.node.config.values import some_text
from strandline.statemachine.controller.scram_credentials import (
    MAX_ITERATIONS,
    MAX_NAME,
    MAX_SALT,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
)

_TEXT: Final = re.compile(
    r"(?P<name>[^:$]+):SCRAM-SHA-256\$(?P<iterations>[0-9]{4,5}):(?P<salt>[A-Za-z0-9+/=]+)"
    r"\$(?P<stored>[A-Za-z0-9+/]{43}=):(?P<server>[A-Za-z0-9+/]{43}=)"
)


class FirstUser(NamedTuple):
    """The user's name and its credential for SCRAM-SHA-256."""

    name: str
    credential: ScramCredential

    @property
    def upsertion(self) -> tuple[int, int, bytes, bytes, bytes]:
        """As a command of the controller has it."""
        return (ScramMechanism.SHA_256, *self.credential)

    def __str__(self) -> str:
        credential = self.credential
        salt, stored, server = (
            base64.b64encode(part).decode()
            for part in (credential.salt, credential.stored_key, credential.server_key)
        )
        return f"{self.name}:SCRAM-SHA-256${credential.iterations}:{salt}${stored}:{server}"


def first_user(value: Any) -> FirstUser:
    """Read the setting; ValueError for what the controller would refuse. It is told without the setting."""
    found = _TEXT.fullmatch(some_text(value))
    if found is None:
        raise ValueError("it is not like NAME:SCRAM-SHA-256$4096:SALT$STORED_KEY:SERVER_KEY, all in base64")
    if len(found["name"]) > MAX_NAME:
        raise ValueError(f"its name has {len(found['name'])} characters: give it at most {MAX_NAME}")
    if not MIN_ITERATIONS <= int(found["iterations"]) <= MAX_ITERATIONS:
        raise ValueError(f"its iterations are not {MIN_ITERATIONS} to {MAX_ITERATIONS}: compute it again")
    salt, stored, server = (base64.b64decode(found[part]) for part in ("salt", "stored", "server"))
    if not 1 <= len(salt) <= MAX_SALT:
        raise ValueError(f"its salt has {len(salt)} bytes: give it 1 to {MAX_SALT}")
    return FirstUser(found["name"], ScramCredential(int(found["iterations"]), salt, stored, server))
