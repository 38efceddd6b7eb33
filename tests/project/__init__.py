"""What holds of the tree as a whole: layers, docstrings, the glossary, the choice of tests."""
