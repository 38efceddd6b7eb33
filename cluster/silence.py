"""Explanation of a silent consumer: librdkafka retries without a message, so this module asks the nodes.

The explanation goes to stderr after a short silence, and again from time to time.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from strandline.cluster.failure import CommandFailed, one_line
from strandline.cluster.kafka_errors import note, troubles
from strandline.cluster.output import plural, warn
from strandline.cluster.target import Target

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

_FIRST_SECONDS: Final = 2.0
_UNEXPLAINED_SECONDS: Final = 10.0
"""Silence without a known problem is reported after this long: a slow start or a rebalance is normal."""
_REPEAT_SECONDS: Final = 30.0
_METADATA_SECONDS: Final = 2.0
_UNEXPLAINED: Final = "the brokers answer, and name no reason"


class Silence:
    """Time since the last record; after `timeout` seconds it ends the command, with None never."""

    def __init__(self, where: Target, topic: str, timeout: float | None) -> None:
        self._where = where
        self._topic = topic
        self._timeout = timeout
        self._error: KafkaError | None = None
        self._since = time.monotonic()
        self._look_at = self._since + _FIRST_SECONDS

    def error(self, error: KafkaError) -> None:
        """librdkafka met this, and goes on trying."""
        note(self._where.bootstrap, error)
        self._error = error

    def over(self) -> None:
        """A record came."""
        self._error = None
        self._since = time.monotonic()
        self._look_at = self._since + _FIRST_SECONDS

    def gives_up(
        self, reading: Collection[int], consumer: Consumer, *, follow: bool, joining: bool = False
    ) -> bool:
        """Nothing has come again; whether the time for it is over. `reading`: partitions not read to the end.

        Raises CommandFailed where it is over although there is something to read, or trouble.
        """
        now = time.monotonic()
        lasted = now - self._since
        over = self._timeout is not None and lasted >= self._timeout
        waiting = bool(reading) or joining or self._error is not None
        why = None
        if waiting and (over or now >= self._look_at):
            why = self._cause(reading, consumer, joining=joining)
            waiting = bool(reading) or joining or why is not None
        if over:
            if follow and not waiting:
                return True
            raise CommandFailed(
                f"no record of {self._topic} came for {lasted:.0f} s: {why or _UNEXPLAINED}",
                "see `strandline cluster status`",
            )
        if waiting and now >= self._look_at:
            known = why is not None or lasted >= _UNEXPLAINED_SECONDS
            self._look_at = now + (_REPEAT_SECONDS if known else _FIRST_SECONDS)
            if known:
                told = why or _UNEXPLAINED
                warn(f"no record of {self._topic} came for {lasted:.0f} s: {told}; still waiting")
        return False

    def _cause(self, reading: Collection[int], consumer: Consumer, *, joining: bool) -> str | None:
        """Of all that can be asked, the first that explains it."""
        from confluent_kafka import KafkaException

        try:
            found = consumer.list_topics(self._topic, timeout=_METADATA_SECONDS).topics[self._topic]
        except KafkaException:
            return troubles(self._where) or f"no Kafka broker answers at {self._where.bootstrap}"
        if found.error is not None:
            return one_line(found.error.str())
        without = sorted(number for number, each in found.partitions.items() if each.leader < 0)
        if not without and not reading and not joining:
            self._error = None  # whatever it was: the topic can be read, and nothing is there to read
            return None
        told = troubles(self._where)
        if told is not None:
            return told
        if without:
            numbers = ", ".join(map(str, without[:10]))
            return f"{plural(len(without), 'partition')} without a leader ({numbers})"
        if joining:
            return "the group has given this member no partition: others have them all, or it is rebalancing"
        return None if self._error is None else one_line(self._error.str())
