"""The process that keeps one version of a program of views up to date; a node starts it."""
