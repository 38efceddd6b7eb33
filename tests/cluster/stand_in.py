"""What LocalCluster starts in these tests instead of a node: answers /health, and misbehaves when told to.

`--set storage.options.mode=...`: well, lonely (200, degraded), sick, storeless, refused, new (503), dies
(after its log's last words), stubborn (hears no SIGTERM). `--set storage.options.only=N` keeps it to node N.
`level=N` is the feature level that it answers.
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
options = parser.parse_args()
config = tomllib.loads(options.config.read_text())
settings = config["storage"].get("options", {})
mode = settings.get("mode", "well")
if str(config["node"]["id"]) != settings.get("only", str(config["node"]["id"])):
    mode = "well"


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        healthy = mode in ("well", "lonely", "stubborn")
        problems = {
            "sick": [{"reason": "x", "meaning": "no leader is known"}],
            "storeless": [
                {"reason": "storage_failing", "meaning": "it fails", "detail": "the bucket is missing"}
            ],
            "refused": [
                {"reason": "folder_refused", "meaning": "others refuse it", "detail": "use `node replace 2`"},
                {"reason": "no_controller", "meaning": "the controller has no leader"},
            ],
            "new": [{"reason": "folder_new", "meaning": "it has no vote", "detail": "another has the log"}],
            "lonely": [
                {"reason": "nodes_away", "meaning": "nodes are not there", "detail": "node 9 (silent)"}
            ],
        }
        body = {"problems": problems.get(mode, []), "feature_level": int(settings.get("level", "99"))}
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
