"""A node with a store that misbehaves on request, and replicas that record and publish for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from strandline.node.checkpoints import checkpoint_pruning
from strandline.node.checkpoints.publisher import CheckpointPublisher, PublisherLimits
from strandline.node.checkpoints.recorder import CheckpointPlace, CheckpointRecorder, TailBudget
from strandline.statemachine.partition.partition import PartitionStateMachine
from strandline.statemachine.partition.partition_commands import (
    AppendInline,
    Checkpoint,
    Command,
    CommandResult,
    encode,
)
from strandline.statemachine.partition.placeholder import InlineBatch
from strandline.statemachine.partition.rejection import Rejected
from tests.level_zero.samples import started
from tests.simulation.node import SimNode
from tests.simulation.store import SimStore
from tests.simulation.world import World

CLUSTER = "harbour"
GROUP = 7
VOTERS = (1, 2, 3)
LIMITS = PublisherLimits(max_bytes=100_000, max_uploads=2, first_delay_seconds=0.5, max_delay_seconds=4.0)


@contextmanager
def world(seed: int = 1) -> Iterator[World]:
    with World(seed) as made:
        yield made


def publisher(node: SimNode, store: SimStore, limits: PublisherLimits = LIMITS) -> CheckpointPublisher:
    return CheckpointPublisher(
        store.client(node),
        node.id,
        loop=node.loop,
        executor=node.executor,
        rng=store._rng,
        limits=limits,
    )


class Replica:
    """A partition's replica: its machine, and the recorder that is told of each entry first."""

    def __init__(
        self,
        to: CheckpointPublisher,
        budget: TailBudget | None = None,
        *,
        group: int = GROUP,
        place: Callable[[int], CheckpointPlace] | None = None,
    ) -> None:
        self.index = self.term = 0
        self.now_ms = 1_000
        self.result: CommandResult | None = None
        self.budget = budget or TailBudget()
        self.recorder = CheckpointRecorder(
            cluster=CLUSTER,
            kind="partition",
            group=group,
            place=place or (lambda index: CheckpointPlace(self.term, VOTERS, ())),
            publisher=to,
            budget=self.budget,
        )
        self.machine = PartitionStateMachine(1, self.recorder.checkpoint)

    def begin_term(self, term: int) -> None:
        self.index += 1
        self.term = term
        self.recorder.begin_term(self.index, term, 1)
        self.machine.begin_term(self.index, term, 1)

    def apply(self, command: Command) -> int:
        """Apply one command as the next entry; returns its index."""
        return self.apply_entry(encode(self.term, self.now_ms, [command]))

    def apply_entry(self, entry: bytes) -> int:
        self.index += 1
        self.recorder.applied(self.index, self.term, entry)
        answers = self.machine.apply(self.index, self.term, entry)
        self.result = answers if isinstance(answers, Rejected) else answers[0]
        return self.index

    def write(self, data: bytes = b"batch") -> int:
        return self.apply(AppendInline([InlineBatch(1, 1_000, data)]))

    def checkpoint(self) -> int:
        return self.apply(Checkpoint(60_000))

    def restore(self, index: int, state: bytes) -> None:
        self.index = index
        self.machine.restore(state)
        self.term = self.machine.term
        self.recorder.restored()


def node_and_store(made: World, node: int = 1) -> tuple[SimNode, SimStore]:
    return started(made, node), SimStore(made)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept by count goes with the checkpoint that makes it dispensable, as it does after a while."""
    monkeypatch.setattr(checkpoint_pruning, "SETTLING_SECONDS", 0.0)
