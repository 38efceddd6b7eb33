"""Transactions and consumer groups in the simulation of whole nodes."""
