"""What the log says of fences: every slide and refusal for who asks, a count now and then for all."""

from __future__ import annotations

import logging

import pytest

from strandline.node.partition.fence import Fence, Permit
from strandline.node.partition.fence_log import TELL_SECONDS, FenceLog
from strandline.statemachine.partition.epoch_window import EpochWindow, StaleClusterEpoch
from tests.runtime.manual_loop import manual_loop


def test_slides_and_refusals_are_told_with_partition_window_and_gap(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    loop = manual_loop()
    log = FenceLog(loop)
    fences = [Fence(loop, name, log) for name in ("orders-0", "orders-1")]
    for fence in fences:
        fence.open(EpochWindow.recovered(1, 5))
        for epoch in (6, 9):
            permit = fence.try_acquire(epoch)
            assert isinstance(permit, Permit)
            permit.release()
        for _ in range(50):
            assert isinstance(fence.try_acquire(4), StaleClusterEpoch)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told[:3] == [
        ("DEBUG", "orders-0: the epoch window slides from [5, 5] to [5, 6]"),
        ("DEBUG", "orders-0: the epoch window slides from [5, 6] to [6, 9]"),
        ("DEBUG", "orders-0: epoch 4 is refused, 2 below the window [6, 9]"),
    ]
    assert sum("is refused" in text for _, text in told) == 100
    (first,) = [text for level, text in told if level == "INFO"]
    assert first.startswith("1 batches since")
    assert first.endswith("orders-0, epoch 4 is 2 below the window [6, 9]")
    loop.now += TELL_SECONDS
    fences[1].try_acquire(3)
    *_, last = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert last.startswith("100 batches since")
    assert last.endswith("orders-1, epoch 3 is 3 below the window [6, 9]")
