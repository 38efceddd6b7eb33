"""`scripts/mix`: see tests/programs/mix/run.py."""

from __future__ import annotations

import sys

from tests.programs.mix.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
