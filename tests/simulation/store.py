"""A simulated object store: one bucket for all nodes of a world, and every way a request to it may end.

A request arrives after a delay, has its effect or not, and is answered or not; which, the seed decides, by
the shares a scenario sets. The hard cases are among them: an effect whose answer is lost, an effect that
comes after the error, a request nobody ever answers. Effects happen even when the node that asked has died.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import UserDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

from strandline.node.objectstore.store import (
    Buffer,
    NotDone,
    ObjectNotFound,
    ObjectStore,
    OutcomeUnknown,
    RangeNotFound,
    StoreError,
    check_delete,
    check_key,
    check_list,
    check_put,
    check_range,
)
from tests.simulation.loop import Call, SimLoop

if TYPE_CHECKING:
    from tests.simulation.node import SimNode
    from tests.simulation.world import World

CHANGES = ("put", "delete")
READS = ("get", "get_range")
REMEMBERED_SECONDS = 10.0
"""A listing shows at most so old a state of the bucket."""

Moment = Literal["ended", "answered"]
"""When a request has had its effect, or what became of it is told to the node."""


class Objects(UserDict[str, bytes]):
    """Objects by name, and their names in order, whoever changes them: the store, or a test by hand."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.names: list[str] = []
        super().__init__(objects)

    def __setitem__(self, name: str, data: bytes) -> None:
        if name not in self.data:
            insort(self.names, name)
        self.data[name] = data

    def __delitem__(self, name: str) -> None:
        del self.data[name]
        del self.names[bisect_left(self.names, name)]


