"""Writes a log of many entries as a node of either system leaves it, in less time than a cluster takes."""

from __future__ import annotations

import asyncio
import pickle
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from pysyncobj.journal import createJournal

from strandline.node.raft.data_folder import Folder
from strandline.node.raft.disk import RealDisk
from strandline.node.raft.entries import EntryKind
from strandline.node.raft.wal.raft_log import RaftLog
from strandline.node.raft.wal.recovered_log import RecoveredLog
from strandline.node.raft.wal.write_ahead_log import WalConfig, WriteAheadLog
from tests.programs.processes.counter import count

_ENTRIES_A_RECORD = 64
_RECORDS_A_SYNC = 1024
_COMMAND_BYTES = 200


def _never(*_: object) -> None:
    raise AssertionError("a folder that was just made has nothing to write")


async def fill_ours(folder: str, entries: int) -> None:
    """A write-ahead log of one group that node 1 votes in alone."""
    executor = ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    wal = WriteAheadLog.open(
        RealDisk(), f"{folder}/wal", loop=loop, executor=executor, node_id=1, cluster_id="processes",
        config=WalConfig(), rng=random.Random(1), replay=lambda *_: None,
    )  # fmt: skip
    Folder.open(RealDisk(), folder, 1, "processes", random.Random(1), _never, logged=False)
    synced = asyncio.Event()
    wal.on_synced = lambda lsn, _: synced.set() if lsn == wal.tail_lsn else None
    journal = RaftLog(partial(wal.append, 0), RecoveredLog(0), 1 << 20)
    journal.reset(0, 0, (1,), ())
    journal.setCurrentTerm(1, 1)
    command = bytes([EntryKind.REGULAR]) + count(_COMMAND_BYTES)
    for index in range(1, entries + 1):
        journal.add(command, index, 1)
        if index % _ENTRIES_A_RECORD == 0 or index == entries:
            journal.write()
        if index % (_ENTRIES_A_RECORD * _RECORDS_A_SYNC) == 0 or index == entries:
            synced.clear()
            wal.flush()
            await asyncio.wait_for(synced.wait(), 60.0)
    await wal.close()
    executor.shutdown()


def fill_stock(folder: str, entries: int) -> None:
    """PySyncObj's journal: its first entry, then calls of the first replicated method, pickled."""
    Path(folder).mkdir(parents=True)
    journal = createJournal(f"{folder}/0.journal")
    journal.add(b"\1", 1, 0)
    command = b"\0" + pickle.dumps((0, (count(_COMMAND_BYTES),)), 2)
    for index in range(2, entries + 2):
        journal.add(command, index, 1)
    journal._destroy()


if __name__ == "__main__":
    if sys.argv[1] == "ours":
        asyncio.run(fill_ours(sys.argv[2], int(sys.argv[3])))
    else:
        fill_stock(sys.argv[2], int(sys.argv[3]))
