"""Other systems, run beside this one so that a figure has something to be held against."""
