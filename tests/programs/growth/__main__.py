"""`scripts/growth`."""

import sys

from tests.programs.growth.run import main

sys.exit(main())
