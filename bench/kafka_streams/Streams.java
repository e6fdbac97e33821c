import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.time.Instant;
import java.util.Properties;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.TimestampExtractor;

/**
 * The windowed count and the stream–table join of the benchmark as a Kafka Streams program, exactly once.
 *
 * <p>Arguments: bootstrap, count|join, input, table, output, application id, state folder, threads, records, passes,
 * delay of the watermark in seconds. With passes it reads all records so often, each time as a new application, and
 * prints the seconds of the last four fifths and the CPU seconds of the whole pass; without it runs until it is ended.
 */
public final class Streams {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Duration WINDOW = Duration.ofMinutes(1);
  private static final TimestampExtractor EVENT_TIME =
      (record, before) -> Instant.parse(((JsonNode) record.value()).get("at").asText()).toEpochMilli();

  public static void main(String[] given) throws Exception {
    String work = given[1];
    long records = Long.parseLong(given[8]);
    int passes = Integer.parseInt(given[9]);
    for (int pass = 0; pass < Math.max(passes, 1); pass++) {
      LongAdder done = new LongAdder();
      String output = passes == 0 ? given[4] : given[4] + "-" + pass;
      Topology topology = work.equals("count")
          ? count(given[2], output, Duration.ofSeconds(Long.parseLong(given[10])), done)
          : join(given[2], given[3], output, done);
      double cpuBefore = cpuSeconds();
      KafkaStreams streams = new KafkaStreams(topology, settings(given, pass));
      if (passes == 0) {
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
      }
      streams.start();
      if (passes == 0) {
        Thread.sleep(Long.MAX_VALUE);
      }
      await(streams, done, records / 5);
      long from = done.sum();
      long started = System.nanoTime();
      await(streams, done, records);
      double seconds = (System.nanoTime() - started) / 1e9;
      streams.close();
      System.out.printf(
          "{\"rows\": %d, \"seconds\": %.3f, \"cpu_s\": %.3f}%n", records - from, seconds, cpuSeconds() - cpuBefore);
      streams.cleanUp();
    }
  }

  private static Properties settings(String[] given, int pass) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given[5] + "-" + pass);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, given[6]);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, given[7]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
    return settings;
  }

  private static Topology count(String input, String output, Duration delay, LongAdder done) {
    StreamsBuilder builder = new StreamsBuilder();
    builder
        .stream(input, Consumed.with(Serdes.String(), json()).withTimestampExtractor(EVENT_TIME))
        .groupBy((user, click) -> click.get("page").asText(), Grouped.with(Serdes.String(), json()))
        .windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, delay))
        .aggregate(
            () -> 0L,
            (page, click, views) -> {
              done.increment();
              return views + 1;
            },
            Materialized.with(Serdes.String(), Serdes.Long()))
        .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
        .toStream()
        .map((window, views) -> {
          ObjectNode row = JSON.createObjectNode();
          row.put("minute", window.window().startTime().toString());
          row.put("page", window.key());
          row.put("views", views);
          return KeyValue.pair(window.key(), (JsonNode) row);
        })
        .to(output, Produced.with(Serdes.String(), json()));
    return builder.build();
  }

  private static Topology join(String input, String table, String output, LongAdder done) {
    StreamsBuilder builder = new StreamsBuilder();
    KTable<String, JsonNode> users = builder.table(table, Consumed.with(Serdes.String(), json()));
    KStream<String, JsonNode> clicks = builder.stream(input, Consumed.with(Serdes.String(), json()));
    clicks
        .join(
            users,
            (click, user) -> {
              ObjectNode row = ((ObjectNode) click).put("country", user.get("country").asText());
              return (JsonNode) row;
            },
            Joined.with(Serdes.String(), json(), json()))
        .peek((user, row) -> done.increment())
        .to(output, Produced.with(Serdes.String(), json()));
    return builder.build();
  }

  private static Serde<JsonNode> json() {
    Serializer<JsonNode> write = (topic, value) -> {
      try {
        return value == null ? null : JSON.writeValueAsBytes(value);
      } catch (java.io.IOException error) {
        throw new IllegalStateException(error);
      }
    };
    Deserializer<JsonNode> read = (topic, bytes) -> {
      try {
        return bytes == null ? null : JSON.readTree(bytes);
      } catch (java.io.IOException error) {
        throw new IllegalStateException(error);
      }
    };
    return Serdes.serdeFrom(write, read);
  }

  private static void await(KafkaStreams streams, LongAdder done, long wanted) throws InterruptedException {
    while (done.sum() < wanted) {
      if (streams.state() == KafkaStreams.State.ERROR) {
        throw new IllegalStateException("Kafka Streams stopped with an error");
      }
      Thread.sleep(5);
    }
  }

  private static double cpuSeconds() {
    return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
  }
}
