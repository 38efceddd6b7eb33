"""`scripts/operations`."""

import sys

from tests.programs.operations.run import main

sys.exit(main())
