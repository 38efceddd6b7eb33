"""A timer that rings for a thread once it was not set anew in time."""

from __future__ import annotations

import time
from threading import Thread

from strandline.node.runtime.kernel_timer import KernelTimer


def test_it_rings_after_it_was_last_set_and_its_waiter_does_not_wake_before() -> None:
    timer = KernelTimer()
    woken: list[float] = []

    def wait() -> None:
        timer.wait()
        woken.append(time.monotonic())

    thread = Thread(target=wait)
    thread.start()
    for _ in range(10):
        timer.set(0.15)
        last = time.monotonic()
        time.sleep(0.03)
    assert woken == []
    thread.join(10)
    timer.close()
    assert 0.14 < woken[0] - last < 5.0
