"""A node whose processes of views note each transaction: `noting.py`. Nothing else differs."""

from __future__ import annotations

import sys

from strandline.node.process import main
from strandline.node.views.view_process import ViewProcess
from strandline.node.worker.worker_link import program

if __name__ == "__main__":
    defaults = ViewProcess.__init__.__kwdefaults__
    assert defaults is not None
    defaults["command"] = program("tests.programs.views_topologies.noting")
    sys.exit(main())
