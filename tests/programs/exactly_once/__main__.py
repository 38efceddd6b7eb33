"""`scripts/exactly-once`: see tests/programs/exactly_once/run.py."""

from __future__ import annotations

import sys

from tests.programs.exactly_once.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
