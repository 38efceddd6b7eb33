"""Real node processes on this machine's loopback and disk, for what no simulation shows: speed and kill -9.

A driver starts them and talks to each by JSON lines: requests to its standard input, answers from its
standard output.
"""
