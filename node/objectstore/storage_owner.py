"""Ensures that a bucket or folder belongs to one cluster, and to one incarnation of it.

The names of level-zero objects do not tell their cluster, and a collector deletes by names alone: of two
clusters on the same storage, the one with the higher epoch would take the other's objects for its own
garbage. So would a cluster whose nodes lost their data folders and that starts over under the same id. So the
storage names its owner, a cluster and the incarnation that its log holds too. Until this node has seen that
they are the same, it reads, writes and deletes nothing there. And it looks again before each deletion, for a
mount, a name or the document may have been exchanged since.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from strandline.node.objectstore.object_file import Checked, ObjectFile
from strandline.node.objectstore.store import Buffer, NotDone, ObjectNotFound, ObjectStore, Wanted
from strandline.snapshot.names import PREFIX as SNAPSHOT_PREFIX
from strandline.statemachine.object_names import PREFIX as LEVEL_ZERO_PREFIX
from strandline.statemachine.partition.level_one import LEVEL_ONE_PREFIX

KEY: Final = "cluster"
FORMAT: Final = 2
_PREFIXES: Final = (LEVEL_ZERO_PREFIX, LEVEL_ONE_PREFIX, SNAPSHOT_PREFIX)
"""Below these lies all that a cluster cannot do without; no object is put there before the storage names its
owner. Tails are not looked for: without what they refer to there is nothing to lose."""


class ForeignStorage(Exception):
    """The storage is another cluster's or incarnation's, or does not say; one line with the cure."""


class OwnerUnreadable(ForeignStorage):
    """The storage's object that names its owner has a content that this program never writes."""


class Owner(NamedTuple):
    """The owner that the storage names."""

    cluster: str
    incarnation: str
    """Named by the first leader; see `draw_incarnation`."""

    def __str__(self) -> str:
        return f"cluster {self.cluster!r}, incarnation {self.incarnation}"

    def document(self) -> str:
        """Content of the object that names this owner."""
        return json.dumps({"format": FORMAT, **self._asdict()})


def draw_incarnation(now_ms: int, rng: random.Random) -> str:
    """A name for a life of the cluster: the time it began, in UTC by the clock of a node, and chance."""
    at = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ}-{rng.getrandbits(32):08x}"


async def read_owner(store: ObjectStore) -> Owner | None:
    """The storage's owner, None if it has none yet.

    Raises OwnerUnreadable if the owner's document is damaged, ForeignStorage if another release wrote it,
    StoreError if the store does not answer.
    """
    try:
        data = bytes(await store.get(KEY))
    except ObjectNotFound:
        return None
    try:
        said = json.loads(data)
        version = said["format"]
        if version == FORMAT:
            return Owner(str(said["cluster"]), str(said["incarnation"]))
    except (ValueError, KeyError, TypeError):
        raise OwnerUnreadable(
            f"storage.url: the object {KEY!r} there is damaged, or not one of Strandline's: name a folder or"
            " prefix that nothing else writes to"
        ) from None
    raise ForeignStorage(
        f"storage.url: the object {KEY!r} there has format {version}, this release reads {FORMAT}: start the"
        " release that wrote it, or name another folder or prefix"
    )


async def find_owner(store: ObjectStore) -> Owner | None:
    """The storage's owner, None if the storage is unused.

    Raises what `read_owner` does, and ForeignStorage when objects of a cluster are there and no owner is
    named: a new cluster would take them for its own garbage.
    """
    found = await read_owner(store)
    if found is not None:
        return found
    for prefix in _PREFIXES:
        names = await store.list(prefix, "", 1)
        if names:
            # Another founder may have named the owner, and its cluster have begun to write, since the look.
            found = await read_owner(store)
            if found is None:
                raise ForeignStorage(
                    f"storage.url: objects of a cluster are there, such as {names[0]!r}, and nothing there"
                    f" says of which: the object {KEY!r} was deleted. Bring it back, or name an empty folder"
                    " or prefix; nothing there was read, changed or deleted"
                )
            return found
    return None


def check_cluster(owner: Owner, cluster: str) -> None:
    """Raise ForeignStorage when the storage belongs to a cluster of another id."""
    if owner.cluster != cluster:
        raise ForeignStorage(
            f"storage.url: what is stored there belongs to {owner}, this node to cluster {cluster!r}: "
            "give each cluster a folder or prefix of its own"
        )


