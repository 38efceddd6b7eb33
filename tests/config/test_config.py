"""Every mistake in a configuration is one line: where it stands, which key, what is wrong, what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.node.config.node_config import ConfigError, PeerAddress, SeedAddress, load
from strandline.node.controller.members import default_replicas
from tests.config.config_file import EMPTY, GOOD, loaded, problem


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    config = loaded(tmp_path)
    assert config.node.id == 2
    assert config.cluster.nodes[1] == PeerAddress(2, "127.0.0.1", 7102)
    assert (config.mesh.host, config.mesh.port) == ("127.0.0.1", 7102)
    assert (config.kafka.host, config.kafka.port) == ("127.0.0.1", 9092)
    assert default_replicas(config, EMPTY) == 3
    assert config.topics.auto_create
    assert config.cluster.epoch_seconds == 10.0
    assert config.level_one.target_bytes == 64 * 1024 * 1024
    assert config.collector.grace_seconds == 60.0
    assert config.coordinator.partitions == 16
    assert config.groups.max_session_seconds == 1800.0
    assert config.transactions.max_timeout_seconds == 900.0
    assert not config.insecure


SEEDS = (
    GOOD.replace("id = 2", "id = 4").replace("nodes = [", "seeds = [").replace("1@", "").replace("2@", "")
    .replace("3@", "") + '[mesh]\nhost = "127.0.0.1"\nport = 7104\n'
)  # fmt: skip


def test_a_node_that_joins_names_seeds_and_its_own_address(tmp_path: Path) -> None:
    config = loaded(tmp_path, SEEDS)
    assert config.cluster.nodes == ()
    assert config.cluster.seeds[1] == SeedAddress("127.0.0.1", 7102)
    assert config.mesh.told == ("127.0.0.1", 7104)
    everywhere = ("mesh.host=0.0.0.0", "insecure=true")
    told = ("mesh.advertised_host=node-4.example.org", "mesh.advertised_port=17104")
    assert loaded(tmp_path, SEEDS, (*everywhere, *told)).mesh.told == ("node-4.example.org", 17104)
    assert "mesh.host: other nodes would be told to connect to 0.0.0.0" in problem(
        tmp_path, SEEDS, everywhere
    )


def test_founders_and_seeds_are_two_ways_and_a_file_has_one(tmp_path: Path) -> None:
    both = ("cluster.seeds=127.0.0.1:7101",)
    assert "cluster.nodes is set too" in problem(tmp_path, overrides=both)
    assert "cluster.seeds: '1@127.0.0.1:7101' is not the address" in problem(
        tmp_path, SEEDS, ("cluster.seeds=1@127.0.0.1:7101",)
    )
    bare = SEEDS.partition("[mesh]")[0]
    assert "mesh.host is not set, and no cluster.nodes says it" in problem(tmp_path, bare)
    mine = ("mesh.advertised_host=h",)
    assert "mesh.advertised_host: cluster.nodes says it" in problem(tmp_path, overrides=mine)
    alone = ("storage.url=memory://", "storage.volatile=true")
    assert "the nodes of cluster.seeds cannot read it" in problem(tmp_path, SEEDS, alone)


def test_more_replicas_than_founders_are_told_of(tmp_path: Path) -> None:
    (note,) = loaded(tmp_path, overrides=("topics.replication_factor=4",)).notes
    assert "4 replicas need as many nodes, and cluster.nodes has 3" in note


def test_variables_override_the_file_and_flags_override_both(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        overrides=("batching.target_bytes=512KiB", 'log.format="json"'),
        STRANDLINE_BATCHING_TARGET_BYTES="1MiB",
        STRANDLINE_BATCHING_LINGER_SECONDS="250ms",
        STRANDLINE_KAFKA_PORT="0",
        STRANDLINE_CLUSTER_NODES="2@127.0.0.1:1,9@127.0.0.1:2",
        STRANDLINE_STORAGE_OPTIONS_REGION="eu-1",
        STRANDLINE_TOPICS_AUTO_CREATE="false",
        HOME="/root",
    )
    assert config.batching.target_bytes == 512 * 1024
    assert config.batching.linger_seconds == 0.25
    assert config.kafka.port == 0
    assert [peer.id for peer in config.cluster.nodes] == [2, 9]
    assert default_replicas(config, EMPTY) == 2
    assert config.storage.options == {"region": "eu-1"}
    assert config.log.format == "json"
    assert not config.topics.auto_create


def test_what_groups_and_transactions_may_is_read_and_checked(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        overrides=(
            "coordinator.partitions=3",
            "groups.max_session_seconds=1m",
            "groups.initial_rebalance_delay_seconds=0",
            "transactions.id_expiration_seconds=24h",
        ),
        STRANDLINE_GROUPS_OFFSET_RETENTION_SECONDS="1h",
    )
    assert config.coordinator.partitions == 3
    assert (config.groups.min_session_seconds, config.groups.max_session_seconds) == (6.0, 60.0)
    assert config.groups.initial_rebalance_delay_seconds == 0
    assert config.groups.offset_retention_seconds == 3600.0
    assert config.transactions.id_expiration_seconds == 24 * 3600.0
    for overrides, key in (
        (("groups.min_session_seconds=31m",), "groups: min_session_seconds may not be above"),
        (("coordinator.partitions=0",), "coordinator.partitions: 0 is not a whole number from 1"),
        (("transactions.max_timeout_seconds=0",), "transactions.max_timeout_seconds: 0 must be more"),
    ):
        assert key in problem(tmp_path, overrides=overrides)


def test_storage_options_are_a_table_of_texts(tmp_path: Path) -> None:
    text = (
        GOOD.replace("/srv/objects", "s3://bucket/prefix") + '[storage.options]\nregion = "eu"\nretries = 3\n'
    )
    config = loaded(tmp_path, text, ("storage.options.endpoint=http://127.0.0.1:9",))
    assert config.storage.url == "s3://bucket/prefix"
    assert config.storage.options == {"region": "eu", "retries": "3", "endpoint": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("override", "cause", "cure"),
    [
        ("node.idd=1", "node.idd: there is no such key", "did you mean node.id?"),
        ("kafka.auto_create=true", "no such key", "did you mean topics.auto_create?"),
        ("node.id=0", "node.id: 0 is not a whole number", "from 1 to 65535"),
        ("node.id=true", "node.id: True is not a whole number", "from 1"),
        ("node.id=4", "node.id: 4 is none of cluster.nodes (1, 2, 3)", "add it there"),
        (
            "cluster.epoch_seconds=10 parsecs",
            "cluster.epoch_seconds: '10 parsecs' is not a duration",
            "250ms",
        ),
        ("cluster.epoch_seconds=0s", "more than nothing", ""),
        ("level_one.block_bytes=7", "level_one.block_bytes: 7 is less than 1KiB", ""),
        (
            "level_one.job_bytes=1MiB",
            "level_one: block_bytes may not be above target_bytes",
            "raise job_bytes",
        ),
        (
            "storage.requests_budget=50 dollars",
            "storage.requests_budget: '50 dollars' is no budget",
            'like "50 USD/month"',
        ),
        (
            "storage.requests_budget=8 USD/month",
            "does not pay for a put in 10 s and a listing in collector.sweep_seconds of each of 3 nodes",
            'write "8.04 USD/month" or more',
        ),
        ("storage.put_price=0", "storage.put_price: 0 is no price", "a million requests"),
        ("memory.limit=7", "memory.limit: 7 is less than 1KiB", ""),
        (
            "memory.limit=190MiB",
            "memory.limit: 199229440 bytes are too few: a node takes 72 MiB, its level-one worker 48 MiB",
            "set 192MiB or more, or lower level_one.job_bytes",
        ),
        ("compaction.map_bytes=7", "compaction.map_bytes: 7 is less than 1KiB", ""),
        (
            "compaction.segment_bytes=1MiB",
            "compaction: ingest_bytes may not be above segment_bytes",
            "lower it, or raise the other",
        ),
        ("batching.target_bytes=4MB", "batching.target_bytes: '4MB' is not a size", "4MiB"),
        ("batching.target_bytes=-1", "batching.target_bytes: -1 is not a size", "bytes"),
        ("batching.target_bytes=1GiB", "batching: target_bytes must be", "not above max_object_bytes"),
        ("inline.max_batch_bytes=1MiB", "inline.max_batch_bytes: '1MiB' is more than 512KiB", ""),
        ("inline.bytes=0", "inline.bytes: 0 is less than 1KiB", ""),
        ("batching.puts_per_second=0", "is not a number above 0", "leave it out"),
        ("cluster.nodes=1@127.0.0.1", "is not a node", "id@host:port"),
        ("cluster.nodes=1@h:1,1@h:2", "1 is given to two nodes", "its own id"),
        ("cluster.nodes=1@h:1,2@h:1", "h:1 is given to two nodes", "its own address"),
        ("cluster.secret=", "cluster.secret: '' is not text, or empty", ""),
        ("cluster.id=a/b", "cannot be part of object names", "letters"),
        ("kafka.port=70000", "kafka.port: 70000 is not a whole number", "65535"),
        ("kafka.host=0.0.0.0", "kafka.host: 0.0.0.0 can be reached from other", "insecure = true"),
        ("admin.host=example.org", "admin.host: example.org", "insecure = true"),
        ("mesh.host=::", "mesh.host: ::", "insecure = true"),
        ("cluster.nodes=1@0.0.0.0:7101,2@h:1", "'1@0.0.0.0:7101' is not an address that other", "mesh.host"),
        (
            "kafka.advertised_host=::",
            "kafka.advertised_host: clients would be told",
            "not a machine's address",
        ),
        ("storage.url=objects", "storage.url: 'objects' is neither", "absolute path"),
        ("storage.url=s3://", "storage.url: 's3://' names no bucket", "s3://bucket/prefix"),
        ("storage.url=s3:/bucket", "storage.url: 's3:/bucket' names no bucket", "s3://bucket/prefix"),
        ("storage.url=gs:bucket", "names no bucket", "gs://bucket/prefix"),
        ("storage.url=s3://bucket?region=eu", "more than a bucket and a prefix", "[storage.options]"),
        ("storage.url=s3://key:word@bucket", "more than a bucket and a prefix", "[storage.options]"),
        ("storage.url=s3://[x", "is no URL", ""),
        ("storage.url=memory://", "all are lost when it stops", "storage.volatile = true"),
        (
            "storage.options.proxy_url=http://p",
            "proxy_url: it is not an option of an object store",
            "HTTP_PROXY",
        ),
        ("storage.options.allow_http=true", "allow_http: it is not an option", "remove it"),
        ("storage.options.endpoint=127.0.0.1:9000", "endpoint: '127.0.0.1:9000' is no", "http://127.0.0.1"),
        ("storage.options.endpoint=http://h:99999", "is not an address", "write it like"),
        ("storage.options.endpoint=not a url", "is not an address", "write it like"),
        ("storage.options.region=a\nb", "region: its value has a line end", "remove it"),
        ("storage.volatile=yes", "storage.volatile: 'yes' is neither true nor false", ""),
        ("node.data=relative/path", "node.data: 'relative/path' is relative", "absolute path"),
        ("node.data=~nobodyatall/x", "is relative", "absolute path"),
        ("admin.hosts=http://x", "admin.hosts: 'http://x' is not a host name", "without scheme and port"),
        ("admin.hosts=7", "admin.hosts: 7 is not a list of names", "node-1.example.org"),
        ("cluster.secret=64 random hexadecimal digits", "the placeholder of an example", "openssl rand"),
        (
            "cluster.secret=<that of the other nodes>",
            "the placeholder of an example: write that of the other",
            "",
        ),
        ("cluster.secret=<your secret>", "the placeholder of an example", "openssl rand"),
        ("cluster.secret=changeme-changeme", "the placeholder of an example", "openssl rand"),
        ("cluster.secret=short", "--set cluster.secret: cluster.secret: it can be guessed", "at least 16"),
        ("cluster.secret=00000000000000000000", "it can be guessed", "openssl rand"),
        (
            "batching.linger_seconds=-1",
            "batching.linger_seconds=-1: batching.linger_seconds: -1 is not",
            "250ms",
        ),
        ("storage.url=ftp://x", "storage.url: 'ftp://x' is neither", "s3://"),
        ("topics.auto_create=1", "topics.auto_create: 1 is neither true nor false", ""),
        ("log.level=loud", "log.level: 'loud' is none of", "debug, info"),
        ("node.id", "there is no '='", "--set section.key=value"),
    ],
)
def test_a_mistake_is_one_line_with_key_cause_and_cure(
    tmp_path: Path, override: str, cause: str, cure: str
) -> None:
    line = problem(tmp_path, overrides=(override,))
    assert cause in line
    assert cure in line


def test_what_goes_inline_fits_an_object_later(tmp_path: Path) -> None:
    objects = ("batching.target_bytes=1KiB", "batching.max_object_bytes=100KiB")
    line = problem(tmp_path, overrides=("inline.max_batch_bytes=101KiB", *objects))
    assert "inline.max_batch_bytes may not be above batching.max_object_bytes, 102400" in line


def test_without_a_word_on_inline_batches_small_objects_bound_them(tmp_path: Path) -> None:
    objects = ("batching.target_bytes=1KiB", "batching.max_object_bytes=3KiB")
    assert loaded(tmp_path).inline.max_batch_bytes == 32 * 1024
    assert loaded(tmp_path, overrides=objects).inline.max_batch_bytes == 3 * 1024


def test_the_line_names_where_the_value_stands(tmp_path: Path) -> None:
    assert problem(tmp_path, GOOD + "[log]\nlevel = 7\n").startswith("/node.toml: log.level: 7")
    assert problem(tmp_path, STRANDLINE_LOG_LEVEL="7").startswith("STRANDLINE_LOG_LEVEL: log.level: 7")
    assert problem(tmp_path, overrides=("log.level=7",)).startswith("--set log.level=7: log.level: 7")
    assert problem(tmp_path, STRANDLINE_LOG_LEVLE="7") == (
        "STRANDLINE_LOG_LEVLE: there is no such key: did you mean STRANDLINE_LOG_LEVEL?"
    )


def test_each_thing_is_said_once(tmp_path: Path) -> None:
    line = problem(tmp_path, GOOD + "[batching]\nlinger_seconds = -1\n")
    assert line.count("linger_seconds") == line.count("node.toml") == 1


SET_BY_KUBERNETES = {
    "STRANDLINE_SERVICE_HOST": "10.0.0.11",
    "STRANDLINE_SERVICE_PORT": "9092",
    "STRANDLINE_SERVICE_PORT_KAFKA": "9092",
    "STRANDLINE_PORT": "tcp://10.0.0.11:9092",
    "STRANDLINE_PORT_9092_TCP": "tcp://10.0.0.11:9092",
    "STRANDLINE_PORT_9092_TCP_PROTO": "tcp",
    "STRANDLINE_PORT_9092_TCP_PORT": "9092",
    "STRANDLINE_PORT_9092_TCP_ADDR": "10.0.0.11",
    "STRANDLINE_KAFKA_SERVICE_HOST": "10.0.0.12",
    "STRANDLINE_KAFKA_SERVICE_PORT": "9092",
    "STRANDLINE_KAFKA_PORT": "tcp://10.0.0.12:9092",
    "STRANDLINE_KAFKA_PORT_9092_TCP": "tcp://10.0.0.12:9092",
}


def test_what_kubernetes_sets_for_services_of_that_name_is_no_configuration(tmp_path: Path) -> None:
    config = loaded(tmp_path, GOOD, (), **SET_BY_KUBERNETES)
    assert config == loaded(tmp_path)
    assert not config.notes
    meant = {**SET_BY_KUBERNETES, "STRANDLINE_KAFKA_PORT": "7"}
    assert loaded(tmp_path, GOOD, (), **meant).kafka.port == 7


def test_other_variables_of_that_name_are_told_and_keep_no_node_from_starting(tmp_path: Path) -> None:
    config = loaded(tmp_path, STRANDLINE_HOME="/opt", STRANDLINE_VERSION="1.2", STRANDLINE_USER="x")
    assert [note.split()[0] for note in config.notes] == [
        "STRANDLINE_HOME",
        "STRANDLINE_USER",
        "STRANDLINE_VERSION",
    ]
    for variable in ("STRANDLINE_KAFKA_PROT", "STRANDLINE_KAKFA_PORT", "STRANDLINE_STORAGE_ULR"):
        assert "did you mean STRANDLINE_" in problem(tmp_path, GOOD, (), **{variable: "1"})


def test_what_people_write_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = loaded(
        tmp_path,
        overrides=(
            "log.level=INFO",
            "groups.offset_retention_seconds=1d",
            "node.data=~/strandline",
            "storage.url=~/objects",
            "admin.hosts=Node-1.example.org,[::1]",
        ),
    )
    assert config.log.level == "info"
    assert config.groups.offset_retention_seconds == 86_400.0
    assert config.node.data == "/home/someone/strandline"
    assert config.storage.url == "/home/someone/objects"
    assert config.admin.hosts == ("node-1.example.org", "::1")


def test_memory_holds_records_only_where_their_loss_is_meant(tmp_path: Path) -> None:
    alone = ("cluster.nodes=2@127.0.0.1:1", "storage.url=memory://", "storage.volatile=true")
    assert loaded(tmp_path, overrides=alone).storage.volatile
    assert "the other 2 of cluster.nodes cannot read it" in problem(tmp_path, overrides=alone[1:])


@pytest.mark.parametrize(
    "key", ["node.id", "node.data", "cluster.id", "cluster.secret", "cluster.nodes", "storage.url"]
)
def test_what_has_no_default_must_be_given(tmp_path: Path, key: str) -> None:
    name = key.split(".")[1]
    lines = GOOD.splitlines()
    if key in ("node.id", "cluster.id"):
        lines.remove("id = 2" if key == "node.id" else 'id = "flights"')
    else:
        lines = [line for line in lines if not line.startswith(name)]
    assert f"{key} is not set" in problem(tmp_path, "\n".join(lines))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory: give --config"):
        load(str(tmp_path / "none.toml"), {}, ())
    assert "this is not TOML" in problem(tmp_path, "node = [")
    assert "this is not TOML" in problem(tmp_path, GOOD + "[node]\n")
    assert "there is no such key" in problem(tmp_path, "surprise = 1\n" + GOOD)
    assert "did you mean" in problem(tmp_path, "node = 1\n")


def test_other_machines_may_reach_it_when_that_is_meant(tmp_path: Path) -> None:
    text = "insecure = true\n" + GOOD.replace("127.0.0.1", "10.0.0.1")
    config = loaded(tmp_path, text, ("kafka.host=0.0.0.0", "kafka.advertised_host=node-2"))
    assert config.mesh.host == "10.0.0.1"
    for host in ("0.0.0.0", "::", "[::]"):
        line = problem(tmp_path, text, (f"kafka.host={host}",))
        assert f"kafka.host: clients would be told to connect to {host}" in line
        assert "set kafka.advertised_host" in line
    assert "insecure" in problem(tmp_path, GOOD.replace("127.0.0.1", "10.0.0.1"))


MESH_TLS = "\n[mesh]\ncertificate = '/c.pem'\nkey = '/c.key'\nca = '/ca.pem'\n"
LOGINS = "[admin]\ncertificate = '/c.pem'\nkey = '/c.key'\nlogins = true\n"
ADMIN_TLS = "\n[admin]\nhost = '0.0.0.0'\ncertificate = '/c.pem'\nkey = '/c.key'\n"


def test_other_machines_may_reach_what_is_encrypted_and_asks_for_proofs(tmp_path: Path) -> None:
    assert loaded(tmp_path, GOOD).mesh.tls is None
    assert "mesh.host: 10.0.0.1 can be reached" in problem(tmp_path, GOOD, ("mesh.host=10.0.0.1",))
    tls = loaded(tmp_path, GOOD + MESH_TLS, ("mesh.host=10.0.0.1",)).mesh.tls
    assert tls is not None
    assert (tls.client_certificate, tls.tls_version, tls.dials) == ("required", "1.3", True)
    assert "there is no login: set admin.certificate" in problem(tmp_path, GOOD + ADMIN_TLS)
    config = loaded(tmp_path, GOOD + ADMIN_TLS + "logins = true\n")
    assert config.admin.logins
    assert config.admin.tls is not None
    assert config.admin.tokens is None
    taken = "logins = true\noauth_keys = '/keys.json'\noauth_issuer = 'i'\noauth_audience = 'a'\n"
    assert loaded(tmp_path, GOOD + ADMIN_TLS + taken).admin.tokens is not None


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ("[mesh]\ncertificate = '/c.pem'\nkey = '/c.key'", "mesh.ca: it is not set, and TLS needs it"),
        ("[mesh]\nca = '/c.pem'", "leave mesh.ca out"),
        ("[admin]\ncertificate = '/c.pem'", "admin.key: it is not set, and TLS needs it"),
        ("[admin]\nlogins = true", "admin.logins: every password would cross the network as it is"),
        ("[admin]\ntls_version = '1.3'", "admin.tls_version: there is no TLS"),
        ("[admin]\noauth_keys = '/k'", "admin.oauth_keys: no request needs a login: set admin.logins"),
        (f"{LOGINS}oauth_keys = '/k'", "admin.oauth_issuer: it is not set, and logins by tokens need it"),
        (f"{LOGINS}oauth_principal_claim = 'c'", "admin.oauth_principal_claim: no token is taken"),
        (f"{LOGINS}oauth_keys = 'http://id.example.org/k'", "is no URL whose answer can be trusted"),
        ("[mesh]\ncertificate = 'c.pem'", "relative to wherever the node is started"),
    ],
)
def test_tls_of_other_ports_that_cannot_be(tmp_path: Path, lines: str, cause: str) -> None:
    assert cause in problem(tmp_path, f"{GOOD}\n{lines}\n")


def test_leaders_go_back_by_themselves_unless_told_otherwise(tmp_path: Path) -> None:
    topics = loaded(tmp_path).topics
    assert (topics.leader_rebalance, topics.leader_rebalance_seconds) == (True, 5.0)
    topics = loaded(
        tmp_path,
        overrides=("topics.leader_rebalance=false", "topics.leader_rebalance_seconds=1m"),
        STRANDLINE_TOPICS_PARTITIONS="7",
    ).topics
    assert (topics.leader_rebalance, topics.leader_rebalance_seconds, topics.partitions) == (False, 60.0, 7)
    assert topics.replication_factor == 0, "as many as there are nodes, up to three"
    assert "true nor false" in problem(tmp_path, overrides=("topics.leader_rebalance=1",))
    assert "more than nothing" in problem(tmp_path, overrides=("topics.leader_rebalance_seconds=0",))


def test_a_file_with_secrets_that_others_may_read_is_told_of(tmp_path: Path) -> None:
    assert not loaded(tmp_path).notes
    path = tmp_path / "node.toml"
    path.chmod(0o644)
    assert loaded(tmp_path).notes == (
        f"every user of this machine may read {path}, which has secrets: chmod 600 it",
    )
    told = "\n".join(line for line in GOOD.splitlines() if not line.startswith("secret"))
    elsewhere = "long enough for a secret"
    assert told != GOOD.strip()
    assert not loaded(tmp_path, told, STRANDLINE_CLUSTER_SECRET=elsewhere).notes, "it is not in the file"
    options = told + "\n[storage.options]\nsecret_access_key = 'x'\n"
    assert "which has secrets" in loaded(tmp_path, options, STRANDLINE_CLUSTER_SECRET=elsewhere).notes[0]


def test_authorization_is_off_unless_it_is_set(tmp_path: Path) -> None:
    assert not loaded(tmp_path, GOOD).authorization.enabled
    on = loaded(
        tmp_path, GOOD + '[authorization]\nenabled = true\nsuper_users = ["User:admin", "User:CN=a,O=b"]\n'
    )
    assert on.authorization.super_users == ("User:admin", "User:CN=a,O=b")
    assert not on.authorization.allow_everyone_if_no_acl_found
    assert not loaded(tmp_path, GOOD).notes
    (note,) = on.notes
    assert f"the HTTP API, on {on.admin.host}, asks for no login (admin.logins), and" in note


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ('super_users = ["User:admin"]', "nothing is authorized without authorization.enabled = true"),
        ("enabled = true\nsuper_users = ['admin']", 'write like ["User:admin"]'),
        ("enabled = true\nsuper_users = 'User:'", 'write like ["User:admin"]'),
        ("enabled = 1", "neither true nor false"),
    ],
)
def test_a_mistake_in_authorization_is_named(tmp_path: Path, lines: str, cause: str) -> None:
    assert cause in problem(tmp_path, f"{GOOD}[authorization]\n{lines}\n")


def test_a_rack_is_a_name_without_spaces(tmp_path: Path) -> None:
    assert loaded(tmp_path).node.rack == ""
    assert loaded(tmp_path, overrides=("node.rack=eu-west-1a",)).node.rack == "eu-west-1a"
    assert loaded(tmp_path, overrides=("node.rack=7",)).node.rack == "7"
    for wrong in ('"a b"', '"' + "x" * 256 + '"', "true"):
        with pytest.raises(ConfigError, match=r"node\.rack: .* write"):
            loaded(tmp_path, overrides=(f"node.rack={wrong}",))


def test_the_interval_of_checkpoints_is_still_read_by_its_earlier_name(tmp_path: Path) -> None:
    assert loaded(tmp_path).checkpoints.interval == 3600
    old = loaded(tmp_path, GOOD + "[checkpoints]\npublish_seconds = 20\n")
    assert old.checkpoints.interval == 20
    assert [note for note in old.notes if "checkpoints.publish_seconds is now called" in note]
    by_variable = loaded(tmp_path, STRANDLINE_CHECKPOINTS_PUBLISH_SECONDS="30")
    assert by_variable.checkpoints.interval == 30
    newer = loaded(tmp_path, GOOD + "[checkpoints]\npublish_seconds = 20\n", ("checkpoints.interval=0",))
    assert newer.checkpoints.interval == 0
    for names in (("interval", "publish_seconds"), ("publish_seconds", "interval")):
        lines = "".join(f"{name} = 5\n" for name in names)
        told = problem(tmp_path, f"{GOOD}[checkpoints]\n{lines}")
        assert "are one setting: keep checkpoints.interval alone" in told
