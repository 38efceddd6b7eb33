"""The cluster epoch advances as often as it was configured to, and not more often."""

from __future__ import annotations

import pytest

from tests.controller.brokers import Brokers


@pytest.mark.parametrize("period", [0.03, 0.1, 0.7])
def test_the_epoch_advances_once_a_period(period: float) -> None:
    """Also when that is shorter than the controller's tick of 0.25 s."""
    with Brokers() as brokers:
        leader = brokers.leader()
        for broker in brokers.brokers.values():
            broker.controller_leader._epoch_seconds = period
        epochs = brokers.brokers[leader].epoch
        first = epochs.current()
        brokers.wait(lambda: epochs.current() > first, 11.0)
        began = epochs.current()
        brokers.world.run(brokers.world.now + 14 * period)
        # Each advance waits for the log, some milliseconds here.
        assert 9 <= epochs.current() - began <= 14
