"""A node's worker processes: how one is started, given jobs, and outlived."""
