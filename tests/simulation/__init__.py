"""A deterministic world in one process: virtual time, simulated network and disks, real asyncio code."""
