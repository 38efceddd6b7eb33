"""A node's configuration: the file, the variables, the flags, and their checks."""
