"""Periods of a node's background work, shortened: a run lasts seconds, and all of it has to come round in it.

What is configuration stands in the plan; these are constants of the product.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import inf
from unittest.mock import patch

from strandline.node.checkpoints import recorders, tail_pruning, tail_publishing
from strandline.node.controller import (
    balancer,
    controller_leader,
    controller_voters,
    joining,
    lost_disks,
    preferred_leaders,
)
from strandline.node.gc import collectable_epochs, collector, idle_epochs
from strandline.node.kafka.wire import message_loader
from strandline.node.kafka.wire.apis import Api
from strandline.node.level_one import reconciler, sweeper, topic_retention
from strandline.node.objectstore import hedging
from strandline.node.partition import inline_storing, partition
from strandline.node.runtime import rounds
from tests.simulation.all_of import all_of
from tests.simulation.whole.plan import Plan


def paced(plan: Plan) -> AbstractContextManager[None]:
    """To work at the plan's pace."""
    look = plan.look_seconds
    periods = (
        (controller_leader, "TICK_SECONDS", plan.tick_seconds),
        (rounds, "GRID_SECONDS", inf),
        (reconciler, "LOOK_SECONDS", look),
        (reconciler, "FIRST_RETRY_SECONDS", look),
        (reconciler, "MOST_RETRY_SECONDS", 4 * look),
        (sweeper, "LOOK_SECONDS", look),
        (sweeper, "FIRST_RETRY_SECONDS", look),
        (sweeper, "MOST_RETRY_SECONDS", 4 * look),
        (topic_retention, "LOOK_SECONDS", look),
        (idle_epochs, "LOOK_SECONDS", look),
        (collectable_epochs, "TELL_SECONDS", plan.tell_seconds),
        (collectable_epochs, "TELL_ALL_SECONDS", 10 * plan.tell_seconds),
        (inline_storing, "FIRST_RETRY_SECONDS", look),
        (inline_storing, "MOST_RETRY_SECONDS", 4 * look),
        (inline_storing, "LOAD_BATCHES", 6),
        (inline_storing, "TURN_BATCHES", 4),
        (inline_storing, "LOG_BYTES", 40_000),
        (collector, "FULL_SWEEP_SECONDS", 2.0),
        (collector, "MAX_PAUSE_SECONDS", 1.0),
        (recorders, "OPEN_BYTES", 3000),
        (tail_publishing, "STATES_EVERY", 3),
        (tail_pruning, "ABSENT_MS", 3000),
        (hedging, "PAUSE_SECONDS", 0.3),
        (hedging, "ENOUGH", 4),
        (hedging, "EARNED", 0.2),
        (hedging, "LEAST_SECONDS", 0.005),
        # A node imports each message once, within milliseconds: all are here.
        (message_loader, "APIS", dict[int, Api]()),
    )
    upheaval = (
        (controller_voters, "AWAY_SECONDS", 3.0),
        (balancer, "PAUSE_SECONDS", 0.2),
        (lost_disks, "LOOK_SECONDS", 0.3),
        (lost_disks, "KNOCKING_SECONDS", 1.0),
        (joining, "LOST_SECONDS", 2.0),
    )
    # While epochs rest nothing else lets time pass in a partition without writes.
    rest = ((partition, "TICK_SECONDS", 5.0),)
    before = ((preferred_leaders, "LOOK_SECONDS", preferred_leaders.STEP_SECONDS),)
    shortened = [*periods, *(upheaval if plan.upheaval else ()), *(rest if plan.epochs_rest else before)]
    return all_of(patch.object(module, name, seconds) for module, name, seconds in shortened)
