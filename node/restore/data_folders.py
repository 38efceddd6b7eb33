"""Makes the data folder of a restored cluster's node: its identity, and for each group a snapshot with a log.

The folder is as the node would have left it had it installed all of these snapshots and stopped. It holds
no promise: no vote, and no entry above the snapshots.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from strandline.node.raft.disk import Disk, RealDisk
from strandline.node.raft.folder_file import UNSTARTED, FolderFields, FolderFile, FolderKey
from strandline.node.raft.snapshots.store import SnapshotStore
from strandline.node.raft.wal.config import WalConfig
from strandline.node.raft.wal.raft_log import RaftLog
from strandline.node.raft.wal.recovered_log import RecoveredLog
from strandline.node.raft.wal.write_ahead_log import RecordKind, WriteAheadLog
from strandline.node.restore.restored_states import RestoredCluster
from strandline.snapshot.document import SnapshotDocument
from strandline.statemachine.controller.controller_state import ControllerState

_MAX_RUN_BYTES: Final = 1 << 20
"""No entry is written, so that this bounds nothing."""


def removable(folder: Path) -> bool:
    """Whether the folder holds nothing that is only there: it is missing, empty, or of a restore and its
    node never started with it."""
    if not folder.is_dir():
        return not folder.exists()
    return (folder / UNSTARTED).is_file() or not any(folder.iterdir())


def begin_data_folder(folder: Path) -> None:
    """Make the folder, with a mark that it is of a restore and was never started, durable on return.

    Replaces one that is `removable`. Its mark goes last, so that a removal that broke off can be repeated.
    Raises FileExistsError for a folder of anything else, and OSError.
    """
    if not removable(folder):
        raise FileExistsError(f"{folder} holds a node's data")
    if folder.exists():
        for each in folder.iterdir():
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each.name != UNSTARTED:
                each.unlink()
    folder.mkdir(mode=0o700, exist_ok=True)
    disk = RealDisk()
    mark = f"{folder}/{UNSTARTED}"
    if not disk.exists(mark):
        disk.open(mark, create=True).close()
        disk.sync_dir(str(folder))


async def write_data_folders(
    data: Mapping[int, tuple[Disk, str]],
    cluster: str,
    made: RestoredCluster,
    documents: Iterable[SnapshotDocument],
    state: ControllerState,
    *,
    rng: random.Random,
) -> None:
    """Write the data folder of each node, on its disk by its path; durable on return.

    Raises OSError, WalError.

    `state` is the restored controller's once the first document was made.
    """
    by_node: dict[int, list[SnapshotDocument]] = {node: [] for node in data}
    for document in documents:
        for node in document.voters:
            by_node[node].append(document)
    folders = {node: FolderKey(*known) for node, known in state.folders.items()}
    for node, (disk, path) in data.items():
        await _write_data_folder(
            disk,
            path,
            node,
            cluster=cluster,
            incarnation=made.incarnation,
            folders=folders,
            documents=by_node[node],
            rng=rng,
        )


async def _write_data_folder(
    disk: Disk,
    folder: str,
    node: int,
    *,
    cluster: str,
    incarnation: str,
    folders: Mapping[int, FolderKey],
    documents: Sequence[SnapshotDocument],
    rng: random.Random,
) -> None:
    """Write a folder that is empty or not there yet. `folders` are those of all nodes, this one included;
    `documents` are of the groups that the node is in."""
    disk.mkdir(folder)
    wal = WriteAheadLog.open(
        disk,
        f"{folder}/wal",
        loop=asyncio.get_running_loop(),
        executor=None,
        node_id=node,
        cluster_id=cluster,
        config=WalConfig(),
        rng=rng,
        replay=_none_is_there,
    )
    try:
        own = folders[node]
        peers = {peer: key for peer, key in folders.items() if peer != node}
        FolderFile(disk, folder, node, cluster).write(
            FolderFields(own.folder, own.generation, incarnation, True, peers)
        )
        snapshots = SnapshotStore(disk, f"{folder}/snapshots", cluster)
        for document in documents:
            snapshots.save(document)
            log = RaftLog(partial(wal.append, document.group), RecoveredLog(document.group), _MAX_RUN_BYTES)
            log.reset(document.index, document.term, document.voters, document.learners, document.folders)
            log.setCurrentTerm(document.term, None)
    finally:
        await wal.close()


def _none_is_there(group: int, kind: RecordKind, segment: int, payload: bytes) -> None:
    raise ValueError("the folder already has a log")
