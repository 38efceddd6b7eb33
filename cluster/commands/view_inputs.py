"""The inputs of a program of views on a cluster: their topics, and how many records a filling would read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from strandline.cluster.admin_client import first_answer
from strandline.cluster.failure import MISUSED, CommandFailed
from strandline.cluster.output import plural
from strandline.cluster.target import Target

if TYPE_CHECKING:
    from strandline.statemachine.views.program import Program

RATE: Final = 50_000
"""Records a second that a process is taken to fill with: its status tells the rate that it really has."""


class Estimate(NamedTuple):
    """The records that a filling would read."""

    records: int
    """Offsets between the beginnings and the ends of the inputs' partitions: at most so many records."""
    topics: int
    needed: bool
    """Whether there is anything to fill."""

    @property
    def seconds(self) -> float:
        """At RATE."""
        return self.records / RATE

    @property
    def shown(self) -> str:
        """One line."""
        if not self.needed:
            return "nothing is to be filled"
        return (
            f"to be read: {self.records:,} records of {plural(self.topics, 'topic')}, about "
            f"{self.seconds:,.0f} s at {RATE:,} a second"
        )


def inputs(program: Program) -> list[str]:
    """The topics that a program's views read."""
    from strandline.statemachine.views.plan import Source

    return sorted({plan.topic for plan in program.operators().values() if isinstance(plan, Source)})


def live_text(addresses: tuple[str, ...], name: str) -> str | None:
    """The text of a program's live version; None where it has none, or has stopped: then all is filled."""
    for program in first_answer(addresses, "GET", "/api/views")["programs"]:
        if program["name"] == name and program["live"] is not None and not program["stopped"]:
            return str(program["live"]["text"])
    return None


def check_compacted(addresses: tuple[str, ...], program: Program) -> None:
    """Raise CommandFailed for an `upsert` table whose topic loses rows otherwise than by key.

    A topic that is not there is the controller's to refuse.
    """
    from strandline.statemachine.views.plan import Upsert

    for plan in program.operators().values():
        if isinstance(plan, Upsert):
            [name] = _topics_below(plan)
            topic = _topic(addresses, name)
            policy = None if topic is None else topic["configs"].get("cleanup.policy", "delete")
            if policy is not None and policy != "compact":
                cause = (
                    f"NOT_COMPACTED {name}: its table's mode is 'upsert', and retention would take rows from "
                    f"the topic that stay in views: its cleanup.policy is {policy}"
                )
                cure = (
                    f"`strandline topic alter {name} --config cleanup.policy=compact`, or use mode 'append'"
                )
                raise CommandFailed(cause, cure, MISUSED)


def estimate(where: Target, program: Program, *, needed: bool) -> Estimate:
    """Count what a filling would read; raises CommandFailed."""
    # confluent-kafka takes a moment to import, which a plan of files alone should not pay for.
    from strandline.cluster.group_client import AssignedPartition, Groups

    names = inputs(program)
    places = []
    for name in names:
        topic = _topic(where.admin, name)
        if topic is None:
            raise CommandFailed(
                f"TOPIC_MISSING: there is no topic {name}", "create it, or correct the table's topic", MISUSED
            )
        places += [AssignedPartition(name, number) for number in range(topic["partition_count"])]
    groups = Groups(where)
    first, end = (groups.found(places, (at, 0)) for at in ("beginning", "end"))
    return Estimate(sum(end[place] - first[place] for place in places), len(names), needed)


def _topics_below(plan: Any) -> set[str]:
    from strandline.statemachine.views.plan import Source, operators

    return {one.topic for one in operators(plan) if isinstance(one, Source)}


def _topic(addresses: tuple[str, ...], name: str) -> dict[str, Any] | None:
    try:
        return dict(first_answer(addresses, "GET", f"/api/topics/{quote(name, safe='')}"))
    except CommandFailed as failed:
        if "there is no topic" in str(failed):
            return None
        raise
