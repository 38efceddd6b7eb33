"""Processes of views, and nodes, killed for minutes while programs change: is each view what its SQL says?

    scripts/views-kills --minutes 20

Three nodes. Rows come, change and go. Every few seconds one of these is drawn: the process of a live version
or of one that is filled is killed, a node is killed and started again a moment later, another version of the
program is applied (a view is added, changed, renamed or dropped), a filling is cancelled. Restore points are
taken all the time, and one at the end. At each of them Spark SQL and DuckDB work every program out over its
inputs, beside the run, and DuckDB once more at the end for the views' topics as a client reads them. A reader
looks for a change that is told twice.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient as KafkaAdmin
from confluent_kafka.cimpl import NewTopic

from strandline.cluster.admin_client import AdminClient, Unreachable, first_answer
from strandline.cluster.failure import CommandFailed
from strandline.cluster.kafka_client import client_config
from strandline.cluster.local import LocalCluster
from strandline.cluster.ports import free_ports
from strandline.snapshot.spark.audits import ClusterStorage
from strandline.snapshot.storage import open_storage
from strandline.snapshot.views.sql.programs import program_of
from strandline.statemachine.views.identity import digest
from tests.programs.views_kills.clients import Sales, read
from tests.programs.views_kills.cuts import Compared, Cuts
from tests.programs.views_kills.programs import another, expected, queries_of, text_of

PROGRAM: Final = "shops"
CUTS_A_MINUTE: Final = 0.5
"""As many are to be compared at least: ten in 20 minutes."""
CUT_SECONDS: Final = 6.0
"""Between two cuts, at least; the next one is taken once that before is compared."""
SETTINGS: Final = ("topics.auto_create=false", "checkpoints.keep=100")
"""Restore points go with the documents that they name: all cuts are to be there at the end."""
STEP_SECONDS: Final = 4.0
"""Between two things that happen, on average."""
AWAY_SECONDS: Final = 3.0
"""A node that was killed begins again after this, on average."""
SETTLE_SECONDS: Final = 120.0
REQUEST_SECONDS: Final = 40.0


@dataclass
class Outcome:
    """What a run did and found."""

    seconds: float = 0.0
    changes: int = 0
    done: Counter[str] = field(default_factory=Counter)
    cutovers: int = 0
    wanted: int = 1
    """Cuts that are to be compared at least."""
    cuts: int = 0
    """Of which every view was compared, by Spark SQL and by DuckDB."""
    compared: int = 0
    rows: int = 0
    differ: int = 0
    """Rows that are not those of Spark SQL, and views that are not DuckDB's, at all cuts."""
    wrong: int = 0
    """Views that are not DuckDB's at the end."""
    twice: int = 0
    """Changes that a reader was told twice."""
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Why a view could not be compared at a cut."""

    @property
    def good(self) -> bool:
        return not (self.differ or self.wrong or self.twice or self.problems) and self.cuts >= self.wanted


class Run:
    """One cluster in a folder."""

    def __init__(self, folder: Path, minutes: float, seed: int) -> None:
        self.outcome = Outcome()
        self._cluster = LocalCluster(folder)
        self._seconds = minutes * 60
        self._seed = seed
        self._chance = random.Random(seed)
        self._views = {"totals": "totals", "cities": "cities"}
        self._away: dict[int, float] = {}
        self._cuts: Cuts | None = None
        self.outcome.wanted = max(1, round(minutes * CUTS_A_MINUTE))

    def go(self) -> Outcome:
        """All of it; nothing runs any more."""
        began = time.monotonic()
        self._cluster.up(3, choose_ports=free_ports, settings=SETTINGS)
        try:
            self._all()
        except (CommandFailed, KafkaException, Unreachable, TimeoutError, OSError) as error:
            self.outcome.problems.append(f"{error!r}")
        finally:
            if self._cuts is not None:
                self._told(self._cuts.close())
            self._cluster.down()
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    def _all(self) -> None:
        bootstrap = self._cluster.description.bootstrap
        compacted = {"cleanup.policy": "compact"}
        topics = [NewTopic(name, 2, 3, config=compacted) for name in ("sales", "shops")]
        admin = KafkaAdmin(client_config(bootstrap))
        for made in admin.create_topics(topics).values():
            made.result(REQUEST_SECONDS)
        described = self._cluster.description
        self._cuts = Cuts(ClusterStorage(open_storage(described.storage), described.cluster))
        sales = Sales(bootstrap, self._seed)
        try:
            self._apply(self._views)
            self._until_live()
            self._kill_for_a_while(self._cuts)
        finally:
            sales.stop()
        self.outcome.changes = sales.count
        self._return(time.monotonic() + 3600)
        self._until_live()
        self._compare(sales)
        self._cut(self._cuts)

    def _kill_for_a_while(self, cuts: Cuts) -> None:
        began = cut = time.monotonic()
        while time.monotonic() < began + self._seconds:
            time.sleep(self._chance.expovariate(1 / STEP_SECONDS))
            self._return(time.monotonic())
            with suppress(Unreachable, CommandFailed):
                self._one()
            if time.monotonic() > cut + CUT_SECONDS and cuts.idle and not self._away:
                cut = time.monotonic()
                self._cut(cuts)

    def _one(self) -> None:
        """One thing that happens."""
        chance = self._chance.random()
        if chance < 0.4:
            self._kill_process(live=self._chance.random() < 0.5)
        elif chance < 0.5 and not self._away:
            node = self._chance.choice([*self._cluster.description.nodes])
            self._cluster.kill(node)
            self._away[node] = time.monotonic() + self._chance.expovariate(1 / AWAY_SECONDS)
            self.outcome.done["nodes killed"] += 1
        elif chance < 0.9:
            self._apply(another(self._views, self._chance))
        else:
            with suppress(CommandFailed):  # nothing is being filled
                self._ask("POST", "/api/views/cancel", {"program": PROGRAM})
                self.outcome.done["cancelled"] += 1

    def _return(self, now: float) -> None:
        for node in [node for node, at in self._away.items() if at <= now]:
            del self._away[node]
            self._cluster.start(node)

    def _kill_process(self, *, live: bool) -> None:
        for one in self._running():
            if one["live"] is live and one["process"]:
                with suppress(ProcessLookupError):
                    os.kill(int(one["process"]), signal.SIGKILL)
                    self.outcome.done["live processes killed" if live else "filling processes killed"] += 1

    def _apply(self, views: Mapping[str, str]) -> None:
        text = text_of(views)
        plan = program_of(text)
        body = {
            "program": PROGRAM,
            "text": text,
            "inputs": ["sales", "shops"],
            "views": [
                {"view": one.name, "topic": one.topic, "partitions": 1, "sink": digest(one.sink)}
                for one in plan.views
                if one.sink is not None
            ],
        }
        self._ask("POST", "/api/views", body)
        self._views = dict(views)
        self.outcome.done["applied"] += 1

    def _until_live(self) -> None:
        """Wait until nothing is filled any more, and the live version goes on."""
        end = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < end:
            with suppress(Unreachable, CommandFailed):
                [program] = self._ask("GET", "/api/views", None)["programs"]
                if program["stopped"]:
                    raise TimeoutError(f"the program stopped: {program['stopped']}")
                if program["next"] is None and program["live"] is not None:
                    self.outcome.cutovers = program["live"]["number"]
                    return
            time.sleep(0.2)
        raise TimeoutError(f"no version is live after {SETTLE_SECONDS:g} s")

    def _compare(self, sales: Sales) -> None:
        """The views' topics against DuckDB, once they have come to the end."""
        [program] = self._ask("GET", "/api/views", None)["programs"]
        wanted = program_of(program["live"]["text"])
        named = queries_of(program["live"]["text"])
        queries = {str(view.topic): named[view.name] for view in wanted.views}
        bootstrap = self._cluster.description.bootstrap
        tables = {}
        for topic, model in (("sales", sales.sales), ("shops", sales.shops)):
            rows, _ = read(bootstrap, topic, 2)
            tables[topic] = {key.decode(): row for key, row in rows.items()}
            if tables[topic] != model and not sales.refused:
                self.outcome.problems.append(f"topic {topic} is not what was acknowledged")
        self.outcome.done["records refused"] = len(sales.refused)
        for topic, query in queries.items():
            end = time.monotonic() + SETTLE_SECONDS
            right = expected(tables["sales"], tables["shops"], query)
            while True:
                table, twice = read(self._cluster.description.bootstrap, topic)
                there = {tuple(row.values()) for row in table.values()}
                if there == right or time.monotonic() > end:
                    break
            self.outcome.twice += twice
            self.outcome.wrong += there != right
            if there != right:
                shown = sorted(there ^ right, key=str)[:3]
                self.outcome.problems.append(f"view {topic} ({query}) differs from DuckDB: {shown}")

    def _cut(self, cuts: Cuts) -> None:
        """Take a restore point, and have it compared."""
        end = time.monotonic() + REQUEST_SECONDS
        while time.monotonic() < end:
            with suppress(Unreachable, CommandFailed):
                told = self._ask("POST", "/api/checkpoints", {"timeout_seconds": 20.0})
                if told.get("restore_point") is not None:
                    self.outcome.done["cuts taken"] += 1
                    cuts.add(int(told["restore_point"]))
                    return
            time.sleep(0.5)

    def _told(self, found: Compared) -> None:
        outcome = self.outcome
        outcome.cuts, outcome.compared, outcome.rows = found.cuts, found.views, found.rows
        outcome.differ = found.differ
        outcome.problems += found.problems[:20]
        outcome.done["remarks"] = len(found.remarks)
        outcome.remarks = found.remarks[:10]

    def _running(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for node in self._cluster.description.nodes.values():
            with suppress(Unreachable):
                found += AdminClient(node.admin).request("GET", "/api/views").body["running"]
        return found

    def _ask(self, method: str, path: str, body: Any) -> Any:
        addresses: Sequence[str] = [node.admin for node in self._cluster.description.nodes.values()]
        return first_answer(addresses, method, path, body, timeout=REQUEST_SECONDS)


def main(arguments: list[str]) -> int:
    """Exits 1 when a view was wrong, or the run could not end."""
    parser = argparse.ArgumentParser(prog="scripts/views-kills", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="views-kills-") as folder:
        outcome = Run(Path(folder) / "cluster", given.minutes, given.seed).go()
    if given.json:
        print(json.dumps({"ok": outcome.good, **vars(outcome)}))
        return 0 if outcome.good else 1
    done = ", ".join(f"{what} {count}" for what, count in sorted(outcome.done.items()))
    print(f"{outcome.changes:,} changes; {done}; version {outcome.cutovers} is live")
    print(f"{outcome.cuts} cuts, {outcome.compared} views, {outcome.rows:,} rows: {outcome.differ} differ")
    for remark in outcome.remarks:
        print(f"- not compared: {remark}")
    for problem in outcome.problems:
        print(f"- FAILED: {problem}")
    word = "ok" if outcome.good else "failed"
    print(
        f"views-kills {word}: {outcome.seconds:g} s, {outcome.wrong} wrong at the end, "
        f"{outcome.twice} told twice"
    )
    return 0 if outcome.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
