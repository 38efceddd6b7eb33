"""The two systems with TLS and logins, for `scripts/bench kafka --secure`: between nodes, too.

Both have certificates of one kind (ECDSA, P-256) and one user with SCRAM-SHA-256 and 4,096 iterations.
Kafka's controllers talk to each other without TLS; Strandline has no such ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from strandline.cluster.client_settings import load
from strandline.cluster.local import LocalCluster
from strandline.cluster.local_security import LocalSecurity
from strandline.cluster.ports import LOOPBACK, free_ports
from tests.peers.kafka_cluster import NODES, KafkaCluster
from tests.programs.bench.strandline_cluster import StrandlineCluster

_USER, _PASSWORD = "bench", "bench-secret"
_MECHANISM: Final = "SCRAM-SHA-256"


class SecuredStrandline(StrandlineCluster):
    """As `strandline cluster up --secure` makes it."""

    secure = True

    @property
    def security(self) -> Mapping[str, str]:
        return load(LocalCluster(self.folder).description.security.client)


class SecuredKafka(KafkaCluster):
    """TLS between brokers, TLS and a login for clients."""

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        """See KafkaCluster."""
        files = folder.with_name(f"{folder.name}-security")
        files.mkdir()
        made = LocalSecurity(files)
        made.make_authority()
        made.renew(1)
        store = files / "node.pem"
        store.write_bytes((files / "node-1.key").read_bytes() + (files / "node-1.pem").read_bytes())
        self._own_ports = {node: ports.mesh for node, ports in free_ports(NODES).items()}
        self.security = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": _MECHANISM,
            "sasl.username": _USER,
            "sasl.password": _PASSWORD,
            "ssl.ca.location": str(made.authority),
        }
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        here = f"CLIENTS://{LOOPBACK}:{{kafka}},BROKERS://{LOOPBACK}:{{own}}"
        super().__init__(
            folder,
            (
                f"listeners={here},CONTROLLER://{LOOPBACK}:{{mesh}}",
                f"advertised.listeners={here}",
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,CLIENTS:SASL_SSL,BROKERS:SSL",
                "inter.broker.listener.name=BROKERS",
                f"sasl.enabled.mechanisms={_MECHANISM}",
                f"listener.name.clients.{_MECHANISM.lower()}.sasl.jaas.config={login}",
                "ssl.keystore.type=PEM",
                f"ssl.keystore.location={store}",
                "ssl.truststore.type=PEM",
                f"ssl.truststore.location={made.authority}",
                *settings,
            ),
        )

    def _format_options(self) -> Sequence[str]:
        user = f"name={_USER},iterations=4096,password={_PASSWORD}"
        return "--add-scram", f"{_MECHANISM}=[{user}]"

    def _properties(self, node: int) -> str:
        return super()._properties(node).replace("{own}", str(self._own_ports[node]))
