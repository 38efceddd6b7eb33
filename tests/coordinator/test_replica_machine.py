"""A machine as a node gives it to Raft."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from strandline.node.replica.replica_machine import ReplicaMachine
from strandline.statemachine.machine import ReadState
from tests.coordinator.recording import Recording
from tests.raft.register_map import RegisterMap


class Watched(RegisterMap):
    """Notes whether the collector runs while it reads a state."""

    collects: bool | None = None

    def read(self, state: bytes) -> ReadState:
        self.collects = gc.isenabled()
        if state == b"damaged":
            raise ValueError("this is no state")
        return super().read(state)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_state_is_restored_without_the_collector_and_it_is_as_before_then(enabled: bool) -> None:
    plain, told = Watched(), list[Any]()
    machine = ReplicaMachine(plain, Recording(), lambda: told.append("applied"))
    state = machine.snapshot()
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        machine.restore(state)
        assert (plain.collects, gc.isenabled(), told) == (False, enabled, ["applied"])
        with pytest.raises(ValueError, match="this is no state"):
            machine.restore(b"damaged")
        assert (gc.isenabled(), told) == (enabled, ["applied"])
    finally:
        (gc.enable if was else gc.disable)()
    assert machine.capture()() == state
