import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.StateRestoreListener;

/**
 * A Kafka Streams application: amounts by account become, after a repartitioning, totals by group of accounts;
 * beside it each account's newest amount is kept, and an amount of 0 deletes it. Exactly once, state in RocksDB.
 *
 * <p>Arguments: bootstrap servers, application id, state folder, input, totals, newest, settings of the internal
 * topics as name=value with commas between them. Prints a line for each change of state and each store that was
 * restored; ends when its standard input does.
 */
public final class Totals {
    private static final int GROUPS = 5;

    private Totals() {
    }

    public static void main(String[] arguments) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> amounts = builder.stream(arguments[3]);
        amounts
            .selectKey((account, amount) -> "group-" + Integer.parseInt(account.substring(1)) % GROUPS)
            .repartition(Repartitioned.<String, String>as("by-group").withNumberOfPartitions(2))
            .groupByKey()
            .aggregate(
                () -> "0",
                (group, amount, total) -> Long.toString(Long.parseLong(total) + Long.parseLong(amount)),
                Materialized.as("totals"))
            .toStream()
            .to(arguments[4]);
        amounts
            .groupByKey()
            .aggregate(
                () -> "0", (account, amount, before) -> amount.equals("0") ? null : amount,
                Materialized.as("newest"))
            .toStream()
            .to(arguments[5]);

        KafkaStreams streams = new KafkaStreams(builder.build(), settings(arguments));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> System.out.println("state " + now));
        streams.setGlobalStateRestoreListener(new Restored());
        streams.start();
        while (System.in.read() >= 0) {
            // Only its end matters.
        }
        streams.close(Duration.ofSeconds(20));
        System.out.println("closed");
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.putAll(Map.of(
            StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0],
            StreamsConfig.APPLICATION_ID_CONFIG, arguments[1],
            StreamsConfig.STATE_DIR_CONFIG, Path.of(arguments[2]).toString(),
            StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2,
            StreamsConfig.REPLICATION_FACTOR_CONFIG, 3,
            StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class,
            StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class));
        // Every update is written, so that the tests can count them.
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.REPARTITION_PURGE_INTERVAL_MS_CONFIG, 1000);
        // A killed instance is missed after six seconds, and its transaction ends after five.
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 1000);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 5000);
        for (String setting : arguments[6].split(",")) {
            String[] parts = setting.split("=");
            settings.put(StreamsConfig.topicPrefix(parts[0]), parts[1]);
        }
        return settings;
    }

    /** Tells of each store that was restored from its changelog, and of how many records. */
    private static final class Restored implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition place, String store, long first, long end) {
        }

        @Override
        public void onBatchRestored(TopicPartition place, String store, long end, long count) {
        }

        @Override
        public void onRestoreEnd(TopicPartition place, String store, long count) {
            System.out.println("restored " + store + " " + place.partition() + " " + count);
        }
    }
}
