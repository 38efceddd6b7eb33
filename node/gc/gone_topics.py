"""Deletes the stored remains of deleted topics: level-one objects and published checkpoints.

A partition deletes its own objects as long as it exists. When its topic is deleted, its replicas go within
milliseconds, and with them the knowledge of their objects. So the controller's leader lists the names, which
tell their owner. It lists first and then makes sure that its state is the newest: the owner of a listed name
was created before, hence is known to that state or was deleted. Ids of topics and groups never come back, so
a deletion that takes effect late is harmless.

A restore to the newest tail point, which is some seconds old and has no lease, brings back what was deleted
since, and needs all that it names. So what a topic left stays for `collector.grace_seconds` after this node
saw that the topic is gone.

A topic that the cluster never had is left alone: its objects are another cluster's in the same storage, or
those of this one before it lost its log. A restored cluster takes it for one that was made after its point,
and likewise a partition that its topic does not have.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from strandline.node.config.node_config import CollectorSection
from strandline.node.controller.client import ControllerClient
from strandline.node.objectstore.store import MAX_DELETE, ObjectStore, StoreError
from strandline.node.raft.group import RaftGroup
from strandline.node.raft.host import RaftHost
from strandline.node.raft.outcome import Applied
from strandline.snapshot.names import cluster_prefix, group_prefix
from strandline.snapshot.names import parse_name as parse_snapshot_name
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_state import CONTROLLER_GROUP
from strandline.statemachine.partition.level_one import (
    LEVEL_ONE_PREFIX,
    parse_level_one_name,
    partition_prefix,
    topic_prefix,
)

log = logging.getLogger(__name__)

PAGE: Final = 1_000
MAX_PAGES: Final = 256
"""Listings in one round; the next one goes on behind them."""
MAX_SEEN: Final = 10_000
"""Partitions and groups that are gone and left something, of which this process knows since when."""
_BEHIND_SLASH: Final = "0"
"""The character that follows "/": a folder's name with it comes behind all that is in the folder."""


class _Owner(NamedTuple):
    """Owner of a name: a partition of a topic, by its id, or a group."""

    prefix: str
    """Prefix of all names of this topic or group, without the last slash."""
    owner_id: bytes | int
    partition: int = 0

    def is_gone(self, machine: Controller) -> bool:
        return (
            machine.topic_is_gone(self.owner_id, self.partition)
            if isinstance(self.owner_id, bytes)
            else machine.group_is_gone(self.owner_id)
        )

    def stays_up_to(self, machine: Controller) -> str:
        """The prefix, without the last slash, up to which all stays of a topic or group that is there."""
        topic = machine.topic_by_id(self.owner_id) if isinstance(self.owner_id, bytes) else None
        if topic is None or self.partition >= len(topic.partitions):
            return self.prefix
        return partition_prefix(topic.topic_id, len(topic.partitions) - 1).removesuffix("/")


class GoneTopics:
    """At work while this node leads the controller. Everything belongs on `loop`."""

    def __init__(
        self,
        store: ObjectStore,
        host: RaftHost,
        controller: ControllerClient,
        sweep_seconds: float,
        collector: CollectorSection,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.deleted = 0
        """Objects of deleted topics that this process deleted."""
        self.foreign = 0
        """Names met in the last round that are neither a level-one object's nor a checkpoint's."""
        self.last_error: str | None = None
        """As long as the last round failed."""
        self._store = store
        self._host = host
        self._controller = controller
        self._sweep_seconds = sweep_seconds
        self._deletes_per_second = collector.deletes_per_second
        self._grace_seconds = collector.grace_seconds
        self._loop = loop
        self._seen: dict[tuple[bytes | int, int], float] = {}
        """When this process first saw that an owner of names is gone; owners that have no names left by the
        end of a round are forgotten. Beyond MAX_SEEN others wait."""
        self._met: set[tuple[bytes | int, int]] = set()
        """Of those, the ones that had names in this round."""
        self._behind = {LEVEL_ONE_PREFIX: "", cluster_prefix(host.cluster_id): ""}
        """By prefix, where the next round goes on; from the start after it came to the end."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look, every this many seconds."""
        self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        """Stop; a deletion under way may still take effect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            try:
                await self.sweep()
            except StoreError as error:
                # Every round begins where the last one stood, so nothing is lost but time.
                if self.last_error is None:
                    log.warning("objects of deleted topics are kept for now: %s", error)
                self.last_error = str(error)
            except Exception as error:
                self.last_error = f"{type(error).__name__}: {error}"
                message = "removing what deleted topics left failed in a way that was not foreseen"
                self._loop.call_exception_handler({"message": message, "exception": error})
            else:
                self.last_error = None

    async def sweep(self) -> None:
        """One round, if this node leads the controller and nothing is paused; raises StoreError."""
        group = self._host.groups.get(CONTROLLER_GROUP)
        machine = self._controller.machine
        self.foreign = 0
        pages = MAX_PAGES
        for prefix in self._behind:
            while pages and group is not None and group.is_leader and not machine.collection_paused:
                pages -= 1
                if await self._page(prefix, group, machine):
                    break
        if not any(self._behind.values()):
            self._seen = {owner: at for owner, at in self._seen.items() if owner in self._met}
            self._met.clear()

    async def _page(self, prefix: str, group: RaftGroup, machine: Controller) -> bool:
        """List names behind the last page and delete those that may go; returns whether that was the end."""
        names = await self._store.list(prefix, self._behind[prefix], PAGE)
        owners = {name: owner for name in names if (owner := _owner(name)) is not None}
        if any(owner.is_gone(machine) for owner in owners.values()):
            # What is gone in an old state may be there in the newest, where ids were forgotten.
            if not isinstance(await group.barrier(), Applied):
                return True
            going = [name for name, owner in owners.items() if self._may_go(owner, machine)]
            await self._delete(going, machine)
        self.foreign += len(names) - len(owners)
        if len(names) < PAGE:
            self._behind[prefix] = ""
            return True
        # A topic that is there may have very many objects, and none of them is of interest here.
        last = owners.get(names[-1])
        stays = last is not None and not last.is_gone(machine)
        self._behind[prefix] = (
            last.stays_up_to(machine) + _BEHIND_SLASH if last is not None and stays else names[-1]
        )
        return False

    def _may_go(self, owner: _Owner, machine: Controller) -> bool:
        """Whether an owner has been gone for as long as a tail point may need what it left."""
        if not owner.is_gone(machine):
            return False
        now, key = self._loop.time(), (owner.owner_id, owner.partition)
        if key not in self._seen and len(self._seen) >= MAX_SEEN:
            return False
        self._met.add(key)
        return now - self._seen.setdefault(key, now) >= self._grace_seconds

    async def _delete(self, names: list[str], machine: Controller) -> None:
        for first in range(0, len(names), MAX_DELETE):
            if machine.collection_paused:
                return
            batch = names[first : first + MAX_DELETE]
            await self._store.delete_many(batch)
            self.deleted += len(batch)
            await asyncio.sleep(len(batch) / self._deletes_per_second)
        if names:
            log.info("deleted %d objects of deleted topics", len(names))


def _owner(name: str) -> _Owner | None:
    """The owner of a listed name; None if this cluster writes no such name."""
    try:
        if name.startswith(LEVEL_ONE_PREFIX):
            topic_id, partition, _, _ = parse_level_one_name(name)
            return _Owner(topic_prefix(topic_id).removesuffix("/"), topic_id, partition)
        parsed = parse_snapshot_name(name)
    except ValueError:
        return None
    return _Owner(group_prefix(parsed.cluster, parsed.group).removesuffix("/"), parsed.group)
