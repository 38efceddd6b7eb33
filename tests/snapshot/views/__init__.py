"""Kernels of views: runs, spines and operators, against plain Python and DuckDB."""

import os

# Before polars is imported: a pool of threads would only wait for the two cores that all tests share.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
