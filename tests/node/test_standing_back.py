"""A process that stands back, or steps forward again, is scheduled so: its threads, and its session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

import pytest

THREADS: Final = 3
PROGRAM: Final = f"""
import json, os, threading
from strandline.node.worker.standing_back import stand_back, stand_back_for_good, step_forward

def told():
    threads = [os.sched_getscheduler(int(each)) for each in os.listdir("/proc/self/task")]
    try:
        session = open("/proc/self/autogroup").read().split()[-1]
    except (OSError, IndexError):  # no autogroups, or a control group, which has none
        session = None
    print(json.dumps([threads, session, os.nice(0), os.getsid(0) == os.getpid()]), flush=True)

ended = threading.Event()
for _ in range({THREADS}):
    threading.Thread(target=ended.wait, daemon=True).start()
told()
stand_back(5)
told()
step_forward()
told()
stand_back_for_good(7)
told()
ended.set()
"""


@pytest.fixture(scope="module")
def told() -> list[list[Any]]:
    """What a process says of itself: as it began, back, forward, back for good."""
    run = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_all_threads_are_served_last_and_then_as_any(told: list[list[Any]]) -> None:
    threads = [set(each[0]) for each in told]
    assert threads == [{os.SCHED_OTHER}, {os.SCHED_BATCH}, {os.SCHED_OTHER}, {os.SCHED_BATCH}]
    assert all(len(each[0]) == THREADS + 1 for each in told)


def test_the_session_is_its_own_and_as_nice_as_asked(told: list[list[Any]]) -> None:
    own = os.nice(0)
    assert [each[3] for each in told] == [False, True, True, True]
    if told[0][1] is None:
        pytest.skip("there are no autogroups here")
    assert [int(each[1]) for each in told[1:]] == [min(19, own + nice) for nice in (5, 0, 7)]


def test_no_niceness_is_left_that_a_process_cannot_take_back(told: list[list[Any]]) -> None:
    own = os.nice(0)
    assert [each[2] for each in told] == [own, own, own, min(19, own + 7)]
