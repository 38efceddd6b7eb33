"""`python -m strandline` is the `strandline` command."""

from __future__ import annotations

from strandline.cluster.cli import main

if __name__ == "__main__":
    main()
