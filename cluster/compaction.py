"""Compaction as all nodes together report it: each partition once, with its leader's view and all local logs.

A node tells of its own local log; what holds removal back is known to the leader. Two nodes may both believe
that they lead: the one with the higher term is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from strandline.cluster import node_answers
from strandline.cluster.node_answers import NodeAnswers
from strandline.cluster.output import plural

HELD: Final = ("tombstones_held", "markers_held")
SILENT_SECONDS: Final = 10.0
"""Replicas report to a new leader within a second or two, and most transactions end sooner."""
LONG_SECONDS: Final = 120.0
"""Work on one log has ended, or failed, long before: a step of a round rests for 10 s at most."""
MAX_PROBLEMS: Final = 20
"""Failing local logs that are told one by one."""
_TOLD: Final = {"node", "logs", "resets", "entries", "clock_trusted", "failing_count", "failing"}


@dataclass(slots=True)
class CompactedPartition:
    """One compacted partition."""

    topic: str
    number: int
    leads: int | None = None
    """Node of the leader, of those that answered."""
    state: dict[str, Any] = field(default_factory=dict)
    """Its row of the leader; without one, of the replica with the highest offsets of removal."""
    locals: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By node, the local log there."""
    due: dict[int, bool] = field(default_factory=dict)
    """By node, whether the local log there is to be filled or cleaned."""

    @property
    def leader(self) -> dict[str, Any] | None:
        """The leader's view of all copies."""
        found: dict[str, Any] | None = self.state["leader"]
        return found

    @property
    def held_seconds(self) -> float:
        """For how long removal of tombstones or markers has been held back by what is to be done; without a
        leader, for ever."""
        if self.leader is None:
            return float("inf")
        held = [one for what in HELD if (one := self.leader[what]) is not None and self.is_due(one)]
        if self.lasting_transaction is not None:
            held.append(self.lasting_transaction)
        return max((one["seconds"] for one in held), default=0.0)

    def is_due(self, held: dict[str, Any]) -> bool:
        """Whether one of these copies has something to do.

        Otherwise all are as clean as the topic's settings ask for: they wait for further records.
        """
        for node in held["nodes"]:
            if node in self.silent or self.due.get(node, True) or self.locals[node]["problem"]:
                return True
        return bool(held["level_one"]) and self._publishes()

    @property
    def lasting_transaction(self) -> dict[str, Any] | None:
        """The open transaction behind which nothing is decided, if it has been open for long."""
        found: dict[str, Any] | None = None if self.leader is None else self.leader.get("open_transaction")
        return None if found is None or found["seconds"] <= SILENT_SECONDS else found

    @property
    def without_log(self) -> set[int]:
        """Nodes that tell that their local log is not open, or is to be made again."""
        return {node for node, local in self.locals.items() if local["mcco"] is None}

    def causes(self, what: str) -> list[str]:
        """In words, what keeps all copies from going on with `what`.

        A hold keeps records, and no markers.
        """
        found = []
        if (opened := self.lasting_transaction) is not None:
            found.append(
                f"transaction of producer {opened['producer_id']}, open at {opened['first_offset']:,},"
                f" {span(opened['seconds'])}"
            )
        end = None if self.leads is None else self.locals[self.leads]["log_end"]
        lowest = min(self.state["holds"], key=lambda one: one["offset"], default=None)
        if what == "tombstones" and lowest is not None and end is not None and lowest["offset"] < end:
            found.append(f"reader {lowest['reader']} at {lowest['offset']:,}")
        return found

    @property
    def silent(self) -> set[int]:
        """Nodes of the replicas that have not reported to the leader."""
        copies = [] if self.leader is None else self.leader["copies"]
        return {copy["node"] for copy in copies if copy["node"] is not None and copy["mcco"] is None}

    def _publishes(self) -> bool:
        """Whether the leader has, or will soon have, more for level one."""
        leader = self.leader
        if leader is None or self.leads is None or leader["publication_error"] is not None:
            return True
        clean_end = self.locals[self.leads]["clean_end"]
        level_one = next(copy["mcco"] for copy in leader["copies"] if copy["node"] is None)
        return self.due.get(self.leads, True) or clean_end is None or clean_end > level_one

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        state = {name: value for name, value in self.state.items() if name not in ("local", "due", "leader")}
        logs = [{"node": node, "due": self.due[node], **self.locals[node]} for node in sorted(self.locals)]
        return {**state, "leading_node": self.leads, "leader": self.leader, "local_logs": logs}


def ask(addresses: Sequence[str], topic: str | None) -> list[NodeAnswers]:
    """Every node's status and partitions; CommandFailed when none answers."""
    return node_answers.ask(addresses, "/api/compaction", _TOLD, topic)


