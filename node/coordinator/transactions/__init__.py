"""Transactions at the node that coordinates them: what is waited for, timed and sent to others."""
