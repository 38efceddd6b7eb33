"""Kafka's clients as small programs that all understand the same commands; see serve.py for the commands.

One process is one application: at most one consumer and one producer. So members of a group are processes,
can be killed, and a client in another language is no different from one in Python.
"""
