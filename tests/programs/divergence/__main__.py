"""`python -m tests.programs.divergence`: what scripts/divergence runs."""

import sys

from tests.programs.divergence.run import main

sys.exit(main(sys.argv[1:]))
