"""Transactions on a real cluster under faults for a long time, and then every anomaly is looked for.

`scripts/anomalies --minutes 20`: three real nodes; producers with a transactional.id that commit, abort and
are replaced by newer incarnations while the old ones go on; workers of one consumer group that consume,
transform and produce in transactions; readers of committed records. Every few seconds a node is killed (-9)
or stopped (SIGSTOP), or links are cut. Exits 1 when tests/histories/anomalies.py finds anything.
`--bootstrap` runs the same against any cluster, without faults.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.failure import CommandFailed
from tests.histories.anomalies import anomalies
from tests.histories.history import Ending, Place
from tests.programs.anomalies.reading import Follower, read_committed
from tests.programs.anomalies.recorder import Recorder
from tests.programs.anomalies.transacting import (
    INPUT,
    OUTPUT,
    PARTITIONS,
    WRITTEN,
    Transactor,
    Worker,
    Writer,
)
from tests.programs.failover.cluster.faults import FAULTS
from tests.programs.failover.cluster.nodes import Nodes, NotWell
from tests.programs.failover.cluster.stores import LocalStorage
from tests.programs.folder_option import existing_folder

KINDS: Final = (
    "kill -9, a leader",
    "SIGTERM, a leader",
    "SIGSTOP, a leader",
    "links cut, two nodes",
    "links cut, a leader",
)
EPOCH_SECONDS: Final = 0.3
TOPICS: Final = (INPUT, OUTPUT, WRITTEN)
_CALM_SECONDS: Final = (1.0, 6.0)
_DRAIN_SECONDS: Final = 300.0
_LAST_LOOK_SECONDS: Final = 120.0
_INPUTS_A_SECOND: Final = 20.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Load:
    """Everything that transacts and reads; in threads, as the clients block."""

    def __init__(self, bootstrap: str, rng: random.Random, *, writers: int, workers: int) -> None:
        self.recorder = Recorder()
        self.bootstrap = bootstrap
        made: list[Transactor] = []
        for number in range(writers):
            made.append(Writer(bootstrap, f"writer-{number}", self.recorder, _another(rng)))
        for number in range(workers):
            made.append(Worker(bootstrap, f"worker-{number}", self.recorder, _another(rng)))
        self.transactors = made
        self.places = [Place(topic, number) for topic in (OUTPUT, WRITTEN) for number in range(PARTITIONS)]
        self.followers = [
            Follower(bootstrap, f"follower-{number}", self.places, self.recorder) for number in range(2)
        ]
        self._feeder: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create the topics and begin."""
        await asyncio.to_thread(self._create_topics)
        self._feeder = asyncio.create_task(self._feed())
        for thread in (*self.transactors, *self.followers):
            thread.start()

    async def finish(self) -> None:
        """No more input; what there is is consumed, everything under way ends; then the last look."""
        assert self._feeder is not None
        self._feeder.cancel()
        await asyncio.gather(self._feeder, return_exceptions=True)
        await self._drained()
        for thread in self.transactors:
            thread.stop()
        for thread in self.transactors:
            await asyncio.to_thread(thread.join, _DRAIN_SECONDS)
            if thread.is_alive():
                self.recorder.troubled(f"{thread.name} does not end")
        history = self.recorder.history
        look = asyncio.to_thread(read_committed, self.bootstrap, self.places, _LAST_LOOK_SECONDS)
        history.committed = await look
        for follower in self.followers:
            await asyncio.to_thread(follower.reach, history.committed, _LAST_LOOK_SECONDS)
            history.followed.append(follower.name)
            follower.stop()
            await asyncio.to_thread(follower.join, _DRAIN_SECONDS)

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = [NewTopic(topic, PARTITIONS, 3) for topic in TOPICS]
        for created in admin.create_topics(wanted).values():
            created.result(30)

    async def _feed(self) -> None:
        """Input, by an idempotent producer."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        try:
            while True:
                value = self.recorder.value()

                def delivered(error: Any, _: Any, value: str = value) -> None:
                    if error is None:
                        self.recorder.input(value)

                producer.produce(INPUT, value.encode(), on_delivery=delivered)
                producer.poll(0)
                await asyncio.sleep(1 / _INPUTS_A_SECOND)
        finally:
            producer.flush(30)

    async def _drained(self) -> None:
        """Wait until workers consumed every input, as far as they know."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            transactions = [*self.recorder.history.transactions]
            kept = [one for one in transactions if one.ending is not Ending.ABORTED]
            if {read.value for one in kept for read in one.consumed}.issuperset(self.recorder.history.inputs):
                return
            await asyncio.sleep(0.5)
        # Not an anomaly: the workers did not keep up. What was not consumed yet would pass for lost.
        self.recorder.troubled(f"the input was not consumed within {_DRAIN_SECONDS:g} s of its end")


