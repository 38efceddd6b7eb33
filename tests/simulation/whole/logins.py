"""Users that come, change their passwords and go all the time, and logins that try every node.

A user has one password after the other, none twice, and is deleted for good: so a login that is let in says
which password counted, and one that is refused which did not.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from kio.schema.errors import ErrorCode

from strandline.node.kafka.wire.apis import ApiKey
from strandline.statemachine.controller.scram_credentials import MIN_ITERATIONS, ScramMechanism
from tests.kafka.handlers.scram_client import ScramClient, salted_password
from tests.simulation.whole.changing import Changing, State
from tests.simulation.whole.client import Directory
from tests.simulation.whole.cluster import LOGIN_PORT, WholeCluster
from tests.simulation.whole.wire import CONNECT_SECONDS, Connection, Lost

CHANGE_SECONDS: Final = 0.4
"""On average between two changes."""
TRY_SECONDS: Final = (0.05, 0.25)
"""Between two logins at a node."""
PASSWORDS: Final = 3
"""Of a user, until it is deleted."""
PLAIN_SHARE: Final = 0.2
"""Of the logins, those by PLAIN: each takes some milliseconds of the real processor."""
_LOGIN_SECONDS: Final = 3.0
_SALT: Final = b"0123456789abcdef"


@contextmanager
def counted_nonces() -> Iterator[None]:
    """The servers' nonces are drawn from a counter, so that a seed gives the same run again."""
    numbers = itertools.count(1)
    with patch("secrets.token_urlsafe", lambda size: f"{next(numbers):0{size}d}"):
        yield


class Logins(Changing[str | None]):
    """Changes users, one at a time, and logs in at each node, one login after the other. None is no user."""

    def __init__(self, cluster: WholeCluster, directory: Directory, machine: int) -> None:
        super().__init__(cluster, directory, "logins", machine)
        for _ in range(2):
            self._fresh()
        self.spawn(self._change_all())
        for node in cluster.plan.nodes:
            self.spawn(self._try_all(node))

    def _fresh(self) -> None:
        self.states[f"user-{len(self.states)}"] = [State(None, 0.0, 0.0)]

    async def _change_all(self) -> None:
        certain = dict.fromkeys(self.states, True)
        while not self.stopped:
            await asyncio.sleep(self.rng.expovariate(1 / CHANGE_SECONDS))
            user = self.rng.choice(list(certain))
            step = len(self.states[user])
            if step > PASSWORDS + 1 or not certain[user]:
                # A change that was lost may still come, so nothing follows it.
                del certain[user]
                self._fresh()
                certain[next(reversed(self.states))] = True
                continue
            certain[user] &= await self._change(user, f"{user}-{step}" if step <= PASSWORDS else None)

    async def _change(self, user: str, password: str | None) -> bool:
        """Make one change; whether its first request was answered."""
        one: dict[str, Any] = {"name": user, "mechanism": int(ScramMechanism.SHA_256)}
        deletions, upsertions = [one], list[dict[str, Any]]()
        if password is not None:
            salted = salted_password(password, _SALT, MIN_ITERATIONS)
            deletions, upsertions = [], [
                {**one, "iterations": MIN_ITERATIONS, "salt": _SALT, "salted_password": salted}
            ]  # fmt: skip

        async def once(first: bool) -> ErrorCode | None:
            node = self.rng.choice(self.wire.nodes)
            answer = await self.ask(
                node, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=deletions, upsertions=upsertions
            )
            if answer is None:
                return None
            code: ErrorCode = answer.results[0].error_code
            if not first and code is ErrorCode.resource_not_found:
                return ErrorCode.none  # an earlier try has deleted it
            return code

        return await self.make(user, password, once, f"changing {user}")

    async def _try_all(self, node: int) -> None:
        while not self.stopped:
            await asyncio.sleep(self.rng.uniform(*TRY_SECONDS))
            user = self.rng.choice(list(self.states)[-3:])
            known = [state.value for state in self.states[user][-3:] if state.value is not None]
            password = self.rng.choice([*known, known[-1]]) if known else f"{user}-1"
            began = self.world.now
            let_in = await self._login(node, user, password, plain=self.rng.random() < PLAIN_SHARE)
            if let_in is None:
                await self.pause()
                continue
            self.judge(
                node, user, began, let_in,
                lambda counts: (counts == password) == let_in,  # noqa: B023
            )  # fmt: skip

    async def _login(self, node: int, user: str, password: str, *, plain: bool) -> bool | None:
        """Whether a new connection was let in; None where it had no answer."""
        made = Connection(self.sim.loop, self.name, 0)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.sim.loop.create_connection(lambda: made, self.world.nodes[node].host, LOGIN_PORT)
            async with asyncio.timeout(_LOGIN_SECONDS):
                return await self._exchange(node, made, user, password, plain=plain)
        except (OSError, TimeoutError, Lost):
            return None
        finally:
            made.give_up()

    async def _exchange(self, node: int, made: Connection, user: str, password: str, *, plain: bool) -> bool:
        client = ScramClient(user, password, nonce=f"{self.rng.getrandbits(64):016x}")
        mechanism = "PLAIN" if plain else "SCRAM-SHA-256"
        await made.send(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
        message = f"\0{user}\0{password}".encode() if plain else client.first()
        answer = await made.send(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=message)
        if not plain and answer.error_code is ErrorCode.none:
            message = client.final(answer.auth_bytes)
            answer = await made.send(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=message)
        if answer.error_code not in (ErrorCode.none, ErrorCode.sasl_authentication_failed):
            self.ledger.broken(self.check, f"node {node} answers {answer.error_code.name} to a login")
        let_in: bool = answer.error_code is ErrorCode.none
        if let_in and not plain and answer.auth_bytes != client.expected:
            self.ledger.broken(self.check, f"node {node} does not prove that it knows {user}")
        return let_in
