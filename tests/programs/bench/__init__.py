"""Measurements against real processes and real disks, side by side with stock PySyncObj in one run."""
