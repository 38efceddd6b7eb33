"""Passwords that come as they are: compared with the user's SCRAM credential, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from strandline.node.kafka.handlers.scram import is_password, stranger
from strandline.node.kafka.wire.session import VIEWS
from strandline.statemachine.controller.scram_credentials import ScramCredential, ScramMechanism

Credentials = Mapping[tuple[str, int], ScramCredential]
"""By user and mechanism, as the controller's state has them."""


def credential_of_user(credentials: Credentials, user: str) -> tuple[ScramMechanism, ScramCredential | None]:
    """The credential that a user's password is compared with; None if there is no such user.

    The processes of views log in by SCRAM alone, which shows no server their password.
    """
    if user == VIEWS:
        return ScramMechanism.SHA_256, None
    mechanism = next((one for one in ScramMechanism if (user, one) in credentials), ScramMechanism.SHA_256)
    return mechanism, credentials.get((user, mechanism))


async def is_users_password(
    found: tuple[ScramMechanism, ScramCredential | None],
    user: str,
    password: str,
    secret: bytes,
    *,
    loop: asyncio.AbstractEventLoop,
) -> bool:
    """Whether a user has this password, by what `credential_of_user` found when the caller asked it.

    It takes as long for an unknown user, whose credential `secret` gives.
    """
    mechanism, credential = found
    compared = credential or stranger(mechanism, user, secret)
    right = await loop.run_in_executor(None, is_password, mechanism, compared, password)
    return right and credential is not None
