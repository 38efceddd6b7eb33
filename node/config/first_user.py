"""`cluster.first_user`: a user that the cluster makes by itself where it has none, so that logins can begin.

It has no password, but what a SCRAM credential is made of, as PostgreSQL writes it:
`NAME:SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY`, the last three in base64.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Final, NamedTuple

from strandline.node.config.values import some_text
from strandline.statemachine.controller.scram_credentials import ScramCredential, ScramMechanism

_TEXT: Final = re.compile(
    r"(?P<name>[^:$]{1,256}):SCRAM-SHA-256\$(?P<iterations>\d{4,5}):(?P<salt>[\w+/=]+)\$(?P<stored>[\w+/]{43}=)"
    r":(?P<server>[\w+/]{43}=)"
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
    """Read the setting. What is wrong with it is told without it."""
    found = _TEXT.fullmatch(some_text(value))
    if found is None:
        raise ValueError("it is not like NAME:SCRAM-SHA-256$4096:SALT$STORED_KEY:SERVER_KEY, all in base64")
    parts = (base64.b64decode(found[part]) for part in ("salt", "stored", "server"))
    return FirstUser(found["name"], ScramCredential(int(found["iterations"]), *parts))
