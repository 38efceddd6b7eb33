"""The rules of the Raft paper (Ongaro and Ousterhout, 2014, extended version), a test each, named after it.

`test_5_3_…` tests a rule of section 5.3; where the thesis is meant its section is named. The replicas are the
production ones, see `tests/raft/harness.py`.
"""
