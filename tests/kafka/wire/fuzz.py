"""Mutated requests against a live server: only their connection closes, memory stays flat, nothing escapes.

    python -m tests.kafka.wire.fuzz [frames] [seed]

A witness connection asks in between and must always be answered.
"""

from __future__ import annotations

import asyncio
import random
import resource
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import uvloop

from strandline.node.kafka.wire.apis import APIS
from strandline.node.kafka.wire.handler import Request
from strandline.node.kafka.wire.record_batch import BatchLimits, InvalidBatch, validate_produced
from strandline.node.kafka.wire.server import KafkaServer, ListenAddress
from strandline.node.kafka.wire.server_config import ConnectionProblem, ServerConfig
from tests.kafka.wire.batches import build
from tests.kafka.wire.entities import VERSIONS, encoded, random_request
from tests.kafka.wire.server_harness import answer_to, init

EXPECTED = frozenset({"malformed_frame", "oversized_frame", "unsupported_request", "refused_by_handler"})
INTERESTING = bytes([0, 1, 0x7F, 0x80, 0xFF])
AFTER = 77
MAX_FRAME = 1 << 20


@dataclass
class Outcome:
    frames: int = 0
    answered: int = 0
    dropped: int = 0
    silent: int = 0
    witnessed: int = 0
    closed: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    escaped: list[str] = field(default_factory=list)
    grown_kb: int = 0
    """By how much the process grew after its first fifth."""


class Judge:
    """Looks at records as a broker would, and answers with an entity that any request accepts."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    async def handle(self, asked: Request) -> Any:
        if asked.header.api_key == 0:
            for topic in asked.payload.topic_data:
                for partition in topic.partition_data:
                    self._judge(partition.records, asked.header.api_version)
        if asked.header.api_key in (0, 22):
            return answer_to(asked)
        await asyncio.sleep(0)
        return None

    def _judge(self, records: bytes | None, version: int) -> None:
        try:
            validate_produced(records, version=version, limits=BatchLimits(max_decompressed_bytes=1 << 20))
        except InvalidBatch as error:
            self._outcome.judged[error.refusal.reason.name.lower()] += 1
        else:
            self._outcome.judged["accepted"] += 1


def seeds(rng: random.Random) -> list[bytes]:
    """Well-formed frames of every version, some with real record batches, without their length."""
    frames = []
    for api_key, version in VERSIONS:
        tags = b"\0" if version >= APIS[api_key].flexible else b""
        front = struct.pack(">hhih", api_key, version, 5, 2) + b"me" + tags
        frames += [front + encoded(random_request(rng, api_key, version)) for _ in range(3)]
    partition = struct.pack(">ii", 0, len(build())) + build()
    body = struct.pack(">hhiih", -1, -1, 1000, 1, 1) + b"t" + struct.pack(">i", 1) + partition
    frames += [struct.pack(">hhih", 0, 3, 5, -1) + body] * 30
    return frames


def mutate(rng: random.Random, frame: bytes) -> bytes:
    """A frame with its length in front; in one of twenty the length lies too."""
    body = bytearray(frame)
    for _ in range(rng.choice((0, 1, 1, 2, 4, 8))):
        kind = rng.randrange(5)
        position = rng.randrange(len(body)) if body else 0
        if kind == 0 and body:
            body[position] = rng.choice(INTERESTING)
        elif kind == 1 and body:
            body[position] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del body[position : position + rng.randrange(1, 9)]
        elif kind == 3:
            body[position:position] = rng.randbytes(rng.randrange(1, 9))
        else:
            body[position : position + 5] = rng.choice(
                (b"\xff" * 5, b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f")
            )
    length = len(body) if rng.random() < 0.95 else rng.choice((0, -1, 2**31 - 1, len(body) + 3, MAX_FRAME))
    return struct.pack(">i", length) + body


async def attack(port: int, frames: list[bytes], outcome: Outcome) -> None:
    """Send each frame on a connection of its own, with a good request behind it."""
    for frame in frames:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        outcome.frames += 1
        writer.write(frame + init(AFTER))
        received = b""
        try:
            while data := await asyncio.wait_for(reader.read(1 << 16), 0.05):
                received += data
                if struct.pack(">i", AFTER) in received:
                    outcome.answered += 1
                    break
            else:
                outcome.dropped += 1
        except TimeoutError:
            outcome.silent += 1  # its length promises more than was sent
        except ConnectionError:
            outcome.dropped += 1
        writer.transport.abort()


async def run(frames: int, seed: int) -> Outcome:
    outcome = Outcome()
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: outcome.escaped.append(repr(context)))

    def problem(found: ConnectionProblem) -> None:
        outcome.closed[str(found.reason)] += 1
        if found.reason not in EXPECTED:
            outcome.escaped.append(str(found))

    config = ServerConfig(max_frame_bytes=MAX_FRAME, max_elements=10_000)
    server = KafkaServer(Judge(outcome), loop=loop, config=config, on_problem=problem)
    await server.start([ListenAddress("127.0.0.1", 0)])
    corpus = seeds(rng)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    before = 0
    while outcome.frames < frames:
        count = min(1_000, frames - outcome.frames)
        mutated = [mutate(rng, rng.choice(corpus)) for _ in range(count)]
        share = -(-count // 16)
        groups = [mutated[start : start + share] for start in range(0, count, share)]
        await asyncio.gather(*(attack(server.port, group, outcome) for group in groups))
        writer.write(init(outcome.witnessed))
        (size, number) = struct.unpack(">ii", await asyncio.wait_for(reader.readexactly(8), 5))
        await reader.readexactly(size - 4)
        assert number == outcome.witnessed
        outcome.witnessed += 1
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before = before if before and outcome.frames > frames // 5 else peak
        outcome.grown_kb = peak - before
    writer.close()
    await asyncio.sleep(0.1)
    await server.stop(1.0)
    if server.connections or server.request_bytes:
        outcome.escaped.append(f"{server.connections} connections and {server.request_bytes} bytes are left")
    return outcome


def main() -> int:
    frames = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    outcome = uvloop.run(run(frames, seed))
    ends = f"{outcome.answered} passed, {outcome.dropped} were dropped, {outcome.silent} incomplete"
    print(f"{outcome.frames} frames, seed {seed}: {ends}")
    print(f"closed: {dict(outcome.closed)}")
    print(f"records: {dict(outcome.judged)}")
    print(f"witness answered {outcome.witnessed} times, memory grew by {outcome.grown_kb} KB")
    for line in outcome.escaped[:10]:
        print(f"escaped: {line}")
    return 1 if outcome.escaped else 0


if __name__ == "__main__":
    sys.exit(main())
