"""Topics as Parquet files, each record once, whatever is killed when: `run.py` has the steps.

See docs/export.md.
"""
