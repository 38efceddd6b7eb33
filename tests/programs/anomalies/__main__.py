"""`python -m tests.programs.anomalies`: what scripts/anomalies runs."""

import sys

from tests.programs.anomalies.run import main

sys.exit(main(sys.argv[1:]))
