"""`scripts/views-kills`: see tests/programs/views_kills/run.py."""

from __future__ import annotations

import sys

from tests.programs.views_kills.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
