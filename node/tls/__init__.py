"""TLS of a port: its files, and handshakes."""
