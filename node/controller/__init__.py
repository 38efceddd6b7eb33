"""The controller on a node: its replica, the way to its leader, and what follows from what it says."""
