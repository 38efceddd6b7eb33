"""`scripts/soak`: see tests/programs/soak/run.py."""

from __future__ import annotations

import sys

from tests.programs.soak.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