class SimStore:
    """The bucket. `client(node)` is a node's way to it, to be made anew for each boot.

    Knobs: `delay_seconds` (shortest and longest way in one direction), `slow` (factor on it), and the shares
    of requests that end badly: `refused` (definite, no effect), `broken` (unknown, no effect), `lost`
    (unknown, with effect), `late` (unknown, the effect comes up to `late_seconds` after; `late_puts` is the
    same for puts alone), `silent` (no answer ever; half of them with effect). A listing shows the bucket as
    it was up to `list_lag_seconds` ago; a read arrives up to `slow_reads_seconds` later. As with S3, a share
    `tail` of all requests arrives up to `tail_seconds` later, and what is above `most_per_second` is refused
    (503 SlowDown). `stall()` holds all requests back, `cut(node)` those of one node; `land_within()` hurries
    what is late; `flip_bit()` rots an object.

    Figures: `objects`, `requests` by operation, `ended` by fate, `stored` names in order, `deleted` names
    with the time. `on_delete(name)` hears of each deletion before it happens; `on_step(node, operation, key,
    moment)` of each change a node asks for. Overwriting an object with other bytes, also one that was deleted
    in between, is a failure of the run.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("object store")
        self._stalled = False
        self._held: list[Callable[[], None]] = []
        self._cut: dict[int, None] = {}
        self.delay_seconds = (0.001, 0.02)
        self.slow = 1.0
        self.refused = self.broken = self.lost = self.late = self.late_puts = self.silent = 0.0
        self.late_seconds = 30.0
        self.list_lag_seconds = self.slow_reads_seconds = 0.0
        self.tail = 0.0
        self.tail_seconds = 2.0
        self.most_per_second = float("inf")
        self._tails = world.rng("tail of the store")
        self._allowed = 1.0
        self._allowed_at = 0.0
        self.on_delete: Callable[[str], None] = lambda name: None
        self.on_step: Callable[[SimNode, str, str, Moment], None] = lambda *_: None
        self.max_object_bytes = 256 * 1024 * 1024
        self._objects = Objects({})
        self.requests: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.stored: list[str] = []
        self.deleted: dict[str, float] = {}
        self._marks: dict[str, int] = {}
        """Checksums of everything that was ever put."""
        self._changed: deque[tuple[float, str, bool]] = deque()
        """When which name came (True) or went."""
        self._lags = world.rng("lists that lag")
        self._late: dict[int, tuple[Call, Callable[[], Any]]] = {}
        self._latecomers = 0

    @property
    def objects(self) -> Objects:
        return self._objects

    @objects.setter
    def objects(self, objects: Mapping[str, bytes]) -> None:
        self._objects = Objects(objects)

    def client(self, node: SimNode) -> SimStoreClient:
        return SimStoreClient(self, node)

    def stall(self) -> None:
        """No request has an effect or an answer until `unstall()`."""
        self._stalled = True

    def unstall(self) -> None:
        self._stalled = False
        held, self._held = self._held, []
        for arrive in held:
            self._world.call_later(self._way(), arrive)

    def cut(self, node_id: int) -> None:
        """Requests of one node neither arrive nor get an answer."""
        self._cut[node_id] = None

    def heal(self, node_id: int) -> None:
        self._cut.pop(node_id, None)

    def land_within(self, seconds: float) -> None:
        """Let everything that is still to come late come within so many seconds."""
        self.late_seconds = seconds
        late, self._late = self._late, {}
        for call, effect in late.values():
            call.cancel()
            self._world.call_later(seconds * self._lags.random(), self._silently, effect)

    def lets_change(self, key: str) -> None:
        """The object may be put once more with other bytes."""
        self._marks.pop(key, None)

    def flip_bit(self, key: str, offset: int) -> None:
        data = bytearray(self.objects[key])
        data[offset] ^= 1 << self._rng.randrange(8)
        self.objects[key] = bytes(data)

    def keys(self, prefix: str = "") -> list[str]:
        names = self._objects.names
        return names[bisect_left(names, prefix) : bisect_left(names, _behind(prefix))]

    # What a client's requests do.

    def request(
        self, node: SimNode, operation: str, key: str, effect: Callable[[], Any], answer: asyncio.Future[Any]
    ) -> None:
        """Send a request; `effect` happens at the store, its result or error goes into `answer`."""
        self.requests[operation] = self.requests.get(operation, 0) + 1
        fate = self._fate(operation)
        loop = node.loop
        # Drawn here, in the order of the requests, whatever happens to them on the way.
        back, late, half = self._way(), self._rng.random() * self.late_seconds, self._rng.random() < 0.5

        def arrive() -> None:
            if self._stalled:
                self._held.append(arrive)
                return
            if node.id in self._cut:
                return
            end = fate if self._takes_more() else "throttled"
            self.ended[end] = self.ended.get(end, 0) + 1
            self._world.note(f"store {operation} {end}", node.id, 0, crc32(key.encode()))
            self._end(end, operation, key, effect, late, half, reply)
            if operation in CHANGES:
                self.on_step(node, operation, key, "ended")

        def reply(result: Any, error: StoreError | None) -> None:
            if node.id not in self._cut:
                call = Call(self._world.context, answered, (result, error))
                self._world.push(self._world.now + back, loop, call)

        def answered(result: Any, error: StoreError | None) -> None:
            settle(answer, result, error)
            if operation in CHANGES:
                self.on_step(node, operation, key, "answered")

        longer = self.slow_reads_seconds * self._lags.random() if operation in READS else 0.0
        if self.tail and self._tails.random() < self.tail:
            longer += self.tail_seconds * self._tails.random()
        self._world.call_later(self._way() + longer, arrive)

    def _end(
        self,
        fate: str,
        operation: str,
        key: str,
        effect: Callable[[], Any],
        late: float,
        half: bool,
        reply: Callable[[Any, StoreError | None], None],
    ) -> None:
        if fate == "done":
            try:
                reply(effect(), None)
            except StoreError as error:
                reply(None, error)
            return
        if fate == "lost" or (fate == "silent" and half):
            self._silently(effect)
        if fate == "late" and operation in CHANGES:
            self._latecomers += 1
            number = self._latecomers
            self._late[number] = (
                self._world.call_later(min(late, self.late_seconds), self._come_late, number),
                effect,
            )
        if fate == "refused" or operation not in CHANGES:
            reply(None, NotDone(operation, key, f"simulated: {fate}", retriable=True))
        elif fate != "silent":
            reply(None, OutcomeUnknown(operation, key, f"simulated: {fate}"))

    def _takes_more(self) -> bool:
        """Whether a request is within the rate: a tenth of a second of it may come at once."""
        rate, now = self.most_per_second, self._world.now
        if rate == float("inf"):
            return True
        self._allowed = min(self._allowed + (now - self._allowed_at) * rate, max(rate / 10, 1.0))
        self._allowed_at = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    def _come_late(self, number: int) -> None:
        _, effect = self._late.pop(number)
        self._silently(effect)

    def _silently(self, effect: Callable[[], Any]) -> None:
        try:
            effect()
        except StoreError:
            return

    def _fate(self, operation: str) -> str:
        roll = self._rng.random()
        if operation == "put":
            roll -= self.late_puts
            if roll < 0:
                return "late"
        for fate in ("refused", "broken", "lost", "late", "silent"):
            roll -= getattr(self, fate)
            if roll < 0:
                return fate
        return "done"

    def _way(self) -> float:
        shortest, longest = self.delay_seconds
        return (shortest + (longest - shortest) * self._rng.random()) * self.slow

    def _note_change(self, key: str, came: bool) -> None:
        now, changed = self._world.now, self._changed
        changed.append((now, key, came))
        while changed[0][0] < now - REMEMBERED_SECONDS:
            changed.popleft()

    def _as_it_was(self, prefix: str) -> list[str]:
        """The names of some moment within the last `list_lag_seconds`."""
        moment = self._world.now - self.list_lag_seconds * self._lags.random()
        keys = dict.fromkeys(self.keys(prefix))
        for when, key, came in reversed(self._changed):
            if when < moment:
                break
            if not key.startswith(prefix):
                continue
            if came:
                keys.pop(key, None)
            else:
                keys[key] = None
        return sorted(keys)

    def put(self, key: str, data: bytes) -> None:
        mark = crc32(data)
        if self._marks.setdefault(key, mark) != mark:
            self._world.fail(None, f"object {key} was overwritten with other bytes")
        if key not in self.objects:
            self._note_change(key, True)
        self.objects[key] = data
        self.stored.append(key)

    def get(self, operation: str, key: str) -> bytes:
        data = self.objects.get(key)
        if data is None:
            raise ObjectNotFound(operation, key)
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self.get("get_range", key)[start : start + length]
        if len(data) < length:
            raise RangeNotFound(key, start, length)
        return data

    def list(self, prefix: str, after: str, limit: int) -> list[str]:
        keys = self._as_it_was(prefix) if self.list_lag_seconds else self.keys(prefix)
        first = bisect_right(keys, after)
        return keys[first : first + limit]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.on_delete(key)
            if self.objects.pop(key, None) is not None:
                self._note_change(key, False)
                self.deleted[key] = self._world.now


def _behind(prefix: str) -> str:
    """Above every name with the prefix, and below all others that are above it."""
    return prefix + "\x7f"


class SimStoreClient(ObjectStore):
    """The store as one boot of one node sees it. It never retries: that is RetryingStore's work."""

    def __init__(self, store: SimStore, node: SimNode) -> None:
        self.max_object_bytes = store.max_object_bytes
        self._store = store
        self._node = node
        self._loop: SimLoop = node.loop

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        check_put(key, parts, self.max_object_bytes)
        data = b"".join(parts)
        await self._request("put", key, lambda: self._store.put(key, data))

    async def get(self, key: str) -> Buffer:
        check_key(key)
        data: bytes = await self._request("get", key, lambda: self._store.get("get", key))
        return data

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        check_range(key, start, length)
        data: bytes = await self._request("get_range", key, lambda: self._store.get_range(key, start, length))
        return data

    async def size(self, key: str) -> int:
        check_key(key)
        size: int = await self._request("size", key, lambda: len(self._store.get("size", key)))
        return size

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        check_list(prefix, after, limit)
        keys: list[str] = await self._request("list", prefix, lambda: self._store.list(prefix, after, limit))
        return keys

    async def delete_many(self, keys: Sequence[str]) -> None:
        check_delete(keys)
        if keys:
            chosen = [*keys]
            await self._request("delete", chosen[0], lambda: self._store.delete(chosen))

    async def close(self) -> None:
        """Nothing to let go of."""

    async def _request(self, operation: str, key: str, effect: Callable[[], Any]) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._store.request(self._node, operation, key, effect, answer)
        return await answer


def settle(answer: asyncio.Future[Any], result: Any, error: StoreError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
