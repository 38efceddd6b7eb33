"""The `strandline` command's subcommands, one module for each group."""
