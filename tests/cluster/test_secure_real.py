"""`cluster up --secure` with real nodes: one command, and no port that answers a stranger."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from strandline.cluster import client_settings
from tests.cluster.command import as_json, strandline


@pytest.mark.timeout(240)
def test_one_command_makes_a_cluster_that_asks_every_client_for_its_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ("--nodes", "1", "--free-ports", "--timeout", "120")
    done = strandline(capfd, monkeypatch, "cluster", "up", "--secure", *more)
    try:
        assert done.status == 0, done.err
        assert "sasl.username=admin" in done.out
        assert "ssl.truststore.type=PEM" in done.out
        folder = tmp_path / "strandline-cluster"
        nodes = json.loads((folder / "cluster.json").read_text())["nodes"]
        assert as_json(strandline(capfd, monkeypatch, "topic", "create", "t", "--json"))
        assert as_json(strandline(capfd, monkeypatch, "cluster", "status", "--json"))["healthy"]
        trusting = ssl.create_default_context(cafile=folder / "authority.pem")
        address = f"https://127.0.0.1:{nodes[0]['admin']}"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{address}/api/topics", context=trusting, timeout=60)
        with urllib.request.urlopen(f"{address}/health", context=trusting, timeout=60) as answer:
            assert json.load(answer) == {"status": "healthy"}
        for port in nodes[0]["mesh"], nodes[0]["kafka"], nodes[0]["admin"]:
            with socket.create_connection(("127.0.0.1", port), 10) as sock:
                # Nothing that is not TLS gets a word beyond an alert of TLS, whatever it says.
                sock.sendall(b"\0" * 64)
                sock.settimeout(10)
                with contextlib.suppress(ConnectionError):
                    assert len(sock.recv(1000)) < 8
        settings = client_settings.load(folder / "client.properties")
        consumer = Consumer({**settings, "group.id": "g", "group.protocol": "consumer"})
        try:
            consumer.subscribe(["t"])
            deadline = time.monotonic() + 30
            while not consumer.assignment():
                assert time.monotonic() < deadline
                consumer.poll(0.2)
            (member,) = as_json(strandline(capfd, monkeypatch, "group", "describe", "g", "--json"))["members"]
            assert member["protocol"] == "consumer"
        finally:
            consumer.close()
        again = as_json(strandline(capfd, monkeypatch, "cluster", "up", "--json"))
        assert (again["started"], again["client_file"]) == ([], str(folder / "client.properties"))
        open_to_others = {file.name for file in folder.iterdir() if file.stat().st_mode & 0o077}
        assert open_to_others <= {"cluster.lock"}
    finally:
        strandline(capfd, monkeypatch, "cluster", "down", "--timeout", "30")
        client_settings.of_folder(None)
