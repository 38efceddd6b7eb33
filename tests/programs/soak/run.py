"""Run a real cluster under everything at once for a long time, then see that storage is what it should be.

`scripts/soak --minutes 20`: three real nodes, a mixed load, retention by time and by size, DeleteRecords,
a topic that is deleted and created again under its name, checkpoints with a lease, readers at the end and
from the start, kill -9 to a node every 30 s. Then it gets quiet. Level zero must drain to nothing; level one
must hold exactly what the partitions name, and no more than the values that retention keeps plus a bound;
retention must have taken neither too much nor too little; after a restart of the whole cluster every record
that was acknowledged and is retained must be there, once, as it was sent; and all audits must pass. Exits 1
when any of it does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from strandline.cluster.failure import CommandFailed
from strandline.snapshot.spark.no_spark import NoJava
from strandline.snapshot.spark.session import check_java
from tests.programs.failover.cluster.auditing import CHECKPOINT_SECONDS, audit
from tests.programs.failover.cluster.nodes import NODES, Nodes, NotWell
from tests.programs.failover.cluster.stores import LocalStorage, S3Storage, Storage
from tests.programs.folder_option import existing_folder
from tests.programs.soak.judging import judge, judge_checkpoints
from tests.programs.soak.life import Life
from tests.programs.soak.reading import Beginner
from tests.programs.soak.report import Report, plain, show
from tests.programs.soak.settings import EPOCH_SECONDS, SETTINGS
from tests.programs.soak.topics import TOPICS, Administration, Goes
from tests.programs.soak.watch import Watch, say

_DOWN_SECONDS = (0.5, 3.0)
_RENEW_SECONDS = (35.0, 60.0)
_TRIM_SECONDS = (8.0, 16.0)
_DELETE_SECONDS = 60.0
_LEASE_EVERY_SECONDS = 50.0
_LEASE_SECONDS = 15.0
_AUDIT_LEASE_SECONDS = 3600.0
"""Longer than any audit takes: what is audited must stay."""
_BEGINNER_SHARE = 0.4
"""Of the rate of the load: what is read from the start of the log."""


class Soak:
    """One run. Every wait in it has a limit; what goes wrong is in the report."""

    def __init__(
        self,
        nodes: Nodes,
        folder: Path,
        report: Report,
        rng: random.Random,
        *,
        rate: float,
        kill_every: float,
    ) -> None:
        """`rate`: bytes a second of the load; `kill_every`: seconds, 0 for never."""
        self._nodes = nodes
        self._folder = folder
        self._report = report
        self._rng = rng
        self._rate = rate
        self._kill_every = kill_every
        self._numbers = itertools.count(1)
        self._administration = Administration(nodes.bootstrap, len(NODES))
        self._lives = {topic.name: self._life(topic.name) for topic in TOPICS}
        stay = [place for life in self._lives.values() if life.topic.goes is not Goes.RENEWED
                for place in life.places]  # fmt: skip
        self._beginner = Beginner(
            nodes.bootstrap,
            "beginner",
            stay,
            random.Random(rng.getrandbits(64)),
            rate * _BEGINNER_SHARE,
        )

    async def go(self, seconds: float, *, audits: bool) -> None:
        """All of it, up to the first thing that goes wrong."""
        report, nodes = self._report, self._nodes
        try:
            await nodes.up(EPOCH_SECONDS)
            await self._load(seconds)
            say("quiet: the load ends")
            began = time.monotonic()
            await nodes.healthy()
            await self._quiet()
            self._count()
            if report.findings or self._problems():
                return
            await judge(nodes, report, list(self._lives.values()), began)
            if audits:
                findings, said = await audit(nodes, self._folder, lease_seconds=_AUDIT_LEASE_SECONDS)
                say(said)
                report.findings += findings
                report.audited = int(not findings)
                await judge_checkpoints(nodes, report)
        except (NotWell, CommandFailed, TimeoutError) as error:
            report.findings.append(f"{error!r}")
        finally:
            report.findings += self._problems()
            await self._stop()

    async def _load(self, seconds: float) -> None:
        report = self._report
        for life in self._lives.values():
            await life.begin(self._administration)
        self._beginner.start()
        began = time.monotonic()
        tasks = [
            asyncio.create_task(each)
            for each in (
                self._kills(),
                self._renewals(),
                self._trims(),
                self._checkpoints(),
                Watch(self._nodes, self._folder, report).run(),
            )
        ]
        try:
            while (left := began + seconds - time.monotonic()) > 0 and not (
                report.findings or self._problems()
            ):
                done, _ = await asyncio.wait(tasks, timeout=min(left, 1.0))
                for task in done:
                    task.result()  # none of them ends by itself
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            report.load_seconds = time.monotonic() - began

    async def _kills(self) -> None:
        """kill -9 to one node after the other, in an order of the seed; started again a moment later."""
        if not self._kill_every:
            await asyncio.Event().wait()
        while True:
            for node in self._rng.sample(NODES, len(NODES)):
                due = time.monotonic() + self._kill_every
                await asyncio.sleep(self._kill_every / 2)
                await self._whole(self._kill(node))
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _whole(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry it to its end even when cancelled: no node is left down, and no topic half created."""
        task = asyncio.create_task(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await task
            raise

    async def _kill(self, node: int) -> None:
        await self._nodes.kill(node)
        await asyncio.sleep(self._rng.uniform(*_DOWN_SECONDS))
        await self._nodes.start(node)
        self._report.kills += 1
        say(f"node {node} was killed and is back")

    async def _renewals(self) -> None:
        """Delete a topic, half of the time under load, and create it again."""
        (topic,) = (topic for topic in TOPICS if topic.goes is Goes.RENEWED)
        while True:
            await asyncio.sleep(self._rng.uniform(*_RENEW_SECONDS))
            await self._whole(self._renew(topic.name, loaded=self._rng.random() < 0.5))

    async def _renew(self, name: str, *, loaded: bool) -> None:
        old = self._lives[name]
        await (old.doom() if loaded else old.end())
        await asyncio.to_thread(self._administration.delete, name, _DELETE_SECONDS)
        await old.end()
        self._report.findings += old.problems()
        self._report.acknowledged += sum(stream.acknowledged for stream in old.streams.values())
        self._report.acknowledged_bytes += sum(stream.bytes for stream in old.streams.values())
        self._report.followed_bytes += old.follower.bytes
        new = self._life(name)
        self._lives[name] = new
        await new.begin(self._administration, old.topic_id)
        self._report.renewals += 1

    async def _trims(self) -> None:
        """DeleteRecords up to somewhere between the first offset and the high watermark."""
        (life,) = (life for life in self._lives.values() if life.topic.goes is Goes.TRIMMED)
        while True:
            await asyncio.sleep(self._rng.uniform(*_TRIM_SECONDS))
            partition = self._rng.randrange(life.topic.partitions)
            offset = life.follower.place(life.topic.name, partition)
            low = life.low_told.get(partition, 0)
            if offset > low:
                done = await life.trimmed(self._administration, partition, self._rng.randint(low, offset))
                self._report.trims += done

    async def _checkpoints(self) -> None:
        """A lease now and then, which holds M back and keeps level one for its time."""
        body = {"timeout_seconds": CHECKPOINT_SECONDS, "lease_seconds": _LEASE_SECONDS}
        while True:
            await asyncio.sleep(_LEASE_EVERY_SECONDS)
            try:
                taken = await self._nodes.ask(
                    "/api/checkpoints", "POST", body, seconds=CHECKPOINT_SECONDS + 10
                )
            except CommandFailed:
                continue  # the node that took it was killed
            self._report.checkpoints += bool(taken["complete"])

    async def _quiet(self) -> None:
        """Writers and readers end, each at the end of what it has to do."""
        await asyncio.to_thread(self._beginner.stop)
        for life in self._lives.values():
            for writer in life.writers:
                writer.stop()
        for life in self._lives.values():
            self._report.findings += await life.quiet()

    def _problems(self) -> list[str]:
        told = [problem for life in list(self._lives.values()) for problem in life.problems()]
        return told + self._beginner.findings

    def _count(self) -> None:
        report = self._report
        for life in self._lives.values():
            report.acknowledged += sum(stream.acknowledged for stream in life.streams.values())
            report.acknowledged_bytes += sum(stream.bytes for stream in life.streams.values())
            report.followed_bytes += life.follower.bytes
        report.begun_bytes = self._beginner.bytes

    async def _stop(self) -> None:
        await asyncio.to_thread(self._beginner.stop)
        for life in self._lives.values():
            await life.end()

    def _life(self, name: str) -> Life:
        topic = next(topic for topic in TOPICS if topic.name == name)
        return Life(topic, self._nodes, self._rate, self._numbers)


async def drive(
    folder: Path,
    seconds: float,
    seed: int,
    storage: str,
    *,
    rate: float,
    kill_every: float,
    audits: bool = True,
) -> Report:
    """A whole run in `folder`, which keeps logs and objects; nothing of it runs any more at the end.

    SIGTERM ends it as Ctrl-C does.
    """
    run = asyncio.current_task()
    assert run is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.cancel)
    rng = random.Random(seed)
    report = Report(seed, storage=storage)
    began = time.monotonic()
    place: Storage = (
        await S3Storage.start(random.Random(rng.getrandbits(64)), folder / "s3.log")
        if storage == "s3"
        else LocalStorage(folder / "objects", small_disk=False)
    )
    # Straight to the store, and from node to node: this process is busy, and nothing is to wait for it.
    place.settings = (*(f"storage.options.{key}={value}" for key, value in place.options.items()), *SETTINGS)
    try:
        nodes = Nodes(folder / "cluster", place, small_disk=False)
        nodes.links.clear()
        try:
            soak = Soak(nodes, folder, report, rng, rate=rate, kill_every=kill_every)
            await soak.go(seconds, audits=audits)
        finally:
            try:
                await nodes.close(None)
            except CommandFailed as error:
                report.findings.append(f"at the end: {error}")
    finally:
        await place.close(None)
        report.seconds = time.monotonic() - began
    return report


