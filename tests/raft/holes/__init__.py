"""PySyncObj 0.3.17's holes, row by row as in docs/raft.md, and the proof that each is closed.

Every scenario runs twice: on the production class, where it holds, and on a subclass in which the hole is
open again, where it must not. So a test that cannot fail is itself a failure. `test_stock_*.py` show the
holes on PySyncObj itself.
"""
