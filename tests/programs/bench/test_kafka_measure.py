"""What the benches measure of servers."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import cast

from tests.programs.bench.kafka_measure import Peer, Servers

BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_processor_time_of_a_child_that_ended_is_not_lost() -> None:
    servers = Servers(cast(Peer, SimpleNamespace(pids=[os.getpid()])))
    with subprocess.Popen([sys.executable, "-c", BURN]) as child:
        before = servers.processor()
        child.wait()
    assert servers.processor() >= before
    began = servers.processor()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert servers.processor() - began > 0.25
