"""One node as a process: what cannot be simulated, and nothing else.

The wall clock, the system's randomness, threads, signals, files outside the data's format, and the exit code:
2 when the configuration or an address cannot be used, 1 when the node had to stop by itself, 3 when its
--parent is gone, 0 after a clean stop. `python -m strandline.node.process --config FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

if __name__ == "__main__":
    from strandline.snapshot.extras import end_without

    end_without("node")
    # kio imports the first and PySyncObj the second where they are installed, and do without where not. A
    # node uses neither (one is for tests, the other for sockets it never opens), and they are half of what
    # its start costs and 15 MB. A program that imports this module may need them.
    sys.modules["hypothesis"] = sys.modules["cryptography"] = None  # type: ignore[assignment]

from strandline.node.admin.server import AdminListenError, AdminServer
from strandline.node.broker.broker import Broker, UncleanStop
from strandline.node.compaction.worker_compactor import WorkerCompactor
from strandline.node.config.node_config import ConfigError, NodeConfig, load
from strandline.node.kafka.wire.server import KafkaListenError
from strandline.node.level_one.builder import BuilderConfig
from strandline.node.level_one.worker_builder import WorkerBuilder
from strandline.node.objectstore.local_store import LocalStore
from strandline.node.objectstore.opening import StorePlace, open_store
from strandline.node.objectstore.retries import RetryPolicy
from strandline.node.objectstore.storage_owner import ForeignStorage
from strandline.node.objectstore.store import NotDone, ObjectStore
from strandline.node.raft.disk import RealDisk
from strandline.node.raft.folder_file import FolderError, has_served
from strandline.node.raft.mesh.mesh import MeshListenError
from strandline.node.raft.wal.recovered_log import RaftLogDamaged
from strandline.node.raft.wal.write_ahead_log import WalError, WalLocked, WalMismatch
from strandline.node.runtime import logs
from strandline.node.runtime.allocator import keep_freed_memory
from strandline.node.runtime.disk_threads import DiskThreads, NodeLoop
from strandline.node.runtime.garbage import Garbage
from strandline.node.runtime.open_files import allow_open_files
from strandline.node.runtime.process_end import end_with, end_within

if __name__ == "__main__":
    del sys.modules["cryptography"]  # where clients log in with tokens, these are read with it

log = logging.getLogger(__name__)

STORE_THREADS: Final = 16
"""More than uploads in parallel, so that reads need not wait for their syncs."""
assert LocalStore.max_puts < STORE_THREADS
READ_THREADS: Final = 4
"""Of reads of local logs: enough that one which waits for the disk does not hold up those from memory."""
STORE_WAIT_SECONDS: Final = 1.0
"""Between two looks for the folder of a store that is missing."""
STOP_SECONDS: Final = 20.0
"""More than the parts of a clean stop may take together, unless a disk or the object store hangs."""
LEFT_SECONDS: Final = 3.0
"""Time limit for the threads of a process that has to end."""
NODE_FILE: Final = "node.json"
_SYSTEM: Final = random.SystemRandom()
_REFUSED: Final = (
    ForeignStorage, KafkaListenError, MeshListenError, AdminListenError, WalLocked, WalMismatch,
)  # fmt: skip
_DISK_CURES: Final = {
    errno.ENOSPC: "make room there, then start it again",
    errno.EDQUOT: "raise the quota, or make room there, then start it again",
    errno.EACCES: "let the node's user write there, or correct node.data",
    errno.EPERM: "let the node's user write there, or correct node.data",
    errno.EROFS: "mount it so that it can be written, or correct node.data",
    errno.ENOTDIR: "a file is where a folder is needed: correct node.data",
}


class Unusable(Exception):
    """The node cannot start as configured; one line, exit code 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until it is told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m strandline.node.process", description="Run one node.")
    parser.add_argument("--config", required=True, metavar="FILE", help="the node's TOML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="overrides file and variables"
    )
    parser.add_argument(
        "--parent",
        type=int,
        metavar="PID",
        help="end at once when this process is gone, which must be the one that starts the node",
    )
    options = parser.parse_args(arguments)
    if options.parent is not None:
        end_with(options.parent)
    try:
        config = load(options.config, os.environ, options.set)
    except ConfigError as error:
        return _refused(error)
    keep_freed_memory()
    allow_open_files()
    gc.freeze()  # modules stay: collections that looked at them held up the loop for a tenth of a second each
    options_kept_secret = [
        value
        for name, value in config.storage.options.items()
        if any(word in name.lower() for word in ("secret", "key", "token"))
    ]
    logs.configure(config.log.level, config.log.format, secrets=[config.cluster.secret, *options_kept_secret])
    for note in config.notes:
        log.warning("%s", note)
    if config.storage.volatile:
        log.warning("storage.url: %s: all records are lost when this process ends", config.storage.url)
    try:
        with asyncio.Runner(loop_factory=NodeLoop) as runner:
            return runner.run(_Process(config).run())
    except Unusable as error:
        return _refused(error)


