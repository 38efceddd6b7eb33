"""The world around a version's work: clients of Kafka, the object store, time; a simulation has its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer

from strandline.cluster.view_worker import memory
from strandline.cluster.view_worker.fetched import Fetcher
from strandline.cluster.view_worker.fetcher import LeaderFetcher
from strandline.cluster.view_worker.producing import LeaderProducer, Producer
from strandline.cluster.view_worker.store_thread import BlockingStore, StoreThread
from strandline.node.objectstore.opening import StorePlace
from strandline.node.worker.standing_back import stand_back, step_forward

FILLING_NICENESS: Final = 5
"""Of a version that is filled, beside those that are live: it has what they leave."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Whatever has an effect outside the process, or depends on more than its memory."""

    consumer: Callable[[dict[str, Any]], Consumer]
    """Makes a consumer with a client's settings."""
    fetcher: Callable[[Mapping[str, str], str, Mapping[str, bytes]], Fetcher]
    """Makes what reads the inputs, of a node's address with the login, a client's name and topics' ids."""
    producer: Callable[[Mapping[str, str], str], Producer]
    """Makes the producer of a group, of a node's address with the login."""
    store: Callable[[StorePlace], BlockingStore]
    merging: Callable[[], Executor | None]
    """Makes the executor in which large runs are merged; None: in the step."""
    monotonic: Callable[[], float]
    """Seconds that only grow."""
    sleep: Callable[[float], None]
    own_memory: Callable[[], int]
    """Bytes that the process alone has in memory."""
    stand_back: Callable[[], None]
    """Lets others have the processor first."""
    step_forward: Callable[[], None]
    """No longer does."""


REAL: Final = Surroundings(
    Consumer,
    LeaderFetcher,
    LeaderProducer,
    StoreThread,
    lambda: ThreadPoolExecutor(1, "merge"),
    time.monotonic,
    time.sleep,
    memory.own_memory,
    lambda: stand_back(FILLING_NICENESS),
    step_forward,
)
