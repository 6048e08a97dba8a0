import java.net.URI;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sns.SnsClient;
import software.amazon.awssdk.services.sns.model.InvalidParameterException;
import software.amazon.awssdk.services.sns.model.MessageAttributeValue;
import software.amazon.awssdk.services.sns.model.NotFoundException;
import software.amazon.awssdk.services.sns.model.PublishBatchRequestEntry;
import software.amazon.awssdk.services.sns.model.PublishBatchResultEntry;
import software.amazon.awssdk.services.sns.model.SnsException;
import software.amazon.awssdk.services.sns.model.Subscription;
import software.amazon.awssdk.services.sns.model.Tag;
import software.amazon.awssdk.services.sns.model.TooManyEntriesInBatchRequestException;
import software.amazon.awssdk.services.sns.model.Topic;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;

/**
 * Topics by the AWS SDK for Java v2 against a running server, whose URL is the only argument.
 *
 * <p>Ends with 0, or with an AssertionError that names what was not as it should be.
 */
public final class Topics {
    private final SnsClient sns;
    private final SqsClient sqs;

    /** In front of every name, so that two runs do not meet. */
    private final String prefix = "java-" + System.nanoTime() + "-";

    public static void main(String[] arguments) {
        if (arguments.length != 1) {
            System.err.println("usage: Topics ENDPOINT");
            System.exit(2);
        }
        URI endpoint = URI.create(arguments[0]);
        StaticCredentialsProvider credentials =
                StaticCredentialsProvider.create(AwsBasicCredentials.create("any", "any"));
        try (SnsClient sns = SnsClient.builder()
                        .endpointOverride(endpoint)
                        .region(Region.US_EAST_1)
                        .credentialsProvider(credentials)
                        .httpClientBuilder(UrlConnectionHttpClient.builder())
                        .build();
                SqsClient sqs = SqsClient.builder()
                        .endpointOverride(endpoint)
                        .region(Region.US_EAST_1)
                        .credentialsProvider(credentials)
                        .httpClientBuilder(UrlConnectionHttpClient.builder())
                        .build()) {
            Topics suite = new Topics(sns, sqs);
            suite.oneTopicAndManyQueues();
            suite.fifo();
        }
        System.out.println("java-sdk: all went well with topics");
    }

    private Topics(SnsClient sns, SqsClient sqs) {
        this.sns = sns;
        this.sqs = sqs;
    }

    private void oneTopicAndManyQueues() {
        String topic = topic("t", Map.of("DisplayName", "Orders"));
        equal(topic("t", Map.of("DisplayName", "Orders")), topic, "a topic that is made again");
        refused(InvalidParameterException.class, () -> topic("t", Map.of("DisplayName", "Others")));
        sns.setTopicAttributes(set -> set.topicArn(topic).attributeName("DisplayName").attributeValue("grün"));
        Map<String, String> attributes = sns.getTopicAttributes(get -> get.topicArn(topic)).attributes();
        equal(attributes.get("DisplayName"), "grün", "GetTopicAttributes");
        List<String> listed = sns.listTopicsPaginator().topics().stream().map(Topic::topicArn).toList();
        equal(listed.contains(topic), true, "ListTopics has the topic");

        String wrapped = queue("wrapped", Map.of());
        String raw = queue("raw", Map.of());
        String first = subscribe(topic, wrapped, Map.of());
        String second = subscribe(
                topic, raw, Map.of("RawMessageDelivery", "true", "FilterPolicy", "{\"kind\": [\"new\"]}"));
        List<Subscription> found = sns.listSubscriptionsByTopic(list -> list.topicArn(topic)).subscriptions();
        equal(found.stream().map(Subscription::subscriptionArn).toList(), List.of(first, second), "subscriptions");

        MessageAttributeValue kind =
                MessageAttributeValue.builder().dataType("String").stringValue("new").build();
        String body = "héllo \uD83E\uDD80";
        String id = sns.publish(publish -> publish.topicArn(topic)
                        .message(body)
                        .subject("News")
                        .messageAttributes(Map.of("kind", kind)))
                .messageId();
        String notification = receive(wrapped).get(0).body();
        for (String part : List.of(
                "\"Type\" : \"Notification\"",
                "\"MessageId\" : \"" + id + "\"",
                "\"TopicArn\" : \"" + topic + "\"",
                "\"Subject\" : \"News\"",
                "\"Message\" : \"" + body + "\"",
                "\"kind\" : {\"Type\":\"String\",\"Value\":\"new\"}")) {
            equal(notification.contains(part), true, part + " is in " + notification);
        }
        Message plain = receive(raw).get(0);
        equal(plain.body(), body, "the body of a raw copy");
        equal(plain.messageAttributes().get("kind").stringValue(), "new", "an attribute of a raw copy");

        sns.publish(publish -> publish.topicArn(topic).message("other"));
        equal(receive(wrapped).size(), 1, "messages without a filter");
        sns.setSubscriptionAttributes(
                set -> set.subscriptionArn(second).attributeName("FilterPolicy").attributeValue("{}"));
        Map<String, String> changed =
                sns.getSubscriptionAttributes(get -> get.subscriptionArn(second)).attributes();
        equal(changed.get("FilterPolicy"), null, "a filter that was removed");
        equal(changed.get("RawMessageDelivery"), "true", "GetSubscriptionAttributes");

        List<PublishBatchResultEntry> batch = sns.publishBatch(publish -> publish.topicArn(topic)
                        .publishBatchRequestEntries(entry("a"), entry("b")))
                .successful();
        equal(batch.stream().map(PublishBatchResultEntry::id).toList(), List.of("a", "b"), "PublishBatch");
        List<PublishBatchRequestEntry> many = java.util.stream.IntStream.range(0, 11)
                .mapToObj(at -> entry(String.valueOf(at)))
                .toList();
        refused(
                TooManyEntriesInBatchRequestException.class,
                () -> sns.publishBatch(publish -> publish.topicArn(topic).publishBatchRequestEntries(many)));

        Tag tag = Tag.builder().key("team").value("a").build();
        sns.tagResource(it -> it.resourceArn(topic).tags(tag));
        sns.untagResource(it -> it.resourceArn(topic).tagKeys("none"));
        equal(sns.listTagsForResource(it -> it.resourceArn(topic)).tags(), List.of(tag), "tags");

        sns.unsubscribe(it -> it.subscriptionArn(first));
        sns.deleteTopic(it -> it.topicArn(topic));
        refused(NotFoundException.class, () -> sns.publish(publish -> publish.topicArn(topic).message("x")));
        remove(wrapped);
        remove(raw);
    }

