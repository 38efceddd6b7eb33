"""The mesh's handshake: who proves what to whom and when, on every order of messages, without a socket."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.node.raft.data_folder import Standing
from strandline.node.raft.folder_file import FolderKey
from strandline.node.raft.mesh.frames import FrameKind, pack_frame
from strandline.node.raft.mesh.handshake import (
    MAGIC,
    NONCE_BYTES,
    Handshake,
    HandshakeRefused,
    HandshakeState,
    Identity,
    Role,
)
from strandline.node.raft.mesh.problems import MeshReason

SECRET = b"a secret that all nodes of the cluster share"
HIGH = Identity("blue", node_id=7, boot_id=70, max_frame_bytes=1 << 20)
LOW = Identity("blue", node_id=3, boot_id=30, max_frame_bytes=1 << 20)
FOLDERS = (0, 0, "", False, 0, 0)
"""In a hello: the own folder's generation, identity, incarnation, newcomer; the other's, as far as known."""
_nonces = itertools.count()


def side(role: Role, identity: Identity, *, secret: bytes = SECRET, dialled: int = 0) -> Handshake:
    nonce = next(_nonces).to_bytes(NONCE_BYTES, "big")
    return Handshake(role, identity, secret=secret, nonce=nonce, dialled=dialled)


def dialler(identity: Identity = HIGH, *, secret: bytes = SECRET, dialled: int = 3) -> Handshake:
    return side(Role.DIALLER, identity, secret=secret, dialled=dialled)


def acceptor(identity: Identity = LOW, *, secret: bytes = SECRET) -> Handshake:
    return side(Role.ACCEPTOR, identity, secret=secret)


def fields(frame: bytes) -> list[Any]:
    message: list[Any] = msgpack.unpackb(frame[4:])
    return message


def body(*message: Any) -> bytes:
    packed: bytes = msgpack.packb(list(message))
    return packed


def refused(handshake: Handshake, frame_body: bytes) -> HandshakeRefused:
    with pytest.raises(HandshakeRefused) as caught:
        handshake.receive(frame_body)
    assert handshake.state is HandshakeState.FAILED
    assert "\n" not in str(caught.value)
    return caught.value


def greet(one: Handshake, other: Handshake) -> bytes:
    """Exchange the hellos; the frame of the dialler's proof."""
    (hello,) = one.start()
    (answer,) = other.receive(hello[4:])
    (proof,) = one.receive(answer[4:])
    return proof


def test_two_nodes_with_one_secret_come_to_know_each_other() -> None:
    one, other = dialler(), acceptor()
    proof = greet(one, other)
    assert (one.state, other.state) == (HandshakeState.AWAIT_WELCOME, HandshakeState.AWAIT_PROOF)
    assert not one.proved
    assert not other.proved
    assert other.receive(proof[4:]) == ()
    assert (other.state, other.proved) == (HandshakeState.DECIDING, True)
    (welcome,) = other.admit()
    assert one.receive(welcome[4:]) == ()
    assert (one.state, one.proved, other.state) == (HandshakeState.DONE, True, HandshakeState.DONE)
    assert (one.peer, other.peer) == (LOW, HIGH)


def test_the_acceptor_speaks_second() -> None:
    assert acceptor().start() == ()


def test_an_acceptor_proves_nothing_to_a_stranger() -> None:
    """Whatever its secret is, until a valid proof came in it says the same."""
    (hello,) = dialler().start()

    def said(secret: bytes) -> list[bytes]:
        other = Handshake(Role.ACCEPTOR, LOW, secret=secret, nonce=bytes(NONCE_BYTES))
        frames = list(other.receive(hello[4:]))
        frames += refused(other, body(FrameKind.PROOF, bytes(32))).frames
        return frames

    assert said(SECRET) == said(b"other")
    assert [fields(frame)[0] for frame in said(SECRET)] == [FrameKind.HELLO, FrameKind.REFUSE]


@pytest.mark.parametrize("wrong", [b"", b"another secret", SECRET + b"\0x"])
def test_a_wrong_secret_is_refused_by_either_side(wrong: bytes) -> None:
    one, other = dialler(secret=wrong), acceptor()
    refusal = refused(other, greet(one, other)[4:])
    assert refusal.reason is MeshReason.WRONG_SECRET
    assert not other.proved
    told = refused(one, refusal.frames[0][4:])
    assert (told.reason, told.fatal) == (MeshReason.WRONG_SECRET, False)
    assert "give every node the same secret" in str(told)

    honest, impostor = dialler(), acceptor(secret=wrong)
    greet(honest, impostor)
    impostor.state = HandshakeState.DECIDING
    assert refused(honest, impostor.admit()[0][4:]).reason is MeshReason.WRONG_SECRET
    assert not honest.proved


