"""What LocalCluster starts in these tests instead of a node: answers /health, and misbehaves when told to.

`--set mode=...`: well, sick (503), dies (after its log's last words), stubborn (does not hear SIGTERM);
`--set only=N` keeps the mode to node N.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path, required=True)
parser.add_argument("--set", action="append", default=[])
options = parser.parse_args()
config = tomllib.loads(options.config.read_text())
settings = dict(setting.split("=", 1) for setting in options.set)
mode = settings.get("mode", "well")
if str(config["node"]["id"]) != settings.get("only", str(config["node"]["id"])):
    mode = "well"


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        healthy = mode != "sick"
        body = {"problems": [] if healthy else [{"reason": "x", "meaning": "no leader is known"}]}
        data = json.dumps(body).encode()
        self.send_response(200 if healthy else 503)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


if mode == "dies":
    print(json.dumps({"level": "ERROR", "message": "the disk is full"}), file=sys.stderr)
    sys.exit(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stubborn" else lambda *_: sys.exit(0))
HTTPServer((config["admin"]["host"], config["admin"]["port"]), Health).serve_forever(0.05)