    private void fifo() {
        String topic = topic("t.fifo", Map.of("FifoTopic", "true", "ContentBasedDeduplication", "true"));
        String ordered = queue("q.fifo", Map.of(QueueAttributeName.FIFO_QUEUE, "true"));
        subscribe(topic, ordered, Map.of("RawMessageDelivery", "true"));
        String last = "";
        for (String body : List.of("one", "two", "one")) {
            String number = sns.publish(publish -> publish.topicArn(topic).message(body).messageGroupId("g"))
                    .sequenceNumber();
            equal(last.compareTo(number) < 0, true, number + " is above " + last);
            last = number;
        }
        List<String> bodies = receive(ordered).stream().map(Message::body).toList();
        equal(bodies, List.of("one", "two"), "the order, without a duplicate");
        String standard = topic("standard", Map.of());
        refused(InvalidParameterException.class, () -> subscribe(standard, ordered, Map.of()));
        sns.deleteTopic(it -> it.topicArn(standard));
        sns.deleteTopic(it -> it.topicArn(topic));
        remove(ordered);
    }

    private String topic(String name, Map<String, String> attributes) {
        return sns.createTopic(create -> create.name(prefix + name).attributes(attributes)).topicArn();
    }

    private String queue(String name, Map<QueueAttributeName, String> attributes) {
        return sqs.createQueue(create -> create.queueName(prefix + name).attributes(attributes)).queueUrl();
    }

    private void remove(String url) {
        sqs.deleteQueue(delete -> delete.queueUrl(url));
    }

    private String subscribe(String topic, String url, Map<String, String> attributes) {
        String endpoint = sqs.getQueueAttributes(
                        get -> get.queueUrl(url).attributeNames(QueueAttributeName.QUEUE_ARN))
                .attributes()
                .get(QueueAttributeName.QUEUE_ARN);
        return sns.subscribe(it -> it.topicArn(topic)
                        .protocol("sqs")
                        .endpoint(endpoint)
                        .attributes(attributes)
                        .returnSubscriptionArn(true))
                .subscriptionArn();
    }

    /** Up to ten messages, within 5 s, which are deleted. */
    private List<Message> receive(String url) {
        List<Message> messages = sqs.receiveMessage(receive -> receive.queueUrl(url)
                        .maxNumberOfMessages(10)
                        .waitTimeSeconds(5)
                        .messageAttributeNames("All"))
                .messages();
        for (Message message : messages) {
            sqs.deleteMessage(delete -> delete.queueUrl(url).receiptHandle(message.receiptHandle()));
        }
        return messages;
    }

    private static PublishBatchRequestEntry entry(String id) {
        return PublishBatchRequestEntry.builder().id(id).message(id).build();
    }

    private static void equal(Object found, Object expected, String what) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError("%s: expected %s, found %s".formatted(what, expected, found));
        }
    }

    private static <E extends SnsException> void refused(Class<E> kind, Runnable call) {
        try {
            call.run();
        } catch (SnsException exception) {
            if (kind.isInstance(exception)) {
                return;
            }
            throw new AssertionError("expected " + kind.getSimpleName(), exception);
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", found no refusal");
    }
}