def _refused(error: Exception) -> int:
    """Say in one line, as the command does, why nothing was started; gives the exit code."""
    print(f"strandline: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


class _Process:
    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._stopping = asyncio.Event()
        self._fatal: Exception | None = None

    async def run(self) -> int:
        config, loop = self._config, asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        disk = RealDisk()
        threads = DiskThreads(STORE_THREADS, "store")
        store = await self._store(loop, disk, threads)
        if store is None:
            return 0
        wal_thread, snapshot_thread = DiskThreads(1, "wal"), DiskThreads(1, "snapshots")
        broker = Broker(
            config,
            loop=loop,
            disk=disk,
            store=store,
            wal_executor=wal_thread,
            snapshot_executor=snapshot_thread,
            work_executor=ThreadPoolExecutor(1, "work"),
            read_executor=DiskThreads(READ_THREADS, "local-logs"),
            rng=random.Random(_SYSTEM.getrandbits(256)),
            nonces=_SYSTEM,
            boot_id=1 + _SYSTEM.getrandbits(62),
            wall_ms=lambda: time.time_ns() // 1_000_000,
            on_fatal=self._stop_for,
            level_one_builder=_level_one_builder(config, loop),
            compactor=_compactor(config, loop),
            view_place=_view_place(config),
        )
        admin = AdminServer(
            broker, config.admin.host, config.admin.port, config.admin.hosts, tls=config.admin.tls,
            secret=config.cluster.secret.encode() if config.admin.logins else None,
            first_user=config.cluster.first_user, tokens=config.admin.tokens)  # fmt: skip
        try:
            broker.open()
            _remove_node_file(config)  # of a process that was killed; the folder is this one's now
            admin.bind()
            broker.admin_port = admin.port
            await admin.start()
            started = await self._start(broker)
        except _REFUSED as error:
            raise Unusable(str(error)) from error
        except (WalError, RaftLogDamaged, FolderError) as error:
            log.critical("the node cannot start: %s", error)
            return 1
        except OSError as error:
            log.critical("the node cannot start: %s", _disk_failure(error, config))
            return 1
        if started:
            await self._serve(broker, admin)
        _remove_node_file(config)
        if self._fatal is not None:
            log.critical("the node stops: %s", self._fatal)
            end_within(LEFT_SECONDS, 1)
            return 1
        if not started:
            end_within(LEFT_SECONDS, 0)
        log.info("node %d stopped%s", broker.node_id, "" if started else " before it had started")
        return 0

    async def _serve(self, broker: Broker, admin: AdminServer) -> None:
        """Run until the node is to stop; if that is no failure, stop it cleanly."""
        _write_node_file(self._config, broker)
        host = broker.host
        garbage = Garbage(lambda: (len(host.groups), host.created), asyncio.get_running_loop())
        host.on_groups_changed = garbage.changed
        garbage.changed()  # those of the start
        broker.memory.start()
        broker.kafka.messages.load_usual()
        await self._stopping.wait()
        if self._fatal is None:
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await broker.stop()
                    await admin.stop()
            except (TimeoutError, UncleanStop) as error:
                why = str(error) or f"that took {STOP_SECONDS:.0f} s"
                self._stop_for(RuntimeError(f"it could not stop cleanly: {why}"))

    async def _start(self, broker: Broker) -> bool:
        """Start the node; False if it is to stop before that is done. It may wait for a disk that hangs."""
        starting, stopping = (asyncio.ensure_future(one) for one in (broker.start(), self._stopping.wait()))
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return False
        await starting
        return True

    async def _store(
        self, loop: asyncio.AbstractEventLoop, disk: RealDisk, threads: Executor
    ) -> ObjectStore | None:
        """The configured store, its operations tried again. Raises Unusable.

        A node that has served makes no store's folder: where it is missing it is not mounted yet, and a new
        one would stand in its way. The node waits for it; None if it is stopped meanwhile.
        """
        config, told = self._config, False
        place = StorePlace(config.storage.url, config.storage.options, f"node-{config.node.id}")
        rng = random.Random(_SYSTEM.getrandbits(256))
        try:
            make = not has_served(disk, config.node.data, config.node.id, config.cluster.id)
        except (FolderError, OSError):
            make = False  # opening the data folder tells of it
        while not self._stopping.is_set():
            try:
                return open_store(
                    place, RetryPolicy(), loop=loop, disk=disk, executor=threads, rng=rng, make=make,
                    hedge_puts=not config.counts_puts,
                )  # fmt: skip
            except NotDone as error:
                cure = error.cure or "correct storage.url or storage.options"
                text = f"storage.url: {error.key}: {error.reason.rstrip('.')}: {cure}"
                if not error.retriable:
                    raise Unusable(text) from error
                if not told:
                    log.error("%s; until then the node waits", text)
                told = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), STORE_WAIT_SECONDS)
        return None

    def _signalled(self, number: int) -> None:
        """The first signal asks for a clean stop, the second ends the process where it is."""
        if self._stopping.is_set():
            os._exit(128 + number)
        log.info("stopping on signal %d; a second one stops at once", number)
        self._stopping.set()

    def _stop_for(self, error: Exception) -> None:
        self._fatal = self._fatal or error
        self._stopping.set()


