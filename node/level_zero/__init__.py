"""Level zero: short-lived objects that hold many partitions' batches, from produce until reconciling."""
