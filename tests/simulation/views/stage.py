"""What a schedule can do: let clients write, wait for moments, kill processes there, let all settle."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from strandline.cluster.view_worker.surroundings import Surroundings
from strandline.snapshot.views.circuit import Bound, Circuit
from strandline.snapshot.views.zset import ZSet
from strandline.statemachine.controller.controller_commands import DropViews, StopViews
from tests.simulation.views.cluster import PROGRAM, Cluster
from tests.simulation.views.kafka import Transaction
from tests.simulation.views.process import Process
from tests.simulation.views.programs import ITEMS, SALES, wanted

WAIT_SECONDS: Final = 40.0
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
        self._open = ExitStack()
        self._writing = True
        self._rate = 0.2

    def enter(self, context: AbstractContextManager[Any]) -> None:
        """Have something be so until the run is over."""
        self._open.enter_context(context)

    def close(self) -> None:
        """The run is over."""
        self._open.close()

    # Clients.

    def sale(self, rng: random.Random) -> bytes:
        row = {
            "shop": rng.choice("abcd"),
            "item": rng.choice("uvwxyz"),
            "amount": rng.randint(1, 9),
            "weight": rng.choice((1e15, 1.0, -1e15, 0.1, 3.5)),
        }
        return json.dumps(row).encode()

    def item(self, rng: random.Random) -> tuple[bytes, bytes | None]:
        key = rng.choice("uvwxyz").encode()
        if rng.random() < 0.25:
            return key, None
        return key, json.dumps(
            {"shop": rng.choice("abcd"), "price": rng.randint(1, 9), "weight": rng.choice((1e20, 1.0, -1e20))}
        ).encode()

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
        value = None if row is None else json.dumps({"weight": 1.0, **row}).encode()
        self.cluster.kafka.sell(ITEMS, key[0] % 2, [(key, value)])

    def begin_transaction(self) -> Transaction:
        """A client's transaction over both partitions of sales that is open until it is ended."""
        rows: dict[int, list[tuple[bytes | None, bytes | None]]] = {
            partition: [(None, self.sale(self.rng))] * 2 for partition in range(2)
        }
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
        """The cluster cleans all compacted topics as far as it may, and the store."""
        self.cluster.sweep()
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
        self.until("the attempt ends", lambda: self.cluster.program.next is None)
        if not self.is_live(attempt) and not self.cluster.findings:
            raise Stuck(f"the attempt ended: {self.cluster.program.ended}")

    def is_live(self, attempt: int) -> bool:
        """Whether an attempt has had its cutover."""
        program = self.cluster.machine.view_programs.get(PROGRAM)
        return program is not None and program.live is not None and program.live.attempt == attempt

    def drop(self) -> None:
        """The operator drops the program."""
        self.cluster.submitted(DropViews(PROGRAM, self.cluster.program.created), lost=False)

    # Moments.

    def until(self, what: str, done: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Let the world go on until something is so, or a rule is broken; raises Stuck if that takes long."""
        cluster = self.cluster
        if not self.world.run_until(lambda: bool(cluster.findings) or done(), timeout=seconds):
            raise Stuck(f"{what}: not within {seconds:g} s")

    def run(self, seconds: float) -> None:
        """Let the world go on."""
        self.world.run(self.world.now + seconds)

    def moment(self, what: str, *, live: bool, count: int = 1) -> tuple[Callable[[], bool], list[Process]]:
        """Whether a process has done something `count` times: its effect is there, its answer is not."""
        seen: list[Process] = []

        def hear(process: Process, done: str) -> float:
            if done == what and process.name.live == live and process.hosted:
                seen.append(process)
            return 0.0

        self.cluster.answer_delays.append(hear)
        return (lambda: len(seen) >= count), seen

    def kill_at(self, what: str, *, live: bool, count: int = 1, before: bool = False) -> None:
        """A process is killed as it has done something `count` times, or, `before`, as it sends that."""
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

    def until_state(self) -> None:
        """Until the live version has stored a state, and committed its name."""
        stored, _ = self.moment("put state", live=True)
        self.sell(3)
        self.until("a state is stored", stored)
        self.until_written()

    def until_written(self) -> None:
        """Until the live version has come to the end of its inputs."""
        cluster = self.cluster

        def done() -> bool:
            return all(
                cluster.live_cut.get(place, 0) >= log.stable for place, log in cluster.inputs() if log.end
            )

        self.until("it has come to the end", done)

    # Faults.

    def kill(self, *, live: bool) -> None:
        """A process dies."""
        process = self.cluster.running(live=live)
        if process is not None:
            self.cluster.faults["killed"] += 1
            process.kill()

    def kill_everything(self) -> None:
        for process in [*self.cluster.processes]:
            self.cluster.faults["killed"] += 1
            process.kill()

    def live_cannot_run(self) -> Callable[[], None]:
        """No process of the live version can begin from here on, until the function given back is called."""
        group, before, failing = f"view.{PROGRAM}.{self.cluster.program.created}", self.cluster.around, True

        def around(given: Surroundings) -> Surroundings:
            def consumer(config: dict[str, Any]) -> Any:
                if failing and config["group.id"] == group:
                    raise OSError("it cannot run here")
                return given.consumer(config)

            return before(replace(given, consumer=consumer))

        def heal() -> None:
            nonlocal failing
            failing = False

        self.cluster.around = around
        return heal

    def out_of_reach(self, process: Process) -> None:
        """A process hangs, and its node does not run it any more."""
        self.cluster.faults["hung"] += 1
        process.fiber.hang()
        process.hosted = False
        self.cluster.look()

    def stop_live(self) -> None:
        """The operator stops the live version."""
        program = self.cluster.program
        assert program.live is not None
        said = StopViews(PROGRAM, program.live.attempt, program.live_worker, "an operator stopped it")
        self.cluster.submitted(said, lost=False)

    def hold_back(self, what: str, seconds: float, *, live: bool = False, share: float = 1.0) -> None:
        """Requests of one kind come so much later, or a share of them does."""
        self.cluster.faults["held back"] += 1

        def extra(process: Process, done: str) -> float:
            same = done == what and process.name.live == live
            return seconds if same and self.rng.random() < share else 0.0

        self.cluster.delays.append(extra)

    def slow_steps(self, seconds: float, *, live: bool) -> None:
        """Each record takes processes of the live version so long, or those of the next one."""
        self.cluster.faults["slow"] += 1
        step = Circuit.step

        def slow(circuit: Circuit, deltas: Mapping[str, ZSet], bound: Bound | None = None) -> Any:
            [process] = [one for one in self.cluster.processes if one.fiber.running]
            if process.name.live == live:
                process.sleep(seconds * sum(map(len, deltas.values())))
            return step(circuit, deltas, bound)

        self.enter(patch.object(Circuit, "step", slow))

    def lose(self, what: str, *, times: int) -> None:
        """The next answers to requests of one kind are lost, and some of the requests too."""
        left = times

        def lost(process: Process, done: str) -> bool:
            nonlocal left
            if done != what or not left:
                return False
            left -= 1
            return True

        self.cluster.losses.append(lost)

    def repeat(self, kind: str) -> None:
        """Commands of one kind come once more, some time later."""
        self.cluster.repeated[kind] = lambda: self.rng.uniform(0.0, 5.0)

    def move(self) -> None:
        """Another node hosts; the old processes do not know it for a while."""
        for process in self.cluster.move():
            self.world.call_later(self.rng.uniform(0.0, 2.0), process.kill)

    def forget_holds(self) -> None:
        """The holds run out."""
        for _, log in self.cluster.inputs():
            log.holds.clear()

    def trim(self, topic: str) -> None:
        """Retention deletes all there is of a topic."""
        for (name, _), log in self.cluster.inputs():
            if name == topic:
                log.trim(log.end)

    def weather(self) -> None:
        """From here on requests are slow, answers are lost, commands come twice, the store fails."""
        cluster, rng = self.cluster, self.world.rng("weather")
        cluster.delays.append(lambda *_: rng.random() * 0.5 if rng.random() < 0.05 else 0.0)
        cluster.answer_delays.append(lambda *_: rng.random() * 0.5 if rng.random() < 0.05 else 0.0)
        cluster.losses.append(lambda *_: rng.random() < 0.03)
        cluster.lag_seconds = rng.choice((0.02, 0.3))
        cluster.store.lost = cluster.store.refused = 0.03
        for kind in (
            "CutOverViews",
            "PauseViews",
            "ViewsPaused",
            "ResumeViews",
            "StartViewWorker",
            "CancelViews",
        ):
            cluster.repeated[kind] = lambda: rng.uniform(0.0, 20.0) if rng.random() < 0.2 else -1.0

    def calm(self) -> None:
        """All that is over."""
        cluster = self.cluster
        cluster.delays.clear()
        cluster.answer_delays.clear()
        cluster.losses.clear()
        cluster.lag_seconds = 0.02
        cluster.store.lost = cluster.store.refused = 0.0
        cluster.repeated.clear()
        for process in cluster.processes:
            if process.fiber.hung:
                process.fiber.wake()

    def anything(self, versions: Sequence[Mapping[str, str]]) -> None:
        """One thing that may happen."""
        cluster, rng = self.cluster, self.rng
        cluster.may_end = True
        match rng.randrange(9):
            case 0 | 1:
                cluster.apply(wanted(rng.choice(versions)))
            case 2:
                self.kill(live=rng.random() < 0.5)
            case 3:
                self.move()
            case 4:
                self.compact()
            case 5:
                process = cluster.running(live=rng.random() < 0.5)
                if process is not None:
                    cluster.faults["hung"] += 1
                    process.fiber.hang()
                    self.world.call_later(rng.uniform(0.0, 3.0), process.fiber.wake)
            case 6:
                cluster.lose_next(rng)
            case 7:
                program = cluster.machine.view_programs.get(PROGRAM)
                if program is not None and program.live is not None and not program.stopped:
                    cluster.may_stop = True
                    self.stop_live()
            case _:
                self.sell(rng.randint(1, 20))

    # The end.

    def look_for_remains(self) -> None:
        """Nothing is left of a program that was dropped."""
        cluster = self.cluster
        cluster.look_for_remains()
        cluster.sweep()
        if left := cluster.store.keys("views/"):
            cluster.broken("nothing is left", f"object {left[0]}")
        for place, log in cluster.inputs():
            if log.holds:
                cluster.broken("nothing is left", f"{place} is held for {sorted(log.holds)}")

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
            if program.ended and not cluster.may_end:
                cluster.broken("comes to its end", f"the attempt ended: {program.ended}")
            if program.stopped and not cluster.may_stop:
                cluster.broken("comes to its end", f"the live version stopped: {program.stopped}")
            if not program.stopped:
                cluster._look(program.live.views, cluster.live_cut, program.live.attempt)
        cluster.look_for_remains()
