"""Stand-ins for what surrounds the parts of garbage collection, as small as those parts let them be."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import msgpack

from strandline.node.controller.cluster_clock import ClusterClock
from strandline.node.gc.collectable_epochs import TELL, CollectableEpochs
from strandline.node.objectstore.store import (
    Buffer,
    ObjectNotFound,
    ObjectStore,
    StoreError,
    check_delete,
    check_list,
)
from strandline.node.rpc import CallFailed
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.object_names import object_id, object_name

T = TypeVar("T")
Names = list[str]


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to its end a coroutine that only ever gives way to others."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as ended:
            result: T = ended.value
            return result


def name(epoch: int, unique: int = 0, *, shard: int = 1, node: int = 1) -> str:
    return object_name(epoch, object_id(shard, node, unique.to_bytes(16, "big")))


class Sent(NamedTuple):
    sender: int
    receiver: int
    payload: Any


class Post:
    """What nodes tell each other: kept, to be delivered whenever and as often as a test likes."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.nodes: dict[int, GcNode] = {}

    def deliver(self, sent: Sent) -> None:
        receiver = self.nodes.get(sent.receiver)
        if receiver is not None:
            drive(receiver.handlers[TELL](sent.sender, sent.payload))

    def deliver_all(self) -> None:
        sent, self.sent = self.sent, []
        for one in sent:
            self.deliver(one)


class Group:
    def __init__(self, group: int) -> None:
        self.id = group
        self.failure: Exception | None = None


class Replica:
    """As much of a partition as telling epochs needs."""

    def __init__(self, group: int, value: int) -> None:
        self.group = Group(group)
        self.leads = False
        self.leader_epoch = 0
        self.held_by_reads = False
        self.collectable_epoch = value

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__[name] = value
        self.__dict__["changes"] = self.__dict__.get("changes", 0) + 1

    def end_reads(self, value: int) -> None:
        """Reads that held M(p) back end: nothing of that is a change of the partition."""
        self.__dict__["held_by_reads"], self.__dict__["collectable_epoch"] = False, value


class GcNode:
    """One node's CollectableEpochs; it is its own mesh, host, controller client and partition table."""

    def __init__(
        self, post: Post, node: int, machine: Controller, loop: asyncio.AbstractEventLoop, wall_ms: int = 0
    ) -> None:
        self.node_id = node
        self.machine = machine
        self.replicas: dict[int, Replica] = {}
        self.handlers: dict[str, Callable[[int, Any], Coroutine[Any, Any, Any]]] = {}
        self.full = False
        self.known_leaders: dict[int, Any] = {}
        self._post = post
        post.nodes[node] = self
        clock = ClusterClock(node, lambda: (1, 2, 3), lambda: wall_ms + int(1000 * loop.time()), loop=loop)
        me = cast(Any, self)
        self.epochs = CollectableEpochs(me, me, me, me, me, clock, loop=loop)

    # What CollectableEpochs asks of its surroundings.

    def serve(self, method: str, handler: Any) -> None:
        self.handlers[method] = handler

    def watch_peers(self, on_connect: Callable[[int], None], on_disconnect: Callable[[int], None]) -> None:
        self.on_connect, self.on_disconnect = on_connect, on_disconnect

    def tell(self, peer: int, method: str, payload: Any) -> bool:
        assert method == TELL
        if self.full:
            return False
        self._post.sent.append(Sent(self.node_id, peer, msgpack.unpackb(msgpack.packb(payload))))
        return True

    async def call(self, peer: int, method: str, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        other = self._post.nodes.get(peer)
        if other is None:
            raise CallFailed("it is gone", unknown=True)
        return await other.handlers[method](self.node_id, payload)

    def __iter__(self) -> Any:
        return iter(self.replicas.values())

    def by_group(self, group: int) -> Any:
        return self.replicas.get(group)

    def leader_of(self, group: int) -> Any:
        return self.known_leaders.get(group)

    # What a test has it do.

    def look(self) -> None:
        """What it does once a second."""
        drive(self.epochs._look())
        self.epochs._tell_raised()

    def tell_all(self) -> None:
        """What it does twice a minute."""
        self.epochs._owed.update(self.epochs._peers)
        drive(self.epochs._tell_all())

    def values(self) -> dict[int, int]:
        return {group: heard.value for group, heard in self.epochs._table.items()}


class ListedStore(ObjectStore):
    """Names in memory. `lag` hides that many of the newest puts and deletions from listings; `fail` makes the
    next requests end with these errors, a deletion by `OutcomeUnknown` after it took effect."""

    def __init__(self) -> None:
        self.max_object_bytes = 1 << 30
        self.names: list[str] = []
        self.lists: list[tuple[str, str]] = []
        self.deletions: list[Names] = []
        self.fail: dict[str, list[StoreError]] = {}
        self.stale: list[str] | None = None
        """What listings show instead of the present names."""
        self.on_delete: Callable[[Sequence[str]], Awaitable[None]] | None = None

    def add(self, names: Sequence[str]) -> None:
        self.names = sorted({*self.names, *names})

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        check_list(prefix, after, limit)
        self.lists.append((prefix, after))
        await asyncio.sleep(0)
        self._maybe_fail("list")
        names = self.names if self.stale is None else self.stale
        behind = names[bisect_right(names, max(after, prefix)) :]
        page: Names = []
        for found in behind:
            if not found.startswith(prefix) or len(page) == limit:
                break
            page.append(found)
        return page

    async def delete_many(self, keys: Sequence[str]) -> None:
        check_delete(keys)
        await asyncio.sleep(0)
        if self.on_delete is not None:
            await self.on_delete(keys)
        self.deletions.append([*keys])
        gone = dict.fromkeys(keys)
        self.names = [kept for kept in self.names if kept not in gone]
        self._maybe_fail("delete")

    def _maybe_fail(self, operation: str) -> None:
        errors = self.fail.get(operation)
        if errors:
            raise errors.pop(0)

    @property
    def deleted(self) -> Names:
        return [key for batch in self.deletions for key in batch]

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self.add([key])

    async def get(self, key: str) -> Buffer:
        raise ObjectNotFound("get", key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        raise ObjectNotFound("get_range", key)

    async def size(self, key: str) -> int:
        raise ObjectNotFound("size", key)

    async def close(self) -> None:
        """Nothing to let go of."""
