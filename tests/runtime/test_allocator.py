"""Large buffers are taken and freed without the kernel, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from strandline.node.runtime.allocator import keep_freed_memory
if "keep" in sys.argv:
    assert keep_freed_memory()
def work():
    for _ in range(50):
        held = [bytearray(2 << 20) for _ in range(4)]
        del held
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str) -> int:
    return int(
        subprocess.run([sys.executable, "-c", FAULTS, *arguments], capture_output=True, check=True).stdout
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_buffers_are_used_again_without_page_faults() -> None:
    assert faults("keep") < 1000 < faults()
