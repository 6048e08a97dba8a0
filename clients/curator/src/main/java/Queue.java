import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryForever;

/**
 * Both ends of a delay queue of Curator: {@code Queue HOST:PORT PATH LOCK_PATH|- consumer|holder|producer}.
 *
 * <p>A producer puts each line that comes in, {@code MILLISECONDS TEXT}, due after that time, and says {@code put TEXT}. A
 * consumer says {@code took TEXT}, and a holder is never done with what it took. All end when no more comes in.
 */
public final class Queue {
    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 4) {
            System.err.println("usage: Queue HOST:PORT PATH LOCK_PATH|- consumer|holder|producer");
            System.exit(2);
        }
        QueueConsumer<String> consumer = arguments[3].equals("producer") ? null : new QueueConsumer<>() {
            @Override
            public void consumeMessage(String text) throws InterruptedException {
                say("took " + text);
                if (arguments[3].equals("holder")) {
                    new CountDownLatch(1).await();
                }
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {}
        };
        QueueSerializer<String> serializer = new QueueSerializer<>() {
            @Override
            public byte[] serialize(String text) {
                return text.getBytes(StandardCharsets.UTF_8);
            }

            @Override
            public String deserialize(byte[] bytes) {
                return new String(bytes, StandardCharsets.UTF_8);
            }
        };
        try (CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(arguments[0])
                .sessionTimeoutMs(4_000)
                .retryPolicy(new RetryForever(100))
                .build()) {
            client.start();
            QueueBuilder<String> builder = QueueBuilder.builder(client, consumer, serializer, arguments[1]);
            if (!arguments[2].equals("-")) {
                builder.lockPath(arguments[2]);
            }
            try (DistributedDelayQueue<String> queue = builder.putInBackground(false).buildDelayQueue()) {
                queue.start();
                say("started");
                BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
                for (String line = input.readLine(); line != null; line = input.readLine()) {
                    String[] parts = line.split(" ", 2);
                    queue.put(parts[1], System.currentTimeMillis() + Long.parseLong(parts[0]));
                    say("put " + parts[1]);
                }
            }
        }
    }

    private static synchronized void say(String what) {
        System.out.println(what);
        System.out.flush();
    }
}
