"""Files of local logs that this node does not need: of replicas that left while it was down, or unseen."""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Final

from strandline.node.compaction.context import CompactionContext, configs_of
from strandline.node.compaction.log_folders import remove_empty_folders, remove_log, stored_logs

SWEEP_SECONDS: Final = 10.0
"""Between two looks, for as long as there may be such files."""

log = logging.getLogger(__name__)


class LogSweep:
    """One per node. Everything belongs on the context's loop."""

    def __init__(self, context: CompactionContext) -> None:
        self._context = context
        self._at: float | None = 0.0
        """When to look again; None when there are no such files."""
        self._told: set[str] = set()
        """Errors of the last look: each is logged once for as long as it lasts."""

    def due(self) -> bool:
        """Whether to look now. What is needed is known once the node is registered."""
        context = self._context
        return context.registered and self._at is not None and context.loop.time() >= self._at

    def later(self) -> None:
        """Look again in SWEEP_SECONDS."""
        self._at = self._context.loop.time() + SWEEP_SECONDS

    async def run(self, kept: Set[tuple[bytes, int]]) -> None:
        """Remove the logs of partitions, but of those in `kept`, that this node has no compacted replica of.

        What the node knows of topics may be old when it starts. So a log that is left for a replica which
        has not come yet is looked at again: the topic may be compacted no more before the replica comes.
        """
        self.later()
        context = self._context
        off, disk, data = context.loop.run_in_executor, context.disk, context.config.node.data
        failed: set[str] = set()
        try:
            found = await off(context.log_executor, stored_logs, disk, data)
            without = {place: folder for place, folder in found.items() if place not in kept}
            awaited = {place for place in without if self._needed(*place)}
            for place, folder in without.items():
                if place not in awaited:
                    try:
                        await off(context.log_executor, remove_log, disk, folder)
                    except OSError as error:
                        failed.add(f"the local log in {folder} is not needed any more, and stays: {error}")
            await off(context.log_executor, remove_empty_folders, disk, data)
            if not awaited and not failed:
                self._at = None
        except OSError as error:
            failed.add(f"local logs that are not needed any more stay: {error}")
        for reason in failed - self._told:
            log.warning("%s; remove by hand what lies in the way", reason)
        self._told = failed

    def _needed(self, topic_id: bytes, number: int) -> bool:
        context = self._context
        topic = context.controller.machine.topic_by_id(topic_id)
        if topic is None or configs_of(context, topic_id) is None or number >= len(topic.partitions):
            return False
        return context.config.node.id in topic.partitions[number].replicas
