"""`scripts/soak`: see tests/programs/soak/run.py, and compaction_run.py for `scripts/soak --compaction`."""

from __future__ import annotations

import sys

from tests.programs.soak import compaction_run, run

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if "--compaction" in arguments:
        arguments.remove("--compaction")
        sys.exit(compaction_run.main(arguments))
    sys.exit(run.main(arguments))
