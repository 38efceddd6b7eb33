"""A consume-transform-produce program whose workers are killed all the while: exactly once, or not."""
