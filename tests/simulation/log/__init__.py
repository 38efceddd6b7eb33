"""The replicated log in the simulator: groups, clients of registers, faults, checks, sabotages."""
