import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Rounds of transactions without a pause between them: a record to each partition of a topic, and an offset of a group.
 * Arguments: bootstrap servers, topic, group, rounds, transactions per round. Each round has a producer of its own.
 */
@SuppressWarnings("removal") // the constructor of ConsumerGroupMetadata: a group without members is enough here
public class BackToBack {
    public static void main(String[] args) {
        String topic = args[1];
        int rounds = Integer.parseInt(args[3]);
        int transactions = Integer.parseInt(args[4]);
        int failed = 0;
        for (int round = 0; round < rounds; round++) {
            try {
                run(args[0], topic, args[2], round, transactions);
            } catch (Exception error) {
                failed++;
                System.out.println("round " + round + ": " + error + ", caused by " + error.getCause());
            }
        }
        System.out.println(failed + " of " + rounds + " rounds failed");
    }

    private static void run(String bootstrap, String topic, String group, int round, int transactions) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("transactional.id", topic + "-" + round);
        try (var producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            List<PartitionInfo> partitions = producer.partitionsFor(topic);
            for (int number = 0; number < transactions; number++) {
                producer.beginTransaction();
                for (PartitionInfo one : partitions) {
                    producer.send(new ProducerRecord<>(topic, one.partition(), null, round + "." + number));
                }
                var offset = new OffsetAndMetadata((long) round * transactions + number + 1);
                producer.sendOffsetsToTransaction(
                        Map.of(new TopicPartition(topic, 0), offset), new ConsumerGroupMetadata(group));
                producer.commitTransaction();
            }
        }
    }
}
