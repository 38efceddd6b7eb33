"""`python -m tests.divergence`: what scripts/divergence runs."""

import sys

from tests.divergence.run import main

sys.exit(main(sys.argv[1:]))
