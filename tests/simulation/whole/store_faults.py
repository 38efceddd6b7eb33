"""What goes wrong at the object store: requests that fail or stall, effects that come late, old listings."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.store import SimStore

LANDS_SECONDS = 0.5
"""After the end of the faults until all that is late has come."""
CALM_DELAY = (0.001, 0.01)


class StoreFaults:
    """`kinds` by name. `later` undoes something after a while."""

    def __init__(
        self,
        bucket: SimStore,
        rng: random.Random,
        some_node: Callable[[], int],
        later: Callable[..., None],
    ) -> None:
        self._bucket = bucket
        self._rng = rng
        self._some_node = some_node
        self._later = later
        self.kinds: dict[str, Callable[[], bool]] = {
            "failing store": self._failing_store,
            "slow store": self._slow_store,
            "stalled store": self._stalled_store,
            "store out of reach": self._store_out_of_reach,
            "late puts": self._late_puts,
            "lagging lists": self._lagging_lists,
            "slow reads": self._slow_reads,
            "slow tail": self._slow_tail,
            "throttled store": self._throttled_store,
        }

    def heal(self) -> None:
        """The store is well from now on; what is late comes soon."""
        self._mend_store()
        self._bucket.delay_seconds = CALM_DELAY
        self._bucket.unstall()
        self._bucket.land_within(LANDS_SECONDS)

    def _failing_store(self) -> bool:
        store, share = self._bucket, self._rng.choice((0.05, 0.2, 0.5))
        for fate in self._rng.sample(("refused", "broken", "lost", "late", "silent"), 2):
            setattr(store, fate, share)
        self._later(self._mend_store)
        return True

    def _slow_store(self) -> bool:
        self._bucket.slow = self._rng.choice((5.0, 20.0))
        self._later(self._mend_store)
        return True

    def _mend_store(self) -> None:
        store = self._bucket
        store.refused = store.broken = store.lost = store.late = store.silent = 0.0
        store.late_puts = store.list_lag_seconds = store.slow_reads_seconds = 0.0
        store.slow, store.tail, store.most_per_second = 1.0, 0.0, float("inf")

    def _late_puts(self) -> bool:
        """Puts that fail, and whose object comes all the same, many epochs later."""
        self._bucket.late_puts = self._rng.choice((0.1, 0.3))
        self._later(setattr, self._bucket, "late_puts", 0.0)
        return True

    def _lagging_lists(self) -> bool:
        self._bucket.list_lag_seconds = self._rng.choice((0.2, 1.0, 3.0))
        self._later(setattr, self._bucket, "list_lag_seconds", 0.0)
        return True

    def _slow_reads(self) -> bool:
        """Reads take long, and nothing else does: much may happen between a plan and its bytes."""
        self._bucket.slow_reads_seconds = self._rng.choice((0.3, 0.6))
        self._later(setattr, self._bucket, "slow_reads_seconds", 0.0)
        return True

    def _slow_tail(self) -> bool:
        """A few requests take ten times as long as the others."""
        self._bucket.tail, self._bucket.tail_seconds = (
            self._rng.choice((0.03, 0.1)),
            self._rng.choice((0.3, 1.0)),
        )
        self._later(setattr, self._bucket, "tail", 0.0)
        return True

    def _throttled_store(self) -> bool:
        """503 SlowDown for what is above a rate."""
        self._bucket.most_per_second = self._rng.choice((5.0, 20.0, 60.0))
        self._later(setattr, self._bucket, "most_per_second", float("inf"))
        return True

    def _stalled_store(self) -> bool:
        self._bucket.stall()
        self._later(self._bucket.unstall)
        return True

    def _store_out_of_reach(self) -> bool:
        node = self._some_node()
        self._bucket.cut(node)
        self._later(self._bucket.heal, node)
        return True
