"""Transactions at the node that coordinates them: waiting requests, timers, and messages to other nodes."""
