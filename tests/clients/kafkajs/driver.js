"use strict";
// kafkajs as a driver: the commands are those of tests/clients/drivers/serve.py.

const fs = require("node:fs");
const readline = require("node:readline");
const { AssignerProtocol, Kafka, logLevel } = require("kafkajs");

const REQUEST_MS = 20_000;
const LOGIN_MS = 2_000;
const kafka = new Kafka({
  brokers: process.argv[2].split(","),
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 50, retries: 12 },
});
const admin = kafka.admin({ retry: { initialRetryTime: 50, retries: 4 } });
let administered = false;
let plain = null;
let way = null;
let consumer = null;
let producer = null;
let transaction = null;
let group = null;
let failed = null;
let arrived = []; // messages, each with a function that lets its batch go on
let assigned = new Map();
let revoked = [];
let read = new Map();
let round = new Map();

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const key = (topic, partition) => `${topic}/${partition}`;

// The range assignor of the Java client, of which kafkajs has none.
const range = ({ cluster }) => ({
  name: "range",
  version: 0,
  async assign({ members, topics }) {
    const given = new Map(members.map((one) => [one.memberId, {}]));
    const ids = [...given.keys()].sort();
    for (const topic of topics) {
      const partitions = cluster.findTopicPartitionMetadata(topic).map((one) => one.partitionId).sort((a, b) => a - b);
      let next = 0;
      ids.forEach((id, place) => {
        const count = Math.floor(partitions.length / ids.length) + (place < partitions.length % ids.length ? 1 : 0);
        given.get(id)[topic] = partitions.slice(next, next + count);
        next += count;
      });
    }
    return [...given].map(([memberId, assignment]) => ({
      memberId,
      memberAssignment: AssignerProtocol.MemberAssignment.encode({ version: 0, assignment, userData: Buffer.alloc(0) }),
    }));
  },
  protocol: ({ topics }) => ({
    name: "range",
    metadata: AssignerProtocol.MemberMetadata.encode({ version: 0, topics, userData: Buffer.alloc(0) }),
  }),
});

async function administration() {
  if (!administered) {
    await admin.connect();
    administered = true;
  }
  return admin;
}

function login({ mechanism, user, password, token }) {
  if (mechanism === undefined) return undefined;
  if (token === undefined) return { mechanism: mechanism.toLowerCase(), username: user, password };
  return { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: fs.readFileSync(token, "utf8") }) };
}

async function send(through, topic, records) {
  const offsets = [];
  for (const [partition, value] of records) {
    const [done] = await through.send({ topic, messages: [{ partition, value }], acks: -1 });
    offsets.push(Number(done.baseOffset));
  }
  return offsets;
}

function hold(given) {
  const held = new Map();
  for (const [topic, partitions] of Object.entries(given)) {
    for (const partition of partitions) held.set(key(topic, partition), [topic, partition]);
  }
  for (const [name, place] of assigned) {
    if (!held.has(name)) revoked.push(place);
  }
  assigned = held;
  read = new Map([...read].filter(([name]) => held.has(name)));
  arrived = arrived.filter((one) => {
    if (!held.has(key(one.topic, one.partition))) one.done(false);
    return held.has(key(one.topic, one.partition));
  });
}

function positions(of) {
  return [...of.values()].map(([topic, partition, offset]) => ({ topic, partition, offset: String(offset) }));
}

