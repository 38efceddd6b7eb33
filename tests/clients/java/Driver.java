import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/** kafka-clients as a driver: the commands are those of tests/clients/drivers/serve.py. */
public final class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration REQUEST = Duration.ofSeconds(20);
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "org.apache.kafka.clients.consumer.RangeAssignor",
        "cooperative", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    private final String bootstrap;
    private final Admin admin;
    private Consumer<String, String> consumer;
    private Producer<String, String> producer;
    private Producer<String, String> plain;
    private Admin way;
    private final List<List<Object>> revoked = new ArrayList<>();
    private final Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
    private final Map<TopicPartition, OffsetAndMetadata> round = new HashMap<>();

    private Driver(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(common());
    }

    public static void main(String[] arguments) throws Exception {
        Driver driver = new Driver(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("ok", driver.carryOut(JSON.readTree(line)));
            } catch (Exception error) { // whatever the client says is the other side's to judge
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                Errors known = Errors.forException(cause);
                String code = known == Errors.UNKNOWN_SERVER_ERROR
                    ? cause.getClass().getSimpleName() : known.name();
                answer.put("failed", Map.of("code", code, "reason", cause.toString()));
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
        System.exit(0); // without waiting for what a test left open
    }

    private Object carryOut(JsonNode command) throws Exception {
        String topic = command.path("topic").asText();
        String group = command.path("group").asText();
        switch (command.get("do").asText()) {
            case "about":
                return Map.of("client", "kafka-clients (Java)", "version", AppInfoParser.getVersion());
            case "create_topic":
                NewTopic wanted = new NewTopic(topic, command.get("partitions").asInt(), (short) 3);
                return admin.createTopics(List.of(wanted)).all().get();
            case "delete_topic":
                return admin.deleteTopics(List.of(topic)).all().get();
            case "produce":
                if (plain == null) {
                    plain = new KafkaProducer<>(producing(Map.of("enable.idempotence", "true")));
                }
                return send(plain, topic, command.get("records"));
            case "subscribe":
                subscribe(command);
                return null;
            case "chain":
                subscribe(command);
                transactional(command.get("id").asText());
                return null;
            case "poll":
                return poll(command.get("seconds").asDouble(), command.get("count").asInt());
            case "commit":
                consumer.commitSync(positions(), REQUEST);
                return null;
            case "transactional":
                transactional(command.get("id").asText());
                return null;
            case "begin":
                producer.beginTransaction();
                return null;
            case "send":
                return send(producer, topic, command.get("records"));
            case "send_offsets":
                producer.sendOffsetsToTransaction(Map.copyOf(round), consumer.groupMetadata());
                return null;
            case "end":
                round.clear();
                if (command.get("commit").asBoolean()) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                return null;
            case "close":
                close();
                return null;
            default:
                return administer(command, group);
        }
    }

    private Object administer(JsonNode command, String group) throws Exception {
        switch (command.get("do").asText()) {
            case "log_in":
                if (way != null) {
                    way.close(Duration.ZERO);
                }
                way = Admin.create(Login.settings(command.get("way")));
                return topics();
            case "topics":
                return topics();
            case "groups":
                return admin.listGroups().all().get().stream().map(one -> one.groupId()).toList();
            case "describe_group":
                var found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                return Map.of("state", found.groupState().toString(), "members", found.members().size());
            case "group_offsets":
                List<List<Object>> told = new ArrayList<>();
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                    .forEach((place, at) -> told.add(List.of(place.topic(), place.partition(), at.offset())));
                return told;
            case "reset_offsets":
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (JsonNode one : command.get("offsets")) {
                    TopicPartition place = new TopicPartition(one.get(0).asText(), one.get(1).asInt());
                    offsets.put(place, new OffsetAndMetadata(one.get(2).asLong()));
                }
                return admin.alterConsumerGroupOffsets(group, offsets).all().get();
            case "delete_group":
                return admin.deleteConsumerGroups(List.of(group)).all().get();
            default:
                throw new IllegalArgumentException("no such command: " + command);
        }
    }

    private List<String> topics() throws Exception {
        return way.listTopics().names().get().stream().sorted().toList();
    }

    private Properties common() {
        Properties made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        made.put("default.api.timeout.ms", String.valueOf(REQUEST.toMillis()));
        made.put("request.timeout.ms", String.valueOf(REQUEST.toMillis()));
        return made;
    }

    private Properties producing(Map<String, String> more) {
        Properties made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        made.put("key.serializer", StringSerializer.class.getName());
        made.put("value.serializer", StringSerializer.class.getName());
        made.put("max.block.ms", String.valueOf(REQUEST.toMillis()));
        made.putAll(more);
        return made;
    }

    private void subscribe(JsonNode command) {
        JsonNode settings = command.get("settings");
        Properties made = common();
        made.put("key.deserializer", StringDeserializer.class.getName());
        made.put("value.deserializer", StringDeserializer.class.getName());
        made.put("group.id", command.get("group").asText());
        made.put("enable.auto.commit", "false");
        made.put("auto.offset.reset", "earliest");
        made.put("isolation.level", settings.path("isolation").asText("read_committed"));
        if (settings.path("protocol").asText().equals("consumer")) {
            made.put("group.protocol", "consumer");
        } else {
            made.put("session.timeout.ms", "6000");
            made.put("heartbeat.interval.ms", "300");
            made.put("partition.assignment.strategy", ASSIGNORS.get(settings.path("assignor").asText("range")));
        }
        if (settings.has("instance")) {
            made.put("group.instance.id", settings.get("instance").asText());
        }
        List<String> topics = new ArrayList<>();
        command.get("topics").forEach(one -> topics.add(one.asText()));
        read.clear();
        round.clear();
        consumer = new KafkaConsumer<>(made);
        consumer.subscribe(topics, new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                partitions.forEach(place -> revoked.add(List.of(place.topic(), place.partition())));
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            }
        });
    }

    private Object poll(double seconds, int count) {
        List<List<Object>> records = new ArrayList<>();
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        List<ConsumerRecord<String, String>> over = new ArrayList<>();
        while (records.size() < count && System.nanoTime() < deadline) {
            Duration left = Duration.ofNanos(Math.max(0, deadline - System.nanoTime()));
            for (ConsumerRecord<String, String> one : consumer.poll(left)) {
                if (records.size() == count) {
                    over.add(one);
                    continue;
                }
                records.add(List.of(one.topic(), one.partition(), one.offset(), one.value()));
                TopicPartition place = new TopicPartition(one.topic(), one.partition());
                read.put(place, new OffsetAndMetadata(one.offset() + 1));
                round.put(place, new OffsetAndMetadata(one.offset() + 1));
            }
        }
        // A poll may bring more than was asked for: what is over comes again.
        for (int last = over.size() - 1; last >= 0; last--) {
            ConsumerRecord<String, String> one = over.get(last);
            consumer.seek(new TopicPartition(one.topic(), one.partition()), one.offset());
        }
        List<List<Object>> taken = List.copyOf(revoked);
        revoked.clear();
        List<List<Object>> assigned = new ArrayList<>();
        consumer.assignment().forEach(place -> assigned.add(List.of(place.topic(), place.partition())));
        return Map.of("records", records, "assigned", assigned, "revoked", taken);
    }

    private Map<TopicPartition, OffsetAndMetadata> positions() {
        Map<TopicPartition, OffsetAndMetadata> held = new HashMap<>(read);
        held.keySet().retainAll(consumer.assignment());
        return held;
    }

    private void transactional(String id) {
        producer = new KafkaProducer<>(producing(Map.of("transactional.id", id)));
        producer.initTransactions();
    }

    private List<Long> send(Producer<String, String> through, String topic, JsonNode records) throws Exception {
        List<Long> offsets = new ArrayList<>();
        for (JsonNode one : records) {
            ProducerRecord<String, String> record =
                new ProducerRecord<>(topic, one.get(0).asInt(), null, one.get(1).asText());
            offsets.add(through.send(record).get().offset());
        }
        return offsets;
    }

    private void close() {
        Consumer<String, String> reading = consumer;
        Producer<String, String> writing = producer;
        consumer = null;
        producer = null;
        if (reading != null) {
            reading.close();
        }
        if (writing != null) {
            writing.close(Duration.ofSeconds(1));
        }
    }
}
