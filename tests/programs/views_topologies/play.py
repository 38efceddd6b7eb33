"""One topology, played on a cluster and judged."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from strandline.cluster.admin_client import Unreachable
from strandline.cluster.failure import CommandFailed
from strandline.cluster.local import LocalCluster
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.controller.view_state import group_name
from strandline.statemachine.views.identity import digest
from tests.programs.views_topologies import judge
from tests.programs.views_topologies.clients import Reader, Writer
from tests.programs.views_topologies.judge import Note
from tests.programs.views_topologies.nodes import LOOK_SECONDS, WAIT_SECONDS, Nodes, until
from tests.programs.views_topologies.tables import Place, Tables, cut_of
from tests.programs.views_topologies.topologies import COLUMNS, Expected, Topology, Views, text_of

FIRST_ROWS: Final = 600
FLOW_SECONDS: Final = 1.0
"""Before and after the second version is applied."""
HIDDEN: Final = "__view."
FILLING_DOTS: Final = group_name("p", 1, 1).count(".")


@dataclass
class Outcome:
    """What one topology came to."""

    name: str
    views: int = 0
    transactions: int = 0
    looks: int = 0
    """Times that clients were asked for topics while the second version was filled."""
    pause: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


class Play:
    """One topology."""

    def __init__(self, cluster: LocalCluster, notes: Path, number: int, topology: Topology) -> None:
        self.outcome = Outcome(topology.name)
        self._topology = topology
        self._prefix = f"t{number}_"
        self._program = f"topology{number}"
        self._notes = notes
        described = cluster.description
        self._bootstrap = described.bootstrap
        self._nodes = Nodes(described, self._program)
        self._inputs = [self._prefix + table for table in COLUMNS]
        self._writer = Writer(self._bootstrap, self._prefix, number, skewed=topology.skewed)

    def go(self) -> Outcome:
        """All of it."""
        began, topology = time.monotonic(), self._topology
        try:
            self._create()
            if not topology.empty:
                self._writer.some(FIRST_ROWS)
            first = self._apply(topology.before)
            until("the first version is live", lambda: self._nodes.is_live(first))
            self._nodes.keep_all(self._topics(topology.before))
            self._fill_beside(first)
        except (CommandFailed, KafkaException, Unreachable, TimeoutError, ValueError) as error:
            self.outcome.problems.append(f"{type(error).__name__}: {error}")
        finally:
            with suppress(CommandFailed):
                self._writer.stop()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _fill_beside(self, first: int) -> None:
        topology = self._topology
        readers = {view: self._reader(view) for view in shown(topology.before)}
        if not topology.empty:
            self._writer.start()
        self._flow(readers)
        second = self._apply(topology.after)
        if topology.same and (second != first or any(one["next"] for one in self._nodes.programs())):
            self.outcome.problems.append("a version is filled although nothing differs")
        self._watch(second, readers)
        until("all nodes know of the cutover", lambda: self._nodes.is_live(second))
        self._nodes.keep_all(self._topics(topology.after))
        if topology.empty:
            self._writer.start()
        self._flow({})
        self._writer.stop()
        self._settle(second)
        self._told_pause(first, second)
        self._compare(first, second, readers)
        self._writer.take_all_back()
        self._settle(second)
        self._nothing(second)
        self._drop()

    # What is done.

    def _create(self) -> None:
        config = {"cleanup.policy": "compact", "delete.retention.ms": "1000"}
        if self._topology.cleaned:
            config["min.cleanable.dirty.ratio"] = "0.0"
        self._nodes.create(self._inputs, config)

    def _apply(self, views: Views) -> int:
        return self._nodes.apply(text_of(views, self._prefix))

    def _topics(self, views: Views) -> list[str]:
        return [self._prefix + view for view in shown(views)]

    def _flow(self, readers: Mapping[str, Reader]) -> None:
        end = time.monotonic() + FLOW_SECONDS
        while time.monotonic() < end:
            for reader in readers.values():
                reader.read(LOOK_SECONDS)
            time.sleep(LOOK_SECONDS)

    def _watch(self, second: int, readers: Mapping[str, Reader]) -> None:
        """Until the cutover: no client is told of what is filled."""
        fresh = {*self._topics(self._topology.after)} - {*self._topics(self._topology.before)}
        end = time.monotonic() + WAIT_SECONDS
        while True:
            told = self._nodes.told()
            for reader in readers.values():
                reader.read()
            # A node that told a name has applied the cutover by then; another one may not have.
            programs = self._nodes.programs()
            if any(one["live"]["attempt"] == second for one in programs):
                return
            self.outcome.looks += 1
            for reader in readers.values():
                reader.is_sure()
            if early := sorted(told & fresh):
                self.outcome.problems.append(f"a client was told of {early} before the cutover")
            if hidden := sorted(name for name in told if name.startswith(HIDDEN)):
                self.outcome.problems.append(f"a client was told of {hidden}")
            for program in programs:
                if program["ended"] or program["stopped"]:
                    raise CommandFailed(f"{program['ended']} {program['stopped']}", "see the nodes' logs")
            if time.monotonic() > end:
                raise TimeoutError(f"no cutover within {WAIT_SECONDS:g} s")

    def _settle(self, attempt: int) -> None:
        """Until the live version has committed all that was written."""
        ends = self._writer.ends()

        def done() -> bool:
            noted = [note for note in self._noted() if note.attempt == attempt and note.live]
            cut: dict[Place, int] = cut_of(noted[-1].cut) if noted else {}
            return all(cut[place] >= end for place, end in ends.items() if place in cut) and bool(cut)

        until("all that was written is committed", done)

    def _told_pause(self, first: int, second: int) -> None:
        for one in self._nodes.running():
            self.outcome.pause = one["status"].get("pause_seconds", self.outcome.pause)
            self.outcome.parts = one["status"].get("pause_parts", self.outcome.parts)
        if self.outcome.pause is None and first != second:
            self.outcome.problems.append("no pause is told")

    def _drop(self) -> None:
        self._nodes.drop()
        until("nothing is held for it", lambda: not self._nodes.holds(self._inputs))
        left = [name for name in self._nodes.topics() if self._is_views(name)]
        if left:
            self.outcome.problems.append(f"topics of it are left: {left}")
        until("no process of it is left", lambda: not self._nodes.running())

    # What is looked at.

    def _compare(self, first: int, second: int, readers: Mapping[str, Reader]) -> None:
        """Each transaction of each view against DuckDB at its cut."""
        topology, notes = self._topology, self._noted()
        sinks = {
            version: {
                one.name: digest(one.sink)
                for one in program_of(text_of(views, self._prefix)).views
                if one.sink
            }
            for version, views in ((1, topology.before), (2, topology.after))
        }
        for view in shown(topology.after):
            reader = self._reader(view)
            reader.to_the_end()
            old = topology.renamed.get(view, view)
            kept = sinks[1].get(old) == sinks[2][view]
            series = judge.spoken(notes, first, second) if kept else judge.spoken(notes, second)
            self._judge(view, topology.after, series, reader)
            reader.close()
        for view, reader in readers.items():
            stays = sinks[1][view] == sinks[2].get(view)
            if stays:
                reader.to_the_end()
            else:
                # The topic of a view that changed or was dropped is gone.
                pairs = zip(reader.told, reader.sure, strict=True)
                reader.told = [transactions[:count] for transactions, count in pairs]
            series = judge.spoken(notes, first, second if stays else None)
            self._judge(view, topology.before, series, reader, ended=stays)
            reader.close()

    def _judge(
        self, view: str, views: Views, series: Sequence[Note], reader: Reader, *, ended: bool = True
    ) -> None:
        tables = Tables(self._writer.written, self._prefix, [*COLUMNS])
        expected = Expected(views, tables)

        def states() -> Any:
            for note in series:
                tables.come_to(cut_of(note.cut))
                expected.load()
                yield expected.rows(view)

        wanted = judge.changes(states())
        found = judge.problem(wanted, reader.told, ended=ended)
        self.outcome.views += 1
        self.outcome.transactions += sum(map(len, reader.told))
        if not wanted or not any(reader.told):
            found = found or "nothing was compared"
        if found:
            self.outcome.problems.append(f"view {view}: {found}")

    def _nothing(self, second: int) -> None:
        """All rows are taken back: what is left?"""
        for view in shown(self._topology.after):
            reader = self._reader(view)
            reader.to_the_end()
            rows = {key: row for told in reader.told for change in told for key, row in change.items()}
            reader.close()
            left = {key: row for key, row in rows.items() if row is not None}
            if left and not (self._topology.constant and left == {(): {"n": 0, "amount": None}}):
                self.outcome.problems.append(f"view {view} still has {len(left)} rows: {[*left.items()][:2]}")
        digests = [note for note in self._noted() if note.attempt == second][-1].digests
        left_over = [name[:12] for name, value in digests.items() if int(value, 16)]
        if not digests or (left_over and not self._topology.constant):
            self.outcome.problems.append(f"operators that keep something: {left_over}")
        until("what was held for the filling is let go", lambda: not self._held_for_filling())
        if hidden := [name for name in self._nodes.topics() if name.startswith(HIDDEN)]:
            self.outcome.problems.append(f"hidden topics are left: {hidden}")

    def _held_for_filling(self) -> bool:
        """A filling's group has its attempt in its name, the live version's has not."""
        return any(one.count(".") == FILLING_DOTS for one in self._nodes.holds(self._inputs))

    def _reader(self, view: str) -> Reader:
        return Reader(self._bootstrap, self._prefix + view)

    def _noted(self) -> list[Note]:
        with open(self._notes, "rb") as file:
            notes = [Note(**json.loads(line)) for line in file if line.endswith(b"\n")]
        return [note for note in notes if note.program == self._program]

    def _is_views(self, name: str) -> bool:
        return name.startswith(HIDDEN) or (name.startswith(self._prefix) and name not in self._inputs)


def shown(views: Views) -> list[str]:
    """Views that have a topic."""
    return [name for name in views if not name.startswith("local_")]