def main(arguments: list[str]) -> int:
    """Exit status: 0 when all held, 1 when something did not."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="of load (default: %(default)g)")
    parser.add_argument("--storage", choices=("local", "s3"), default="local", help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=6.0, help="MB a second (default: %(default)g)")
    parser.add_argument(
        "--kill-every", type=float, default=30.0, help="seconds between kills, 0: none (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is done when (default: %(default)s)")
    parser.add_argument("--no-audits", action="store_true", help="leave Spark's audits out; never passes")
    parser.add_argument("--keep", action="store_true", help="keep logs and objects also when all is well")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument(
        "--folder",
        type=existing_folder,
        default="/var/tmp",
        help="where the data goes, on a real disk (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= 24 * 60 or not 0 < options.rate <= 1000 or options.kill_every < 0:
        parser.error("--minutes and --rate are above 0, --kill-every is not below")
    if not options.no_audits:
        try:
            check_java()
        except NoJava as error:
            parser.error(str(error))
    folder = Path(tempfile.mkdtemp(prefix="strandline-soak-", dir=options.folder))
    say(f"logs, configurations and objects: {folder}")
    report = asyncio.run(
        drive(
            folder,
            options.minutes * 60,
            options.seed,
            options.storage,
            rate=options.rate * 1e6,
            kill_every=options.kill_every,
            audits=not options.no_audits,
        )
    )
    if options.keep or report.failures():
        report.folder = str(folder)
    else:
        shutil.rmtree(folder)
    print(json.dumps(plain(report)) if options.json else show(report))
    return 1 if report.failures() else 0
