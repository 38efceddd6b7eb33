"""One broker process: everything that touches a clock, a socket, a disk or a thread."""
