"""Says which groups are on the way from one protocol to the other, with members that wait for it.

A group is of one protocol as long as it has members. One that joins with the other is told to ask again, and
is in once the last of them has left: so a group whose members are restarted one after the other, each with
another `group.protocol`, changes over without an error. Kafka serves both kinds at once meanwhile
(group.consumer.migration.policy); here those that were restarted have nothing to do until the last was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

log = logging.getLogger(__name__)

SAY_SECONDS: Final = 60.0
"""Between two words to the operator about one group: it may be meant to stay so, and never will change."""
MAX_GROUPS: Final = 1_000
"""Of which it is remembered when they were spoken of."""


class Changeovers:
    """Of one coordinator. Belongs to one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._said: dict[str, float] = {}

    def waits(self, group_id: str, protocol: str) -> None:
        """A member came with this `group.protocol`, and the group has members of the other."""
        now = self._loop.time()
        if now - self._said.get(group_id, float("-inf")) >= SAY_SECONDS:
            other = "classic" if protocol == "consumer" else "consumer"
            log.warning(
                "group %r: a member with group.protocol=%s waits until all with group.protocol=%s have left; "
                "restart them with the same protocol",
                group_id, protocol, other,
            )  # fmt: skip
            self._said.pop(group_id, None)
            self._said[group_id] = now
            if len(self._said) > MAX_GROUPS:
                del self._said[next(iter(self._said))]
