"""`scripts/spark-kills`: see tests/programs/spark_kills/run.py."""

from __future__ import annotations

import sys

from tests.programs.spark_kills.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
