"""A process raises its own limit of open files, up to what it may have."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from strandline.node.runtime.open_files import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 500))
told = allow_open_files()
print(told, *resource.getrlimit(resource.RLIMIT_NOFILE), allow_open_files())
"""


def test_the_limit_is_raised_to_the_highest_that_the_process_may_have() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["500", "500", "500", "500"]
