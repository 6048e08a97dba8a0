import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.queue.DistributedDelayQueue;
import org.apache.curator.framework.recipes.queue.DistributedIdQueue;
import org.apache.curator.framework.recipes.queue.DistributedPriorityQueue;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBase;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryForever;

/**
 * Both ends of a queue of Curator: {@code Queue HOST:PORT PATH LOCK_PATH|- delay|plain|priority|id ROLE}.
 *
 * <p>The roles: a {@code producer} puts each line that comes in, {@code NUMBER TEXT}, due after that many milliseconds or
 * with that priority or id, and says {@code put TEXT}. A {@code consumer} says {@code took TEXT}, a {@code holder} is
 * never done with what it took, a {@code failing} one fails with each text once, and {@code works:FOLDER} has a file for
 * as long as it works on an item, and says {@code twice TEXT} if somebody else works on it. All end when no more comes in.
 */
public final class Queue {
    /** Puts a text, at a time, with a priority or with an id. */
    private interface Put {
        void put(long number, String text) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 5) {
            System.err.println("usage: Queue HOST:PORT PATH LOCK_PATH|- delay|plain|priority|id ROLE");
            System.exit(2);
        }
        String role = arguments[4];
        Set<String> failed = new HashSet<>();
        QueueConsumer<String> consumer = role.equals("producer") ? null : new QueueConsumer<>() {
            @Override
            public void consumeMessage(String text) throws Exception {
                say("took " + text);
                if (role.equals("holder")) {
                    new CountDownLatch(1).await();
                }
                if (role.equals("failing") && failed.add(text)) {
                    throw new IllegalStateException("it fails once");
                }
                if (role.startsWith("works:")) {
                    work(Path.of(role.substring("works:".length()), text), text);
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
            builder.putInBackground(false);
            QueueBase<String> queue;
            Put put;
            switch (arguments[3]) {
                case "delay" -> {
                    DistributedDelayQueue<String> of = builder.buildDelayQueue();
                    queue = of;
                    put = (number, text) -> of.put(text, System.currentTimeMillis() + number);
                }
                case "plain" -> {
                    DistributedQueue<String> of = builder.buildQueue();
                    queue = of;
                    put = (number, text) -> of.put(text);
                }
                case "priority" -> {
                    DistributedPriorityQueue<String> of = builder.buildPriorityQueue(0);
                    queue = of;
                    put = (number, text) -> of.put(text, (int) number);
                }
                case "id" -> {
                    DistributedIdQueue<String> of = builder.buildIdQueue();
                    queue = of;
                    put = (number, text) -> of.put(text, "id/" + number);
                }
                default -> throw new IllegalArgumentException("no such kind: " + arguments[3]);
            }
            try (queue) {
                queue.start();
                say("started");
                BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
                for (String line = input.readLine(); line != null; line = input.readLine()) {
                    String[] parts = line.split(" ", 2);
                    put.put(Long.parseLong(parts[0]), parts[1]);
                    say("put " + parts[1]);
                }
            }
        }
    }

    /** A file says who works on an item; one of a process that is killed or stopped says nothing. */
    private static void work(Path file, String text) throws IOException, InterruptedException {
        try {
            String other = Files.readString(file);
            String stat = Files.readString(Path.of("/proc", other, "stat"));
            char state = stat.charAt(stat.lastIndexOf(')') + 2);
            if ("TtZX".indexOf(state) < 0) {
                say("twice " + text);
            }
        } catch (NoSuchFileException nobody) {
            // Nobody works on it.
        }
        Files.writeString(file, Long.toString(ProcessHandle.current().pid()));
        Thread.sleep(10);
        Files.deleteIfExists(file);
    }

    private static synchronized void say(String what) {
        System.out.println(what);
        System.out.flush();
    }
}
