import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryForever;

/**
 * What {@code lockgate-bench curator} measures of Curator's delay queues: {@code Measure HOST:PORT}. An item is its due
 * time in milliseconds, and spaces.
 *
 * <p>{@code put PATH COUNT CALLERS FIRST STEP} puts items, due at FIRST and then every STEP milliseconds, and says how
 * many nanoseconds that took. {@code take PATH COUNT} opens a consumer with locks and says how many nanoseconds it took
 * until it had so many items, and how many milliseconds after its due time each one came.
 */
public final class Measure {
    private static final QueueSerializer<String> SERIALIZER = new QueueSerializer<>() {
        @Override
        public byte[] serialize(String text) {
            return text.getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public String deserialize(byte[] bytes) {
            return new String(bytes, StandardCharsets.UTF_8);
        }
    };

    private final CuratorFramework client;
    private final Map<String, DistributedDelayQueue<String>> producers = new HashMap<>();

    private Measure(CuratorFramework client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        try (CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(arguments[0])
                .retryPolicy(new RetryForever(100))
                .build()) {
            client.start();
            Measure measure = new Measure(client);
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.split(" ");
                int count = Integer.parseInt(words[2]);
                System.out.println(words[0].equals("put")
                        ? measure.put(words[1], count, Integer.parseInt(words[3]), Long.parseLong(words[4]),
                                Long.parseLong(words[5]))
                        : measure.take(words[1], count));
                System.out.flush();
            }
        }
        // A queue that is still open must not keep the program.
        System.exit(0);
    }

    private QueueBuilder<String> builder(String path, QueueConsumer<String> consumer) {
        return QueueBuilder.builder(client, consumer, SERIALIZER, path)
                .lockPath(path + "-locks")
                .putInBackground(false);
    }

    private String put(String path, int count, int callers, long first, long step) throws Exception {
        DistributedDelayQueue<String> queue = producers.get(path);
        if (queue == null) {
            queue = builder(path, null).buildDelayQueue();
            queue.start();
            producers.put(path, queue);
        }
        DistributedDelayQueue<String> to = queue;
        List<Callable<Void>> puts = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            long due = first + step * number;
            puts.add(() -> {
                to.put(String.format("%-100d", due), due);
                return null;
            });
        }
        ExecutorService threads = Executors.newFixedThreadPool(callers);
        long began = System.nanoTime();
        for (var put : threads.invokeAll(puts)) {
            put.get();
        }
        long took = System.nanoTime() - began;
        threads.shutdown();
        return Long.toString(took);
    }

    private String take(String path, int count) throws Exception {
        int left = children(path) - count;
        List<Long> late = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch taken = new CountDownLatch(count);
        DistributedDelayQueue<String> queue = builder(path, new QueueConsumer<>() {
            @Override
            public void consumeMessage(String text) {
                late.add(System.currentTimeMillis() - Long.parseLong(text.trim()));
                taken.countDown();
            }

            @Override
            public void stateChanged(CuratorFramework client, ConnectionState state) {}
        }).buildDelayQueue();
        long began = System.nanoTime();
        queue.start();
        if (!taken.await(10, TimeUnit.MINUTES)) {
            throw new IllegalStateException("the items do not come");
        }
        long took = System.nanoTime() - began;
        // The last one is deleted after it was consumed, and would come again if the queue were closed before.
        while (children(path) > left) {
            Thread.sleep(5);
        }
        queue.close();
        StringBuilder said = new StringBuilder(Long.toString(took));
        late.forEach(one -> said.append(' ').append(one));
        return said.toString();
    }

    private int children(String path) throws Exception {
        return client.checkExists().forPath(path).getNumChildren();
    }
}
