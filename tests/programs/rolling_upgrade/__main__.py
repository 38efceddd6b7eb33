"""`scripts/rolling-upgrade`: see tests/programs/rolling_upgrade/run.py."""

from __future__ import annotations

import sys

from tests.programs.rolling_upgrade.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
