"""What the `strandline` command can do, one module for each group of its commands."""