def test_a_reflected_hello_is_refused() -> None:
    one = dialler()
    (hello,) = one.start()
    assert refused(one, hello[4:]).reason is MeshReason.OWN_NODE_ID
    other = acceptor()
    (hello,) = dialler().start()
    (answer,) = other.receive(hello[4:])
    assert refused(acceptor(), answer[4:]).reason is MeshReason.OWN_NODE_ID


def test_a_reflected_proof_is_no_welcome() -> None:
    """Who sits at the acceptor's address and knows no secret can only send back what he was given."""
    one, other = dialler(), acceptor()
    proof = fields(greet(one, other))
    assert refused(one, body(FrameKind.WELCOME, proof[1])).reason is MeshReason.WRONG_SECRET


def test_a_signed_refusal_is_no_welcome() -> None:
    one, other = dialler(), acceptor()
    other.receive(greet(one, other)[4:])
    refusal = fields(other.refuse(MeshReason.UNKNOWN_NODE)[0])
    assert refused(one, body(FrameKind.WELCOME, refusal[2])).reason is MeshReason.WRONG_SECRET


def test_a_replayed_dialler_is_refused() -> None:
    one, other = dialler(), acceptor()
    (hello,) = one.start()
    proof = greet(one, other)
    victim = acceptor()
    victim.receive(hello[4:])
    assert refused(victim, proof[4:]).reason is MeshReason.WRONG_SECRET


def test_a_replayed_acceptor_is_refused() -> None:
    one, other = dialler(), acceptor()
    (hello,) = one.start()
    (answer,) = other.receive(hello[4:])
    other.receive(one.receive(answer[4:])[0][4:])
    (welcome,) = other.admit()
    victim = dialler()
    victim.receive(answer[4:])
    assert refused(victim, welcome[4:]).reason is MeshReason.WRONG_SECRET


HELLO_CHANGES: dict[str, tuple[int, Any]] = {
    "newest version": (3, 3),
    "node id": (5, 9),
    "boot id": (6, 71),
    "frame size": (7, 1),
    "nonce": (9, bytes(NONCE_BYTES)),
    "generation": (10, 1),
    "folder": (11, 6),
    "incarnation": (12, "another"),
    "newcomer": (13, True),
}


@pytest.mark.parametrize(("index", "value"), HELLO_CHANGES.values(), ids=HELLO_CHANGES.keys())
def test_a_hello_changed_on_its_way_spoils_the_proof(index: int, value: Any) -> None:
    one, other = dialler(), acceptor()
    (hello,) = one.start()
    changed = fields(hello)
    assert changed[index] != value
    changed[index] = value
    (answer,) = other.receive(body(*changed))
    (proof,) = one.receive(answer[4:])
    assert refused(other, proof[4:]).reason is MeshReason.WRONG_SECRET


MISMATCHES: dict[str, tuple[Identity, int, Identity, MeshReason, str, str]] = {
    "cluster": (
        replace(HIGH, cluster_id="red\n\x1b[31m"),
        3,
        LOW,
        MeshReason.WRONG_CLUSTER,
        r"it belongs to cluster 'blue', this node to 'red\n\x1b[31m': correct cluster_id",
        r"it belongs to cluster 'red\n\x1b[31m', this node to 'blue': correct cluster_id",
    ),
    "another node at the address": (
        HIGH,
        2,
        LOW,
        MeshReason.OTHER_NODE,
        "it is node 3, not 2: correct the peer's address",
        "node 7 dials node 2 here, but this is node 3: correct the address of node 2 there",
    ),
    "the same node id": (
        replace(LOW, boot_id=31),
        3,
        LOW,
        MeshReason.OWN_NODE_ID,
        "it has this node's own id, 3",
        "it has this node's own id, 3",
    ),
    "itself": (
        LOW,
        2,
        LOW,
        MeshReason.OWN_NODE_ID,
        "it is this node itself, 3",
        "it is this node itself, 3",
    ),
    "direction": (
        LOW,
        7,
        HIGH,
        MeshReason.WRONG_DIRECTION,
        "node 7 and node 3: the one with the higher id has to dial",
        "node 3 and node 7: the one with the higher id has to dial",
    ),
    "the dialler is newer": (
        replace(HIGH, versions=(3, 4)),
        3,
        LOW,
        MeshReason.WRONG_VERSION,
        "it speaks mesh protocol version 2, this node versions 3 to 4: upgrade that one",
        "it speaks mesh protocol versions 3 to 4, this node version 2: upgrade this node",
    ),
    "the acceptor is newer": (
        HIGH,
        3,
        replace(LOW, versions=(3, 3)),
        MeshReason.WRONG_VERSION,
        "it speaks mesh protocol version 3, this node version 2: upgrade this node",
        "it speaks mesh protocol version 2, this node version 3: upgrade that one",
    ),
}


