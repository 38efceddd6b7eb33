"""`scripts/soak`: see tests/soak/run.py."""

from __future__ import annotations

import sys

from tests.soak.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
