"""`python -m tests.exactly_once`: what scripts/anomalies runs."""

import sys

from tests.exactly_once.run import main

sys.exit(main(sys.argv[1:]))