@pytest.mark.parametrize(
    ("dials", "wanted", "accepts", "reason", "dialler_says", "acceptor_says"),
    MISMATCHES.values(),
    ids=MISMATCHES.keys(),
)
def test_both_sides_of_a_mismatch_say_what_it_is_and_what_to_do(
    dials: Identity, wanted: int, accepts: Identity, reason: MeshReason, dialler_says: str, acceptor_says: str
) -> None:
    one, other = dialler(dials, dialled=wanted), acceptor(accepts)
    (hello,) = one.start()
    refusal = refused(other, hello[4:])
    assert refusal.reason is reason
    assert acceptor_says in str(refusal)
    answer, told = refusal.frames
    assert fields(told) == [FrameKind.REFUSE, str(reason), b""]
    heard = refused(one, answer[4:])
    assert (heard.reason, heard.frames) == (reason, ())
    assert dialler_says in str(heard)


def with_folder(identity: Identity, generation: int, folder: int) -> Identity:
    return replace(identity, standing=Standing(FolderKey(generation, folder)))


def dials(known: FolderKey | None, accepts: Identity) -> tuple[Handshake, Handshake]:
    """A dialler that knows the acceptor by this folder, and the acceptor, which has to decide."""
    one = Handshake(Role.DIALLER, HIGH, secret=SECRET, nonce=bytes(32), dialled=3, known=known)
    other = acceptor(accepts)
    [hello] = other.receive(one.start()[0][4:])
    [proof] = one.receive(hello[4:])
    other.receive(proof[4:])
    return one, other


def test_acceptor_whose_folder_is_not_the_one_the_dialler_knows_says_so_on_both_sides() -> None:
    one, other = dials(FolderKey(1, 0xA), with_folder(LOW, 1, 0xB))
    why = other.disowned()
    assert why is not None
    assert "node 7 knows this node by data folder 000000000000000a, and this one is" in why
    assert "`strandline node replace 3`" in why
    [told] = other.refuse(MeshReason.OTHER_FOLDER)
    heard = refused(one, told[4:])
    assert one.proved, "the dialler can believe which folder that is"
    assert heard.reason is MeshReason.OTHER_FOLDER
    assert "bring that folder back, or let an empty one in" in str(heard)


@pytest.mark.parametrize(
    ("known", "own"),
    [
        (None, (0, 0xB)),
        (FolderKey(1, 0xB), (1, 0xB)),
        (FolderKey(3, 0xB), (0, 0xB)),
        (FolderKey(1, 0xA), (2, 0xB)),
    ],
    ids=["never met", "the same", "let in, and has not heard of it", "newer than the dialler knows"],
)
def test_acceptor_goes_on_where_its_folder_may_be_the_one_in_force(
    known: FolderKey | None, own: tuple[int, int]
) -> None:
    _, other = dials(known, with_folder(LOW, *own))
    assert other.disowned() is None


def test_versions_that_overlap_are_enough() -> None:
    one, other = dialler(replace(HIGH, versions=(1, 9))), acceptor()
    other.receive(greet(one, other)[4:])
    one.receive(other.admit()[0][4:])
    assert one.state is HandshakeState.DONE


def test_a_later_protocol_may_change_everything_after_the_versions() -> None:
    refusal = refused(acceptor(), body(FrameKind.HELLO, MAGIC, 4, 5, 1.5))
    assert "it speaks mesh protocol versions 4 to 5, this node version 2: upgrade this node" in str(refusal)


def test_a_later_protocol_may_add_fields_but_this_one_may_not() -> None:
    (hello,) = dialler(replace(HIGH, versions=(2, 3))).start()
    assert acceptor().receive(body(*fields(hello), "new"))
    (hello,) = dialler().start()
    assert refused(acceptor(), body(*fields(hello), "new")).reason is MeshReason.GARBAGE


