"""`python -m tests.programs.access`: what scripts/access runs."""

import sys

from tests.programs.access.run import main

sys.exit(main(sys.argv[1:]))
