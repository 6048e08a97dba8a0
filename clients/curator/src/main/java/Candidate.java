import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.concurrent.CountDownLatch;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;

/**
 * A candidate by a recipe of Curator: {@code Candidate HOST:PORT PATH latch|selector|mutex ID}.
 *
 * <p>Says {@code leads} when it does, leads until a line comes in, says {@code left} when it has given it back, and ends.
 */
public final class Candidate {
    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 4) {
            System.err.println("usage: Candidate HOST:PORT PATH latch|selector|mutex ID");
            System.exit(2);
        }
        String path = arguments[1];
        String id = arguments[3];
        try (CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(arguments[0])
                .sessionTimeoutMs(4_000)
                .retryPolicy(new RetryForever(100))
                .build()) {
            client.start();
            switch (arguments[2]) {
                case "latch" -> latch(client, path, id);
                case "selector" -> selector(client, path, id);
                case "mutex" -> mutex(client, path);
                default -> throw new IllegalArgumentException("no such recipe: " + arguments[2]);
            }
        }
        say("left");
    }

    private static void latch(CuratorFramework client, String path, String id) throws Exception {
        try (LeaderLatch latch = new LeaderLatch(client, path, id)) {
            latch.start();
            latch.await();
            lead();
        }
    }

    private static void selector(CuratorFramework client, String path, String id) throws Exception {
        CountDownLatch led = new CountDownLatch(1);
        try (LeaderSelector selector = new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
            @Override
            public void takeLeadership(CuratorFramework ignored) throws Exception {
                lead();
                led.countDown();
            }
        })) {
            selector.setId(id);
            selector.start();
            led.await();
        }
    }

    private static void mutex(CuratorFramework client, String path) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, path);
        mutex.acquire();
        lead();
        mutex.release();
    }

    private static void lead() throws IOException {
        say("leads");
        INPUT.readLine();
    }

    private static void say(String what) {
        System.out.println(what);
        System.out.flush();
    }
}