def _disk_failure(error: OSError, config: NodeConfig) -> str:
    """The file, the cause and the cure; half a line."""
    where = error.filename or f"a file below node.data ({config.node.data})"
    todo = _DISK_CURES.get(error.errno or 0, "see that the disk works, then start it again")
    return f"{where}: {error.strerror or error}: {todo}"


def _level_one_builder(config: NodeConfig, loop: asyncio.AbstractEventLoop) -> WorkerBuilder | None:
    """A worker process; none if it would not see the node's objects, as they are in its memory."""
    place = StorePlace(config.storage.url, config.storage.options, f"node-{config.node.id}-level-one")
    builder = BuilderConfig(block_bytes=config.level_one.block_bytes)
    return WorkerBuilder(place, builder, loop=loop) if place.is_shared else None


def _compactor(config: NodeConfig, loop: asyncio.AbstractEventLoop) -> WorkerCompactor | None:
    """As `_level_one_builder`."""
    place = StorePlace(config.storage.url, config.storage.options, f"node-{config.node.id}-compaction")
    return WorkerCompactor(place, loop=loop) if place.is_shared else None


def _view_place(config: NodeConfig) -> StorePlace | None:
    """The place at which processes of views find the node's objects; None as in `_level_one_builder`."""
    place = StorePlace(config.storage.url, config.storage.options, f"node-{config.node.id}-views")
    return place if place.is_shared else None


def _write_node_file(config: NodeConfig, broker: Broker) -> None:
    """Write down where this process listens, for programs that start nodes; whole or not at all."""
    path = os.path.join(config.node.data, NODE_FILE)
    told = {
        "pid": os.getpid(),
        "node": broker.node_id,
        "kafka_port": broker.kafka.port,
        "listeners": broker.kafka.ports,
        "admin_port": broker.admin_port,
        "mesh_port": broker.host.mesh.port,
    }
    with open(path + ".new", "w") as file:
        json.dump(told, file)
    os.replace(path + ".new", path)


def _remove_node_file(config: NodeConfig) -> None:
    """Remove the file at every end of the process, also after a disk failure."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(config.node.data, NODE_FILE))


if __name__ == "__main__":
    sys.exit(main())
