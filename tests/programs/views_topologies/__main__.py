"""`scripts/views-topologies`: see tests/programs/views_topologies/run.py."""

from __future__ import annotations

import sys

from tests.programs.views_topologies.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
