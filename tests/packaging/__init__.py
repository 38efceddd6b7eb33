"""What is built and installed, as another project gets it."""
