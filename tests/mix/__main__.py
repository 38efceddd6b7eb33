"""`scripts/mix`: see tests/mix/run.py."""

from __future__ import annotations

import sys

from tests.mix.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
