"""One partition on one node: the fence before its log, its write path, its read path, its leadership."""
