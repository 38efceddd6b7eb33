"""What a schedule can do: let clients write, wait for moments, kill and hang processes there, and let all settle."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from strandline.statemachine.controller.controller_commands import DropViews
from tests.simulation.views.cluster import PROGRAM, Cluster
from tests.simulation.views.kafka import Transaction
from tests.simulation.views.process import Process
from tests.simulation.views.programs import ITEMS, SALES, wanted

WAIT_SECONDS: Final = 90.0
OLD: Final = {"totals": "totals", "stock": "stock"}
NEW: Final = {"totals": "totals", "stock": "stock", "busy": "busy", "large": "large"}


class Stuck(Exception):
    """What a schedule waited for did not come."""


class Stage:
    """One seed's world, for a schedule to play in."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.rng = cluster.world.rng("schedule")
        self._writing = True
        self._rate = 0.2

    # Clients.

    def sale(self, rng: random.Random) -> bytes:
        row = {
            "shop": rng.choice("abcd"),
            "item": rng.choice("uvwxyz"),
            "amount": rng.randint(1, 9),
            "weight": rng.choice((1e20, 1.0, -1e20, 0.1, 3.5)),
        }
        return json.dumps(row).encode()

    def item(self, rng: random.Random) -> tuple[bytes, bytes | None]:
        key = rng.choice("uvwxyz").encode()
        if rng.random() < 0.25:
            return key, None
        return key, json.dumps({"shop": rng.choice("abcd"), "price": rng.randint(1, 9)}).encode()

    def sell(self, count: int = 10) -> None:
        """Clients write some sales, and change some items."""
        for _ in range(count):
            if self.rng.random() < 0.6:
                self.cluster.kafka.sell(SALES, self.rng.randrange(2), [(None, self.sale(self.rng))])
            else:
                key, value = self.item(self.rng)
                self.cluster.kafka.sell(ITEMS, key[0] % 2, [(key, value)])

    def change(self, item: str, row: Mapping[str, Any] | None) -> None:
        """One item changes, or goes."""
        key = item.encode()
        value = None if row is None else json.dumps(row).encode()
        self.cluster.kafka.sell(ITEMS, key[0] % 2, [(key, value)])

    def begin_transaction(self) -> Transaction:
        """A client's transaction over both partitions of sales that is open until it is ended."""
        rows = {partition: [(None, self.sale(self.rng))] * 2 for partition in range(2)}
        return self.cluster.kafka.sell_in_transaction(SALES, rows)

    def keep_selling(self) -> None:
        """Clients write now and then until the schedule is over, also in transactions."""

        def one() -> None:
            if not self._writing:
                return
            if self.rng.random() < 0.15:
                opened = self.begin_transaction()
                commit = self.rng.random() < 0.5
                self.world.call_later(
                    self.rng.random(), lambda: self.cluster.kafka.end(opened, commit=commit)
                )
            else:
                self.sell(self.rng.randint(1, 4))
            self.world.call_later(self.rng.uniform(0.0, 2 * self._rate), one)

        one()

    def compact(self) -> None:
        """The cluster cleans all compacted topics as far as it may."""
        for (name, _), log in self.cluster.inputs():
            if name == ITEMS:
                self.cluster.outcomes["cleaned records"] += log.compact()

    # Programs.

    def apply(self, views: Mapping[str, str], text: str = "") -> int:
        """The operator applies a program; gives the attempt."""
        attempt = self.cluster.apply(wanted(views, text))
        if attempt is None:
            raise Stuck("the program was refused")
        return attempt

    def go_live(self, views: Mapping[str, str]) -> None:
        """Apply a program and wait for its cutover."""
        attempt = self.apply(views)
        self.until("it is live", lambda: self.is_live(attempt))

    def is_live(self, attempt: int) -> bool:
        """Whether an attempt has had its cutover."""
        program = self.cluster.machine.view_programs.get(PROGRAM)
        return program is not None and program.live is not None and program.live.attempt == attempt

    def drop(self) -> None:
        """The operator drops the program."""
        self.cluster.submitted(DropViews(PROGRAM, self.cluster.program.created), lost=False)

    # Moments.

    def until(self, what: str, done: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Let the world go on until something is so, or a rule is broken; raises Stuck if it takes too long."""
        cluster = self.cluster
        if not self.world.run_until(lambda: bool(cluster.findings) or done(), timeout=seconds):
            raise Stuck(f"{what}: not within {seconds:g} s")

    def run(self, seconds: float) -> None:
        """Let the world go on."""
        self.world.run(self.world.now + seconds)

    def moment(self, what: str, *, live: bool, count: int = 1) -> tuple[Callable[[], bool], list[Process]]:
        """Whether a process has just done something (its effect is there, its answer is not) `count` times."""
        seen: list[Process] = []

        def hear(process: Process, done: str) -> float:
            if done == what and process.name.live == live and process.hosted:
                seen.append(process)
            return 0.0

        self.cluster.answer_delays.append(hear)
        return (lambda: len(seen) >= count), seen

    def kill_at(self, what: str, *, live: bool, count: int = 1, before: bool = False) -> None:
        """A process is killed as it has done something for the `count`th time, or, `before`, as it sends it."""
        seen = 0
        killed = False

        def hear(process: Process, done: str) -> float:
            nonlocal seen, killed
            if done == what and process.name.live == live and process.hosted and not killed:
                seen += 1
                if seen == count:
                    killed = True
                    self.cluster.faults["killed"] += 1
                    self.world.call_later(0.0, process.kill)
            return 0.0

        (self.cluster.delays if before else self.cluster.answer_delays).append(hear)
        self.until(f"{what} is done {count} times", lambda: killed)

    # The end.

    def settle(self) -> None:
        """Nothing more is written; wait until the live version has all of it, then look once more."""
        self._writing = False
        cluster = self.cluster
        for one in [*cluster.kafka.open.values()]:
            cluster.record(f"transaction of {one.owner} is open")
        self.run(1.2)

        def done() -> bool:
            program = cluster.machine.view_programs.get(PROGRAM)
            if program is None or program.stopped:
                return True
            return program.next is None and all(
                cluster.live_cut.get(place, 0) >= log.stable
                for place, log in cluster.inputs()
                if any(place[0] == name for name, _ in (program.live.inputs if program.live else ()))
            )

        self.until("the live version has come to the end", done)
        if PROGRAM in cluster.machine.view_programs and cluster.program.live and not cluster.findings:
            program = cluster.program
            assert program.live is not None
            if not program.stopped:
                cluster._look(program.live.views, cluster.live_cut, program.live.attempt)
        cluster.look_for_remains()
