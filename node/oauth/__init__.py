"""Tokens of OAuth: the keys that sign them, and what has to hold for one (RFC 7517, 7519)."""
