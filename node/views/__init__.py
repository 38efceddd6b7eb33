"""Programs of views on a node: the processes that run the versions which this node is to run."""
