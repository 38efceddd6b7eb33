"""The controller on a node: its replica, the way to its leader, and the work that its state demands."""