def partitions(answers: Iterable[NodeAnswers]) -> list[CompactedPartition]:
    """Every partition once, the longest held back first."""
    found: dict[int, CompactedPartition] = {}
    for answer in answers:
        for row in answer.partitions:
            known = found.setdefault(
                row["group"], CompactedPartition(row["topic"], row["partition"], state=row)
            )
            known.locals[answer.status["node"]] = row["local"]
            known.due[answer.status["node"]] = row["due"]
            if _rank(row) > _rank(known.state) or known.state is row:
                known.state = row
                known.leads = None if row["leader"] is None else answer.status["node"]
    return sorted(found.values(), key=lambda one: (-one.held_seconds, one.topic, one.number))


def _rank(row: dict[str, Any]) -> tuple[int, int, int]:
    return (-1 if row["leader"] is None else row["leader"]["term"], row["mtro"], row["mxro"])


def held_by(one: CompactedPartition, what: str) -> str:
    """In words, the copies that hold back the removal of `what`, tombstones or markers, and for how long.

    Of replicas that have not reported it says so. Behind the copies that have something to do comes what
    keeps all copies from going on. A copy may be behind for that, too: level one gets no part of an object.
    """
    leader, found = one.leader, one.causes(what)
    held = None if leader is None else leader[f"{what}_held"]
    due = held is not None and one.is_due(held)
    if held is not None and (due or not found):
        names = ["level one"] if held["level_one"] else []
        names += [f"node {node}{_lacks(one, node)}" for node in held["nodes"]]
        found.insert(0, f"{', '.join(names)}, {span(held['seconds']) if due else 'not due'}")
    return "; ".join(found) or "-"


def _lacks(one: CompactedPartition, node: int) -> str:
    if node in one.without_log:
        return " (no log)"
    return " (no report)" if node in one.silent else ""


def span(seconds: float) -> str:
    """A duration with its two largest units."""
    for size, unit, smaller, below in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} {seconds % size // smaller:.0f} {below}"
    return f"{seconds:.0f} s"


def resets(found: Iterable[CompactedPartition]) -> list[str]:
    """The last reset of each local log that was reset since its node's start, one line each."""
    return [
        f"node {node}: the local log of {one.topic}-{one.number} was reset{_ago(local)}: {local['reset_for']}"
        for one in found
        for node, local in sorted(one.locals.items())
        if local["reset_for"] is not None
    ]


def _ago(local: dict[str, Any]) -> str:
    """Nodes of an earlier release do not tell it, as they do not tell of transactions and lifting."""
    seconds = local.get("reset_seconds")
    return "" if seconds is None else f" {span(seconds)} ago"


_BEING: Final = {
    "keep": "opened or changed", "fill": "filled", "clean": "cleaned", "publish": "published"
}  # fmt: skip


def problems(answers: Iterable[NodeAnswers], found: Iterable[CompactedPartition]) -> list[str]:
    """Problems for an operator, one line each."""
    told = []
    for answer in answers:
        if answer.problem is not None:
            told.append(f"{answer.address} does not answer: {answer.problem}")
            continue
        node = answer.status["node"]
        if not answer.status["clock_trusted"] and any(one.leads == node for one in found):
            told.append(
                f"node {node}: no majority of the nodes agrees on the time, so no tombstone ripens in what it"
                " leads: check that the nodes reach each other and that their clocks are right"
            )
        told += [
            f"node {node}: local log of {work['topic']}-{work['partition']}: it is being"
            f" {_BEING[work['work']]} for {span(work['seconds'])} already: check that node.data's disk and"
            " the object store answer"
            for work in answer.status.get("under_way", ())
            if work["seconds"] > LONG_SECONDS
        ]
    failing = []
    silent: Counter[int] = Counter()
    for one in found:
        name = f"{one.topic}-{one.number}"
        for node, local in one.locals.items():
            if local["problem"] is not None:
                failing.append(f"node {node}: local log of {name}: {local['problem']}")
        if one.leader is None:
            continue
        held = [each for what in HELD if (each := one.leader[what]) and each["seconds"] > SILENT_SECONDS]
        silent.update({node for each in held for node in each["nodes"]} & one.silent - one.without_log)
        if one.leader["error"] is not None:
            failing.append(f"{name}: the last entry of its leader: {one.leader['error']}")
        if (lifting := one.leader.get("lifting_error")) is not None:
            failing.append(f"{name}: records do not come into level one: {lifting}")
        if one.leader["publication_error"] is not None:
            failing.append(f"{name}: level one is not published: {one.leader['publication_error']}")
    for node, count in sorted(silent.items()):
        told.append(
            f"node {node} does not report to the leaders of {plural(count, 'partition')}, whose deletions"
            " wait for it: start it, or see in `strandline cluster status` what it lacks; if its disk is"
            f" lost, start it on an empty folder, then `strandline node replace {node}`"
        )
    told += failing[:MAX_PROBLEMS]
    if len(failing) > MAX_PROBLEMS:
        told.append(f"and {len(failing) - MAX_PROBLEMS:,} more like these")
    return told