NO_HELLO: dict[str, bytes] = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "other magic": body(1, "kafka", 2, 2, "blue", 7, 70, 1, 3, bytes(32), *FOLDERS),
    "other magic and version": body(1, "kafka", 4, 5),
    "short": body(1, MAGIC, 1),
    "versions": body(1, MAGIC, 2, 1),
    "bool version": body(1, MAGIC, True, True),
    "proof first": body(2, bytes(32)),
    "data first": body(0, "payload"),
    "refusal to an acceptor": body(4, "wrong_secret", b""),
    "cluster id": body(1, MAGIC, 2, 2, b"blue", 7, 70, 1, 3, bytes(32), *FOLDERS),
    "node id 0": body(1, MAGIC, 2, 2, "blue", 0, 70, 1, 3, bytes(32), *FOLDERS),
    "node id": body(1, MAGIC, 2, 2, "blue", 65536, 70, 1, 3, bytes(32), *FOLDERS),
    "boot id": body(1, MAGIC, 2, 2, "blue", 7, 2**63, 1, 3, bytes(32), *FOLDERS),
    "frame size": body(1, MAGIC, 2, 2, "blue", 7, 70, 0, 3, bytes(32), *FOLDERS),
    "wanted": body(1, MAGIC, 2, 2, "blue", 7, 70, 1, -1, bytes(32), *FOLDERS),
    "nonce": body(1, MAGIC, 2, 2, "blue", 7, 70, 1, 3, bytes(31), *FOLDERS),
    "folder": body(1, MAGIC, 2, 2, "blue", 7, 70, 1, 3, bytes(32), 0, -1, "", False, 0, 0),
    "generation": body(1, MAGIC, 2, 2, "blue", 7, 70, 1, 3, bytes(32), "0", 0, "", False, 0, 0),
    "incarnation": body(1, MAGIC, 2, 2, "blue", 7, 70, 1, 3, bytes(32), 0, 0, "i" * 65, False, 0, 0),
    "newcomer": body(1, MAGIC, 2, 2, "blue", 7, 70, 1, 3, bytes(32), 0, 0, "", 0, 0, 0),
    "known folder": body(1, MAGIC, 2, 2, "blue", 7, 70, 1, 3, bytes(32), 0, 0, "", False, 0, 2**63),
    "nonce type": body(1, MAGIC, 2, 2, "blue", 7, 70, 1, 3, "n" * 32, *FOLDERS),
}


@pytest.mark.parametrize("message", NO_HELLO.values(), ids=NO_HELLO.keys())
def test_who_does_not_speak_the_protocol_learns_nothing(message: bytes) -> None:
    refusal = refused(acceptor(), message)
    assert (refusal.reason, refusal.frames) == (MeshReason.GARBAGE, ())


@pytest.mark.parametrize("proof", [(), (b"",), (bytes(31),), ("x" * 32,), (bytes(32), 1)], ids=repr)
def test_a_proof_of_the_wrong_shape_is_garbage(proof: tuple[Any, ...]) -> None:
    one, other = dialler(), acceptor()
    greet(one, other)
    assert refused(other, body(FrameKind.PROOF, *proof)).reason is MeshReason.GARBAGE
    assert refused(one, body(FrameKind.WELCOME, *proof)).reason is MeshReason.GARBAGE


def test_only_a_signed_duplicate_refusal_is_fatal() -> None:
    """Who merely sits at a peer's address must not be able to stop this node."""
    one, other = dialler(), acceptor()
    other.receive(greet(one, other)[4:])
    (signed,) = other.refuse(MeshReason.DUPLICATE_NODE)
    heard = refused(one, signed[4:])
    assert (heard.reason, heard.fatal) == (MeshReason.DUPLICATE_NODE, True)
    assert "stop it, or change its node_id" in str(heard)

    for mac in (b"", bytes(32), fields(signed)[2], "text", None):
        one = dialler()
        greet(one, acceptor())
        heard = refused(one, body(FrameKind.REFUSE, "duplicate_node_id", mac))
        assert (heard.reason, heard.fatal) == (MeshReason.DUPLICATE_NODE, False)
    assert not refused(dialler(), body(FrameKind.REFUSE, "duplicate_node_id", b"")).fatal


def test_the_signature_covers_the_reason() -> None:
    one, other = dialler(), acceptor()
    other.receive(greet(one, other)[4:])
    signed = fields(other.refuse(MeshReason.UNKNOWN_NODE)[0])
    assert not refused(one, body(FrameKind.REFUSE, "duplicate_node_id", signed[2])).fatal