async def claim(
    store: ObjectStore, owner: Owner, is_new: Callable[[], bool], leads: Callable[[], bool]
) -> None:
    """Let the storage say that it is this owner's, if it says nothing yet, the cluster `is_new` and this node
    `leads` its controller.

    All other nodes have to find that word in theirs, so that no node of a cluster has another place than the
    others. As long as the cluster is new they look again. A cluster that has lived has storage that says
    whose it is: what says nothing is another folder or prefix, or a folder that is not mounted, and what is
    acknowledged must not be put there.

    Raises ForeignStorage when it is another's, or StoreError while nothing is known. Every leader of an
    incarnation writes the same bytes, so a write that comes late changes nothing. Two clusters that come at
    the very same moment may both find nothing: the one whose word was replaced finds out when it looks again.
    """
    found = await find_owner(store)
    if found is None:
        new = is_new()
        if new and leads():
            await store.put(KEY, [owner.document().encode()])
        # Else the leader may have put it since the look.
        found = await read_owner(store)
        if found is None and not new:
            raise ForeignStorage(
                f"storage.url: nothing there says that it belongs to cluster {owner.cluster!r}, whose other"
                " nodes have storage that does: mount it on this machine, or name the folder or prefix that"
                " they have, and start this node again"
            )
    if found is not None:
        check_owner(found, owner.cluster, owner.incarnation)


def check_owner(found: Owner, cluster: str, incarnation: str) -> None:
    """Raise ForeignStorage when the storage does not belong to this incarnation of this cluster."""
    check_cluster(found, cluster)
    if found.incarnation != incarnation:
        raise ForeignStorage(
            f"storage.url: what is stored there belongs to {found}, and this node's log is of incarnation "
            f"{incarnation}: start the nodes with the data folders of that incarnation, or give this cluster "
            "another folder or prefix; nothing there was read, changed or deleted"
        )


class OwnedStore(ObjectStore):
    """A store on which nothing happens until `open_for` was called: its owner has been seen."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.max_object_bytes = store.max_object_bytes
        self.max_puts = store.max_puts
        self.owner: Owner | None = None
        """The owner that was seen, None while nothing may be done."""
        self.trouble: str | None = None
        """The reason why the owner cannot be read, in one line, as far as is known."""

    def open_for(self, owner: Owner) -> None:
        """The storage said that it belongs to this owner, and so does this node."""
        self.owner = owner

    def _check(self, operation: str, key: str) -> None:
        if self.owner is None:
            cause = f": {self.trouble}" if self.trouble is not None else ""
            reason = f"this node has not seen yet that the storage belongs to its cluster{cause}"
            raise NotDone(operation, key, reason, retriable=True)

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self._check("put", key)
        await self._store.put(key, parts)

    async def get(self, key: str) -> Buffer:
        self._check("get", key)
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        self._check("get_range", key)
        return await self._store.get_range(key, start, length)

    async def fill(self, wanted: Sequence[Wanted]) -> list[bool]:
        return await self._store.fill(wanted)

    @property
    def has_files(self) -> bool:
        return self._store.has_files

    async def open_file(self, key: str) -> ObjectFile | None:
        self._check("open", key)
        return await self._store.open_file(key)

    async def checked(self, file: ObjectFile, ranges: Sequence[tuple[int, int]]) -> list[Checked]:
        self._check("get_range", file.key)
        return await self._store.checked(file, ranges)

    async def size(self, key: str) -> int:
        self._check("size", key)
        return await self._store.size(key)

    async def list(self, prefix: str, after: str, limit: int) -> list[str]:
        self._check("list", prefix)
        return await self._store.list(prefix, after, limit)

    async def delete_many(self, keys: Sequence[str]) -> None:
        """As ObjectStore, once the storage has said again whose it is: names do not tell their cluster."""
        self._check("delete", keys[0] if keys else "")
        if keys:
            await self._look_again(keys[0])
        await self._store.delete_many(keys)

    async def _look_again(self, key: str) -> None:
        try:
            found = await read_owner(self._store)
        except ForeignStorage as error:
            raise NotDone("delete", key, str(error), retriable=False) from error
        if found != self.owner:
            said = "names no owner" if found is None else f"belongs to {found}"
            reason = f"the storage {said} now, and belonged to {self.owner} before"
            raise NotDone("delete", key, reason, retriable=False, cure="correct storage.url")

    async def close(self) -> None:
        await self._store.close()
