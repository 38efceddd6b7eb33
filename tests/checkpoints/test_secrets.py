"""Users' credentials are in no document of the storage: neither in a state nor in a log between two."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.node.checkpoints.publisher import CheckpointPublisher
from strandline.node.checkpoints.recorder import CheckpointPlace, CheckpointRecorder, TailBudget
from strandline.statemachine.controller.controller import Controller
from strandline.statemachine.controller.controller_commands import (
    AlterScramCredentials,
    Command,
    ControllerCheckpoint,
    encode,
    is_secret,
)
from tests.statemachine.controller_harness import registration

KEY = bytes(range(32))
USER = AlterScramCredentials("alice", (), ((1, 4096, b"salt", KEY, KEY),))


def test_a_log_with_a_credential_is_not_published_and_the_next_one_is() -> None:
    taken: list[tuple[bytes, Any]] = []

    def take(place: object, captured: Callable[[], bytes], entries: Any) -> None:
        taken.append((captured(), entries))

    recorder = CheckpointRecorder(
        cluster="c", kind="controller", group=0, budget=TailBudget(),
        place=lambda index: CheckpointPlace(1, (1,), ()),
        publisher=cast(CheckpointPublisher, SimpleNamespace(take=take)),
        is_secret=is_secret,
    )  # fmt: skip
    machine = Controller(recorder.checkpoint)
    commands: list[Command] = [registration(1), USER, registration(2), ControllerCheckpoint()]
    commands += [registration(3), ControllerCheckpoint()]
    machine.begin_term(1, 1, 1)
    recorder.begin_term(1, 1, 1)
    for index, command in enumerate(commands, 2):
        recorder.applied(index, 1, encode(command))
        machine.apply(index, 1, encode(command))
    (first, no_log), (second, log) = taken
    assert no_log is None
    assert KEY not in first + second
    assert log is not None
    assert KEY not in bytes(log.entries)
    # An audit applies the log to the state before, and gets the state after.
    replayed: list[bytes] = []
    again = Controller(lambda index, captured: replayed.append(captured()))
    again.restore(first)
    for index, command in enumerate(commands[4:], 6):
        again.apply(index, 1, encode(command))
    assert replayed == [second]


@pytest.mark.parametrize(("command", "secret"), [(USER, True), (registration(1), False)])
def test_which_commands_are_secret(command: Command, secret: bool) -> None:
    assert is_secret(encode(command)) == secret
    assert not is_secret(encode(ControllerCheckpoint()))