def _another(rng: random.Random) -> random.Random:
    return random.Random(rng.getrandbits(64))


def summary(load: Load, faults: Counter[str], seconds: float) -> dict[str, Any]:
    """What happened, in plain values."""
    history = load.recorder.history
    return {
        "seconds": round(seconds, 1),
        "faults": dict(faults),
        "transactions": load.recorder.counts(),
        "incarnations": sum(one.incarnation for one in load.transactors),
        "zombies fenced": sum(one.fenced for one in load.transactors),
        "records sent": sum(len(one.sent) for one in history.transactions),
        "records committed": sum(len(reads) for reads in history.committed.values()),
        "inputs": len(history.inputs),
        "polls": len(history.polls),
        "trouble": load.recorder.trouble[:20],
        "anomalies": [list(found) for found in anomalies(history)],
    }


async def _with_faults(nodes: Nodes, rng: random.Random, seconds: float, faults: Counter[str]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        await asyncio.sleep(rng.uniform(*_CALM_SECONDS))
        kind = rng.choice(KINDS)
        await FAULTS[kind].do(nodes, rng)
        faults[kind] += 1
        await nodes.healthy()
        if sum(faults.values()) % 10 == 0:
            say(f"{sum(faults.values())} faults, {max(0.0, deadline - time.monotonic()):.0f} s left")


async def drive(folder: Path, seconds: float, seed: int, writers: int, workers: int) -> dict[str, Any]:
    """A whole run on a cluster of its own in `folder`; nothing of it runs any more at the end."""
    rng = random.Random(seed)
    place = LocalStorage(folder / "objects", small_disk=False)
    faults: Counter[str] = Counter()
    began = time.monotonic()
    nodes = Nodes(folder / "cluster", place, small_disk=False)
    try:
        await nodes.up(EPOCH_SECONDS)
        load = Load(nodes.bootstrap, rng, writers=writers, workers=workers)
        await load.start()
        await nodes.create_topic()
        try:
            await _with_faults(nodes, rng, seconds, faults)
        except (NotWell, CommandFailed, TimeoutError) as error:
            load.recorder.troubled(repr(error))
        await load.finish()
    finally:
        await nodes.close(None)
        await place.close(None)
    return summary(load, faults, time.monotonic() - began)


async def drive_there(
    bootstrap: str, seconds: float, seed: int, writers: int, workers: int
) -> dict[str, Any]:
    """The same load on a cluster that is there, without faults."""
    load = Load(bootstrap, random.Random(seed), writers=writers, workers=workers)
    began = time.monotonic()
    await load.start()
    await asyncio.sleep(seconds)
    await load.finish()
    return summary(load, Counter(), time.monotonic() - began)


def main(arguments: list[str]) -> int:
    """Exit status: 0 when no anomaly was found and nobody met trouble."""
    parser = argparse.ArgumentParser(prog="scripts/anomalies", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="of load (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of faults and clients (default: 1)")
    parser.add_argument("--writers", type=int, default=4, help="transactional producers (default: 4)")
    parser.add_argument("--workers", type=int, default=3, help="members of the group (default: 3)")
    parser.add_argument("--bootstrap", help="a cluster that is there, instead of one of its own with faults")
    parser.add_argument("--keep", action="store_true", help="keep logs and objects also when all is well")
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default="/var/tmp",
        help="where the data goes (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    counts = options.writers, options.workers
    seconds = options.minutes * 60
    if options.bootstrap:
        found = asyncio.run(drive_there(options.bootstrap, seconds, options.seed, *counts))
    else:
        folder = Path(tempfile.mkdtemp(prefix="strandline-anomalies-", dir=options.folder))
        say(f"logs, configurations and objects: {folder}")
        found = asyncio.run(drive(folder, seconds, options.seed, *counts))
        if not (options.keep or found["anomalies"] or found["trouble"]):
            shutil.rmtree(folder)
    print(json.dumps(found, indent=2))
    return 1 if found["anomalies"] or found["trouble"] else 0
