"""A member of a group, and in whose name what it read may be committed.

Offsets have to be committed under the generation in which they were read: a batch of one generation that is
committed in the name of the next passes the fence, although the next began at what was committed before.
librdkafka gives the metadata of the generation it is in now, and rebalances in a thread of its own unless
there are callbacks; with them it waits for the next call of the application.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, Message


class Moved(Exception):
    """The group rebalanced while a batch was read: it is to be read again, from the committed offsets."""


class Membership:
    """Subscribes a consumer, and reads batches each of which is of one generation."""

    def __init__(self, consumer: Consumer, topics: Sequence[str]) -> None:
        self._consumer = consumer
        self._topics = [*topics]
        self._moves = 0
        self._held = False
        self._metadata: Any = None
        self.join()

    def join(self) -> None:
        """Join, or join anew."""
        self._held, self._metadata = False, None
        self._consumer.unsubscribe()
        self._consumer.subscribe(
            self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )

    # The consumer is not to be asked for anything in these: it holds the interpreter while it answers.

    def _assigned(self, _consumer: Consumer, _partitions: Any) -> None:
        self._moves += 1
        self._held = True

    def _revoked(self, _consumer: Consumer, _partitions: Any) -> None:
        self._moves += 1
        self._held, self._metadata = False, None

    def batch(self, count: int, seconds: float) -> tuple[list[Message], Any]:
        """Messages, and the group metadata to commit their offsets with. Raises Moved."""
        held, moves = self._held, self._moves
        messages = self._consumer.consume(count, seconds)
        moved = self._moves - moves
        joined = moved == 1 and self._held and not held  # nothing that it read can be of a generation before
        if (moved and not joined and (held or messages)) or (messages and not self._held):
            raise Moved
        if self._held and self._metadata is None:
            self._metadata = self._consumer.consumer_group_metadata()
            if not self._consumer.memberid():  # out again: commits in nobody's name pass every fence
                self._metadata = None
                if messages:
                    raise Moved
        return messages, self._metadata