@pytest.mark.parametrize(
    "word", ["from the future", "silent", "garbage", 7, None, [], b"wrong_secret"], ids=repr
)
def test_an_unknown_reason_is_not_repeated_to_the_operator(word: Any) -> None:
    heard = refused(dialler(), body(FrameKind.REFUSE, word, b""))
    assert heard.reason is MeshReason.GARBAGE
    assert "upgrade" in str(heard)
    assert refused(dialler(), body(FrameKind.REFUSE)).reason is MeshReason.GARBAGE


def test_a_repeated_message_changes_nothing() -> None:
    one, other = dialler(), acceptor()
    (hello,) = one.start()
    (answer,) = other.receive(hello[4:])
    assert other.receive(hello[4:]) == ()
    (proof,) = one.receive(answer[4:])
    assert one.receive(answer[4:]) == ()
    assert other.receive(proof[4:]) == other.receive(hello[4:]) == other.receive(proof[4:]) == ()
    (welcome,) = other.admit()
    one.receive(welcome[4:])
    assert (one.state, other.state) == (HandshakeState.DONE, HandshakeState.DONE)


def test_after_a_failure_nothing_is_taken_any_more() -> None:
    one, other = dialler(), acceptor()
    proof = greet(one, other)
    refused(other, body(FrameKind.PROOF, bytes(32)))
    assert refused(other, proof[4:]).reason is MeshReason.GARBAGE


stranger_messages = st.one_of(
    st.binary(max_size=300),
    st.lists(
        st.integers(0, 7)
        | st.sampled_from([MAGIC, "blue", bytes(32), 3, 7, 1])
        | st.none()
        | st.binary(min_size=32, max_size=32)
        | st.text(max_size=10),
        max_size=12,
    ).map(lambda message: body(*message)),
    st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=1).map(lambda mac: body(2, *mac)),
    st.builds(
        lambda node, wanted, nonce: body(1, MAGIC, 2, 2, "blue", node, 5, 1000, wanted, nonce, *FOLDERS),
        st.integers(0, 9),
        st.integers(0, 9),
        st.binary(min_size=32, max_size=32),
    ),
)


@given(st.lists(stranger_messages, max_size=6))
def test_no_stranger_is_ever_believed_and_none_makes_it_raise(messages: list[bytes]) -> None:
    refusals: list[HandshakeRefused] = []
    for handshake in (dialler(), acceptor()):
        for message in messages:
            try:
                handshake.receive(message)
            except HandshakeRefused as refusal:
                refusals.append(refusal)
                break
        assert not handshake.proved
        assert handshake.state not in (HandshakeState.DECIDING, HandshakeState.DONE)
    assert not any(refusal.fatal or "\n" in str(refusal) for refusal in refusals)


@given(seed=st.integers(0, 2**32), same_secret=st.booleans(), meddles=st.booleans())
def test_on_any_network_only_the_secret_opens_the_door(seed: int, same_secret: bool, meddles: bool) -> None:
    """Frames are lost, doubled, reordered, sent back and changed: still, a side that is done is right."""
    rng = random.Random(seed)
    one, other = dialler(), acceptor(secret=SECRET if same_secret else b"other")
    on_the_way = [(other, frame) for frame in one.start()]
    for _ in range(30):
        if not on_the_way:
            break
        target, frame = on_the_way.pop(rng.randrange(len(on_the_way)))
        chance = rng.random()
        if chance < 0.1:
            continue
        if chance < 0.3:
            on_the_way.append((target, frame))
        elif chance < 0.35:
            target = one if target is other else other
        message = bytearray(frame[4:])
        if meddles and rng.random() < 0.3:
            message[rng.randrange(len(message))] ^= 1 << rng.randrange(8)
        try:
            replies = target.receive(bytes(message))
        except HandshakeRefused as refusal:
            replies = refusal.frames
        if target is other and other.state is HandshakeState.DECIDING:
            replies = other.admit()
        on_the_way += [(one if target is other else other, reply) for reply in replies]
    for handshake, truth in ((one, LOW), (other, HIGH)):
        if handshake.proved:
            assert same_secret
            assert handshake.peer == truth
    if one.proved:
        assert other.proved


def test_frames_carry_what_the_documentation_says() -> None:
    one = Handshake(Role.DIALLER, HIGH, secret=SECRET, nonce=bytes(32), dialled=3)
    expected = [1, "strandline-mesh", 2, 2, "blue", 7, 70, 1 << 20, 3, bytes(32), *FOLDERS]
    assert one.start() == (pack_frame(expected),)
