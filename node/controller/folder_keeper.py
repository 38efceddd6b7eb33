"""Keeps this node's data folder and its storage in step with the controller's log.

A node with a new folder cannot know by itself whether its id ever had another one. The storage tells whether
the cluster has lived before: if it has no owner, this node is one of those that found the cluster; if it has
one, the node is a newcomer, without a vote, until the controller's log names its folder
(docs/raft.md, "Folders"). And nothing is read, written or deleted in storage that belongs to another
incarnation than the one in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from strandline.node.controller.client import ControllerClient
from strandline.node.controller.disowned import disowned
from strandline.node.controller.joining import Joining
from strandline.node.controller.members import Members
from strandline.node.objectstore.storage_owner import (
    KEY,
    ForeignStorage,
    OwnedStore,
    Owner,
    OwnerUnreadable,
    check_cluster,
    check_owner,
    claim,
    find_owner,
    read_owner,
)
from strandline.node.objectstore.store import ObjectStore, StoreError
from strandline.node.raft.data_folder import NO_FOLDER
from strandline.node.raft.folder_file import FolderKey
from strandline.node.raft.host import RaftHost
from strandline.statemachine.controller.controller_state import REMOVED

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
"""Pause between two looks at a storage whose owner is not known yet."""
AGAIN_SECONDS: Final = 60.0
"""And between two looks at one that was seen to be this cluster's."""
START_SECONDS: Final = 5.0
"""Time limit of a start for reading the storage's owner."""
ANSWER_SECONDS: Final = 30.0
"""And how long each look after that: an answer may have been lost."""


