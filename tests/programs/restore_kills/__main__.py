"""`scripts/restore-kills`: see tests/programs/restore_kills/run.py."""

from __future__ import annotations

import sys

from tests.programs.restore_kills.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
