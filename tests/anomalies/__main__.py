"""`python -m tests.anomalies`: what scripts/anomalies runs."""

import sys

from tests.anomalies.run import main

sys.exit(main(sys.argv[1:]))
