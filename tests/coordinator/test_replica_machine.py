"""A machine as a node gives it to Raft."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from strandline.node.replica.replica_machine import ReplicaMachine
from strandline.statemachine.machine import ReadState
from tests.coordinator.recording import Recording
from tests.raft.register_map import RegisterMap, set_register


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


class Told(Recording):
    def __init__(self, told: list[Any]) -> None:
        super().__init__()
        self._told = told

    def restored(self) -> None:
        self._told.append("restored")


def test_the_recorder_and_the_leader_hear_of_a_state_when_it_is_adopted() -> None:
    plain, told = RegisterMap(), list[Any]()
    machine = ReplicaMachine(plain, Told(told), lambda: told.append("applied"))
    machine.apply(1, 1, set_register(1, "x", 1))
    told.clear()
    read = machine.read(RegisterMap().snapshot())
    assert (told, plain.registers) == ([], {"x": 1})
    read.adopt()
    assert (told, plain.registers) == (["restored", "applied"], {})
    read.let_go()
    assert plain.snapshot() == RegisterMap().snapshot()


class Large(RegisterMap):
    def read(self, state: bytes) -> ReadState:
        self.made = [[] for _ in range(60_000)]  # type: ignore[var-annotated]
        return super().read(state)


@pytest.mark.parametrize(("plain", "frozen"), [(Large, 60_000), (RegisterMap, 0)])
def test_the_collector_never_looks_at_the_objects_of_a_large_state(
    plain: type[RegisterMap], frozen: int
) -> None:
    machine = ReplicaMachine(plain(), Recording(), lambda: None)
    state = machine.snapshot()
    gc.collect()
    before = gc.get_freeze_count()
    try:
        machine.restore(state)
        assert gc.get_freeze_count() - before >= frozen
        assert bool(gc.get_freeze_count() - before) == bool(frozen)
    finally:
        gc.unfreeze()