class FolderKeeper:
    """Everything belongs on `loop`; `on_fatal` hears of storage, or a folder, that is not this cluster's."""

    def __init__(
        self,
        host: RaftHost,
        controller: ControllerClient,
        members: Members,
        joining: Joining,
        store: ObjectStore,
        owned: OwnedStore,
        *,
        loop: asyncio.AbstractEventLoop,
        on_owned: Callable[[], None],
        on_fatal: Callable[[Exception], None],
    ) -> None:
        """`on_owned()` is called once, when `owned` may be used."""
        self.stored: Owner | None = None
        """The storage's owner, as last read."""
        self._host = host
        self._controller = controller
        self._members = members
        self._joining = joining
        self._store = store
        self._owned = owned
        self._loop = loop
        self._on_owned = on_owned
        self._on_fatal = on_fatal
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._writing = False
        """The controller's list of folders is on its way to the disk."""
        self._changed = False
        """It has changed since that began."""
        self._unwritten: str | None = None
        """The disk's error when it did not take it, in one line; logged once."""
        self._vote_refused: str | None = None
        """The disk's error when it was to take this founder's vote, in one line."""
        self._woken = asyncio.Event()

    async def begin(self) -> None:
        """Find out before the node speaks to others whether it has a vote. Raises ForeignStorage, OSError."""
        folder = self._host.folder
        folder.newcomer = not folder.votes
        try:
            async with asyncio.timeout(START_SECONDS):
                founds = await self._look()
        except (StoreError, TimeoutError) as error:
            self._owned.trouble = str(error) or f"the store did not answer within {START_SECONDS:g} s"
            told = self._owned.trouble
            log.warning("cannot verify which cluster owns the storage; starting anyway: %s", told)
        else:
            if founds:
                await self._found()
        if folder.newcomer:
            log.warning("%s", self.waits_for())

    def start(self) -> None:
        """Follow the controller, and look at the storage now and then."""
        self._controller.on_change(self._follow)
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)
        self._follow()

    def close(self) -> None:
        """Stop; everything stays as it is."""
        if self._task is not None:
            self._task.cancel()
        if self._retry is not None:
            self._retry.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Without these looks the node would go on in storage that may be another's by now."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_fatal(RuntimeError(f"looking at the storage's owner failed: {error!r}"))

    @property
    def may_register(self) -> bool:
        """Whether this process, or an earlier one on this folder, saw that the storage is this cluster's."""
        return self._owned.owner is not None or self._host.folder.generation > 0

    def waits_for(self) -> str | None:
        """The reason why this node has no vote yet, and the cure, in one line; None if it has one."""
        if not self._host.folder.newcomer:
            return None
        refused = self._vote_refused or self._unwritten
        if self._vote_refused is not None or self._host.folder.awaits_vote:
            return (
                "this node's data folder is new, and its disk does not take the node's vote:"
                f" {refused or 'the write is under way'}: free space, or mend the disk; the node then"
                " continues by itself"
            )
        if self.stored is None:
            cause = f" ({self._owned.trouble})" if self._owned.trouble is not None else ""
            return (
                "this node's data folder is new, and the storage does not answer whether the cluster has"
                f" lived before: the node waits for the storage{cause}"
            )
        if self._joining.joins:
            return self._joining.waits_for()
        return (
            f"this node's data folder is new, and the storage already belongs to {self.stored}: it waits for"
            " the nodes that have that cluster's log. If this node had another folder, bring it back, or let"
            f" this one in with `strandline node replace {self._host.node_id}`. If all nodes lost theirs,"
            " stop them: `strandline cluster restore` makes a cluster of what is stored. To begin again"
            " without it, name another folder or prefix as storage.url; nothing there is changed or deleted"
        )

    def unseen(self) -> str:
        """The reason why this node may not register yet: its knowledge of the storage, in one line."""
        return self._owned.trouble or "it does not say yet that it belongs to this cluster"

    def why_waiting(self) -> str:
        """The reason why the controller does not answer this node, as far as it can know."""
        return (
            self.disowned()
            or self.waits_for()
            or (
                "it has no leader that this node hears: a majority of the nodes that vote in its group must"
                " run, with their own data folders"
            )
        )

    def disowned(self) -> str | None:
        """That others know this node by another data folder, in one line; None if none said so lately:
        no peer, and no member that was asked to let it in."""
        return disowned(self._host) or self._joining.refused

    # The storage.

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    founds = await self._look()
                self._owned.trouble = None
                if founds:
                    await self._found_when_possible()
                else:
                    self._vote_refused = None
            except ForeignStorage as error:
                self._owned.trouble = str(error)
                self._on_fatal(error)
                return
            except (StoreError, OSError) as error:
                self._owned.trouble = str(error) or f"the store did not answer within {ANSWER_SECONDS:g} s"
                log.debug("the storage's owner cannot be read: %s", error)
            if self._owned.owner is None:
                self._woken.clear()
                pause = LOOK_SECONDS
            else:
                pause = AGAIN_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()

    async def _look(self) -> bool:
        """Read the storage's owner; whether there is none, and this node is to found the cluster."""
        folder, cluster = self._host.folder, self._host.cluster_id
        incarnation = folder.incarnation or self._controller.machine.incarnation
        founds = folder.newcomer and not incarnation and not self._joining.joins
        try:
            found = self.stored = await (find_owner if founds else read_owner)(self._store)
        except OwnerUnreadable as error:
            if folder.generation and incarnation:
                raise ForeignStorage(f"{error}; {_damaged(Owner(cluster, incarnation))}") from error
            raise
        if found is not None:
            check_cluster(found, cluster)
        if found is None and self._joining.joins and not folder.generation:
            raise ForeignStorage(
                f"storage.url: nothing there says that it belongs to cluster {cluster!r}, which this node"
                " is to join: name the folder or prefix that the other nodes have"
            )
        if not incarnation:
            return found is None and founds
        if found is None:
            if folder.generation:
                # Where the bucket itself is missing this raises: it may come back, and has no other owner.
                await self._store.list("", "", 1)
                raise ForeignStorage(
                    f"storage.url: nothing there says that it belongs to cluster {cluster!r}, and this node"
                    " has served from storage that did: name the folder or prefix that the cluster was made"
                    f" with; {_damaged(Owner(cluster, incarnation))}"
                )
            await claim(self._store, Owner(cluster, incarnation), self._is_new, self._leads)
            found = self.stored = await read_owner(self._store)
        if found is not None:
            check_owner(found, cluster, incarnation)
            if self._owned.owner is None:
                self._owned.open_for(found)
                self._on_owned()
        return False

    def _is_new(self) -> bool:
        """Whether the cluster may be one that is being founded, by this node too, as far as it knows: no node
        has registered, as each does once its storage has said whose it is, and no peer had another folder
        under this node's id."""
        return not self._controller.machine.nodes and not self._host.mesh.strangers.was_disowned

    def _leads(self) -> bool:
        return self._controller.leader == self._host.node_id

    async def _found(self) -> None:
        """Take this node's vote as a founder; returns once it is on the disk. Raises OSError."""
        stored: asyncio.Future[None] = self._loop.create_future()

        def written(error: Exception | None) -> None:
            if stored.done():
                return
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        self._host.give_vote()
        self._host.store_folder(written)
        await stored
        log.info("the storage belongs to no cluster yet: this node is one of those that found the cluster")

    async def _found_when_possible(self) -> None:
        try:
            await self._found()
            self._vote_refused = None
        except OSError as error:
            if self._vote_refused is None:
                log.error("cannot store this node's vote: %s: free space, or mend the disk", error)
            self._vote_refused = str(error)

    # The controller's log.

    def _follow(self) -> None:
        """Keep the folders that the controller's changed state names."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        machine, host = self._controller.machine, self._host
        self._members.follow()
        own = machine.folders.get(host.node_id)
        if own is not None and own.folder != host.folder.id and own.generation > host.folder.generation > 0:
            if own.folder == REMOVED:
                self._on_fatal(RuntimeError(f"node {host.node_id} was removed from this cluster"))
                return
            self._on_fatal(
                RuntimeError(
                    f"data folder {own.folder:016x} has taken the place of this one, {host.folder.id:016x},"
                    f" as node {host.node_id}: start this node with that folder, or if that is lost with an"
                    f" empty one and `strandline node replace {host.node_id}`"
                )
            )
            return
        host.know_folders(self._known())
        if own is not None and own.folder == host.folder.id:
            host.give_vote(own.generation, machine.incarnation or "")
        self._write_list()
        if self._owned.owner is None and machine.incarnation:
            self._woken.set()

    def _write_list(self) -> None:
        """Write the controller's list; whatever changes meanwhile is one more write."""
        self._changed = self._writing
        if not self._writing:
            self._writing = True
            self._host.store_folder(self._list_written)

    def _list_written(self, error: Exception | None) -> None:
        """The list was written, or is written again after a while."""
        self._writing = False
        if error is None:
            self._unwritten = None
            if self._changed:
                self._write_list()
            return
        if self._unwritten is None:
            log.error("cannot store the controller's list of data folders: %s: repair the disk", error)
        self._unwritten = str(error)
        if self._retry is None:
            self._retry = self._loop.call_later(LOOK_SECONDS, self._follow)

    def _known(self) -> dict[int, FolderKey]:
        """Of every other node; no folder at all while groups have still to leave the one before out."""
        machine = self._controller.machine
        locked = machine.replacement.node if machine.replacement and machine.replacement.leaving else None
        return {
            node: FolderKey(folder.generation, NO_FOLDER if node == locked else folder.folder)
            for node, folder in machine.folders.items()
            if node != self._host.node_id
        }


def _damaged(owner: Owner) -> str:
    """The cure for a storage that is the owner's, with objects and all, but for the object that says so."""
    return f"or, if this cluster's objects are there, write this into the object {KEY!r}: {owner.document()}"