const commands = {
  about: () => ({ client: "kafkajs", version: require("kafkajs/package.json").version }),
  create_topic: async ({ topic, partitions }) => {
    await (await administration()).createTopics({ topics: [{ topic, numPartitions: partitions, replicationFactor: 3 }] });
  },
  delete_topic: async ({ topic }) => (await administration()).deleteTopics({ topics: [topic] }),
  produce: async ({ topic, records }) => {
    if (plain === null) {
      plain = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
      await plain.connect();
    }
    return send(plain, topic, records);
  },
  subscribe: async ({ topics, group: id, settings }) => {
    group = id;
    [arrived, assigned, revoked, read, round] = [[], new Map(), [], new Map(), new Map()];
    consumer = kafka.consumer({
      groupId: id,
      sessionTimeout: 6000,
      heartbeatInterval: 300,
      maxWaitTimeInMs: 500,
      readUncommitted: settings.isolation === "read_uncommitted",
      partitionAssigners: [range],
      retry: { initialRetryTime: 50, retries: 12 },
    });
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => hold(payload.memberAssignment));
    await consumer.connect();
    await consumer.subscribe({ topics, fromBeginning: true });
    // Not awaited: it goes on once it has joined, for which the other members have to poll.
    failed = null;
    const running = consumer.run({
      autoCommit: false,
      eachBatchAutoResolve: false,
      partitionsConsumedConcurrently: 16,
      // A batch waits until its messages were polled, and says so to the group meanwhile.
      eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
        for (const message of batch.messages) {
          const one = { topic: batch.topic, partition: batch.partition, message, taken: null };
          const taken = new Promise((done) => (one.done = done));
          arrived.push(one);
          let answer = null;
          while (answer === null) {
            if (!isRunning() || isStale()) {
              arrived = arrived.filter((other) => other !== one);
              return;
            }
            answer = await Promise.race([taken, sleep(100).then(() => null)]);
            if (answer === null) await heartbeat();
          }
          if (!answer) return;
          resolveOffset(message.offset);
        }
      },
    });
    running.catch((error) => (failed = error));
  },
  chain: async (command) => {
    await commands.subscribe(command);
    await commands.transactional(command);
  },
  poll: async ({ seconds, count }) => {
    const deadline = Date.now() + seconds * 1000;
    const records = [];
    while (records.length < count && Date.now() < deadline) {
      if (failed !== null) throw failed;
      const one = arrived.shift();
      if (one === undefined) {
        await sleep(5);
        continue;
      }
      const offset = Number(one.message.offset);
      records.push([one.topic, one.partition, offset, one.message.value.toString()]);
      read.set(key(one.topic, one.partition), [one.topic, one.partition, offset + 1]);
      round.set(key(one.topic, one.partition), [one.topic, one.partition, offset + 1]);
      one.done(true);
      await sleep(0);
    }
    const taken = revoked;
    revoked = [];
    return { records, assigned: [...assigned.values()], revoked: taken };
  },
  commit: () => consumer.commitOffsets(positions(read)),
  transactional: async ({ id }) => {
    producer = kafka.producer({ transactionalId: id, idempotent: true, maxInFlightRequests: 1 });
    await producer.connect();
    await (await producer.transaction()).abort(); // initialises: what the id had before is fenced
  },
  begin: async () => {
    transaction = await producer.transaction();
  },
  send: ({ topic, records }) => send(transaction, topic, records),
  send_offsets: () => {
    const topics = new Map();
    for (const { topic, partition, offset } of positions(round)) {
      if (!topics.has(topic)) topics.set(topic, { topic, partitions: [] });
      topics.get(topic).partitions.push({ partition, offset });
    }
    return transaction.sendOffsets({ consumerGroupId: group, topics: [...topics.values()] });
  },
  end: ({ commit }) => {
    round = new Map();
    return commit ? transaction.commit() : transaction.abort();
  },
  close: async () => {
    const [reading, writing] = [consumer, producer];
    [consumer, producer, transaction] = [null, null, null];
    if (reading !== null) await reading.disconnect();
    if (writing !== null) await writing.disconnect();
  },
  log_in: async ({ way: given }) => {
    const { bootstrap, ca, certificate, key: private_ } = given;
    const pair = certificate && { cert: fs.readFileSync(certificate), key: fs.readFileSync(private_) };
    const client = new Kafka({
      brokers: [bootstrap],
      logLevel: logLevel.NOTHING,
      ssl: { ca: [fs.readFileSync(ca)], ...pair },
      sasl: login(given),
      connectionTimeout: LOGIN_MS,
      authenticationTimeout: LOGIN_MS,
      requestTimeout: LOGIN_MS,
      reauthenticationThreshold: 1_000,
      retry: { retries: 0 },
    });
    way = client.admin({ retry: { retries: 0 } });
    await way.connect();
    return commands.topics();
  },
  topics: async () => (await way.listTopics()).sort(),
  groups: async () => (await (await administration()).listGroups()).groups.map((one) => one.groupId),
  describe_group: async ({ group: id }) => {
    const [found] = (await (await administration()).describeGroups([id])).groups;
    return { state: found.state, members: found.members.length };
  },
  group_offsets: async ({ group: groupId }) =>
    (await (await administration()).fetchOffsets({ groupId })).flatMap(({ topic, partitions }) =>
      partitions.map(({ partition, offset }) => [topic, partition, Number(offset)]),
    ),
  reset_offsets: async ({ group: groupId, offsets }) => {
    for (const [topic, partition, offset] of offsets) {
      await (await administration()).setOffsets({ groupId, topic, partitions: [{ partition, offset: String(offset) }] });
    }
  },
  delete_group: async ({ group: id }) => (await administration()).deleteGroups([id]),
};

function codeOf(error) {
  const named = error.type ?? error.groups?.[0]?.error?.type ?? error.originalError?.type ?? error.cause?.type;
  return named ?? error.name;
}

function bounded(work) {
  let timer;
  const over = new Promise((_, fail) => {
    timer = setTimeout(() => fail(new Error("the client does not answer")), REQUEST_MS);
  });
  return Promise.race([work, over]).finally(() => clearTimeout(timer));
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    let answer;
    try {
      answer = { ok: (await bounded(commands[command.do](command))) ?? null };
    } catch (error) {
      answer = { failed: { code: codeOf(error), reason: String(error) } };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0); // without waiting for what a test left open
}

main();
