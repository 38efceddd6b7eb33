"""One node but the process around it."""
