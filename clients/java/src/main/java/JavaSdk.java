import static software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName.APPROXIMATE_RECEIVE_COUNT;
import static software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName.AWS_TRACE_HEADER;
import static software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName.DEAD_LETTER_QUEUE_SOURCE_ARN;
import static software.amazon.awssdk.services.sqs.model.MessageSystemAttributeName.MESSAGE_GROUP_ID;

import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.function.Consumer;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.ChangeMessageVisibilityBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.DeleteMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.MessageAttributeValue;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeNameForSends;
import software.amazon.awssdk.services.sqs.model.MessageSystemAttributeValue;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;
import software.amazon.awssdk.services.sqs.model.QueueDoesNotExistException;
import software.amazon.awssdk.services.sqs.model.SendMessageBatchRequestEntry;
import software.amazon.awssdk.services.sqs.model.SendMessageRequest;
import software.amazon.awssdk.services.sqs.model.SendMessageResponse;
import software.amazon.awssdk.services.sqs.model.SqsException;

/**
 * The AWS SDK for Java v2 against a running server, whose URL is the only argument.
 *
 * <p>Ends with 0, or with an AssertionError that names what was not as it should be. The SDK compares the MD5s of all
 * bodies and attributes by itself.
 */
public final class JavaSdk {
    private final SqsClient sqs;

    /** In front of the name of every queue, so that two runs do not meet. */
    private final String prefix = "java-" + System.nanoTime() + "-";

    public static void main(String[] arguments) {
        if (arguments.length != 1) {
            System.err.println("usage: JavaSdk ENDPOINT");
            System.exit(2);
        }
        AwsBasicCredentials credentials = AwsBasicCredentials.create("any", "any");
        try (SqsClient sqs = SqsClient.builder()
                .endpointOverride(URI.create(arguments[0]))
                .region(Region.US_EAST_1)
                .credentialsProvider(StaticCredentialsProvider.create(credentials))
                .httpClientBuilder(UrlConnectionHttpClient.builder())
                .build()) {
            JavaSdk suite = new JavaSdk(sqs);
            suite.queues();
            suite.attributes();
            suite.longPoll();
            suite.batches();
            suite.visibility();
            suite.fifo();
            suite.fifoDuplicates();
            suite.deadLetters();
            suite.deletion();
        }
        System.out.println("java-sdk: all went well");
    }

    private JavaSdk(SqsClient sqs) {
        this.sqs = sqs;
    }

    private void queues() {
        String name = prefix + "queues";
        String url = queue("queues", Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "45"));
        equal(sqs.getQueueUrl(get -> get.queueName(name)).queueUrl(), url, "GetQueueUrl");
        equal(sqs.listQueues(list -> list.queueNamePrefix(name)).queueUrls(), List.of(url), "ListQueues");
        equal(attribute(url, QueueAttributeName.VISIBILITY_TIMEOUT), "45", "the attribute given on creation");

        Map<QueueAttributeName, String> longer = Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "60");
        sqs.setQueueAttributes(set -> set.queueUrl(url).attributes(longer));
        equal(attribute(url, QueueAttributeName.VISIBILITY_TIMEOUT), "60", "the attribute that was set");

        Map<String, String> tags = Map.of("team", "billing");
        sqs.tagQueue(tag -> tag.queueUrl(url).tags(tags));
        equal(sqs.listQueueTags(list -> list.queueUrl(url)).tags(), tags, "ListQueueTags");

        remove(url);
        // A missing queue is the SDK's own exception.
        refused(QueueDoesNotExistException.class, () -> sqs.getQueueUrl(get -> get.queueName(name)));
    }

    private void attributes() {
        String url = queue("attributes", Map.of());
        Map<String, MessageAttributeValue> given = Map.of(
                "text", text("String", "grün & <b>"),
                "number", text("Number", "-12.50"),
                "bytes", binary("Binary", 0, 255, 128),
                "text.kind", text("String.uuid", "1-2-3"),
                "number.kind", text("Number.int", "7"),
                "bytes.kind", binary("Binary.png", 0x89, 0x50));
        String trace = "Root=1-5759e988-bd862e3fe1be46a994272793";
        SendMessageResponse sent = sqs.sendMessage(send -> send.queueUrl(url)
                .messageBody("héllo \uD83E\uDD80\n")
                .messageAttributes(given)
                .messageSystemAttributes(Map.of(
                        MessageSystemAttributeNameForSends.AWS_TRACE_HEADER,
                        MessageSystemAttributeValue.builder()
                                .dataType("String")
                                .stringValue(trace)
                                .build())));
        Message message = receiveOne(url);
        equal(message.messageId(), sent.messageId(), "MessageId");
        equal(message.body(), "héllo \uD83E\uDD80\n", "the body as it was sent");
        equal(message.md5OfMessageAttributes(), sent.md5OfMessageAttributes(), "MD5 of the attributes");
        equal(message.messageAttributes(), given, "attributes of all types");
        equal(message.attributes().get(AWS_TRACE_HEADER), trace, "AWSTraceHeader");
        equal(message.attributes().get(APPROXIMATE_RECEIVE_COUNT), "1", "the count of receives");
        remove(url);
    }

    /** A receive waits for what is not there yet, and for no longer than it was told to. */
    private void longPoll() {
        String url = queue("long-poll", Map.of());
        equal(receive(url, 10, 1), List.of(), "messages of an empty queue");
        CompletableFuture<Void> sent = CompletableFuture.runAsync(
                () -> send(send -> send.queueUrl(url).messageBody("late").delaySeconds(1)));
        equal(bodies(receive(url, 10, 20)), List.of("late"), "the message that ends the wait");
        sent.join();
        remove(url);
    }

    private void batches() {
        String url = queue("batches", Map.of(QueueAttributeName.MAXIMUM_MESSAGE_SIZE, "1024"));
        List<SendMessageBatchRequestEntry> entries = new ArrayList<>();
        for (int id = 0; id < 9; id++) {
            entries.add(entry("e" + id, "message " + id));
        }
        entries.add(entry("large", "x".repeat(1025)));
        var sent = sqs.sendMessageBatch(send -> send.queueUrl(url).entries(entries));
        equal(sent.successful().size(), 9, "the entries that fit");
        equal(sent.failed().size(), 1, "the entry that is too large fails alone");
        equal(sent.failed().get(0).id(), "large", "which one");
        equal(sent.failed().get(0).code(), "InvalidParameterValue", "why");
        equal(sent.failed().get(0).senderFault(), true, "whose fault it is");

        List<ChangeMessageVisibilityBatchRequestEntry> changes = new ArrayList<>();
        for (Message message : receive(url, 10, 5)) {
            changes.add(ChangeMessageVisibilityBatchRequestEntry.builder()
                    .id("e" + changes.size())
                    .receiptHandle(message.receiptHandle())
                    .visibilityTimeout(0)
                    .build());
        }
        var changed = sqs.changeMessageVisibilityBatch(change -> change.queueUrl(url).entries(changes));
        equal(changed.successful().size(), 9, "messages given back");

        List<DeleteMessageBatchRequestEntry> deletions = new ArrayList<>();
        for (Message message : receive(url, 10, 5)) {
            deletions.add(deletion("e" + deletions.size(), message.receiptHandle()));
        }
        deletions.add(deletion("forged", "forged"));
        var deleted = sqs.deleteMessageBatch(delete -> delete.queueUrl(url).entries(deletions));
        equal(deleted.successful().size(), 9, "deleted messages");
        equal(deleted.failed().get(0).code(), "ReceiptHandleIsInvalid", "but the forged one");
        remove(url);
    }

    private void visibility() {
        String url = queue("visibility", Map.of(QueueAttributeName.VISIBILITY_TIMEOUT, "1"));
        send(send -> send.queueUrl(url).messageBody("again"));
        Message first = receiveOne(url);
        Message second = receiveOne(url);
        equal(second.messageId(), first.messageId(), "it comes back when its time is over");
        equal(second.attributes().get(APPROXIMATE_RECEIVE_COUNT), "2", "the count of receives");

        change(url, second, 600);
        equal(receive(url, 10, 2), List.of(), "extended, it stays away");
        change(url, second, 0);
        Message third = receiveOne(url);
        delete(url, third);
        SqsException refused = refused(SqsException.class, () -> change(url, third, 0));
        equal(refused.awsErrorDetails().errorCode(), "InvalidParameterValue", "of a deleted message");
        remove(url);
    }

    /** A group keeps its order and is held by one receiver; other groups go on. */
    private void fifo() {
        String url = queue("groups.fifo", Map.of(QueueAttributeName.FIFO_QUEUE, "true"));
        List<String> numbers = new ArrayList<>();
        for (String body : List.of("a1", "a2", "b1")) {
            String group = body.substring(0, 1);
            numbers.add(send(send -> send.queueUrl(url)
                    .messageBody(body)
                    .messageGroupId(group)
                    .messageDeduplicationId(body)).sequenceNumber());
        }
        equal(numbers.stream().sorted().toList(), numbers, "SequenceNumber rises");

        List<Message> first = receive(url, 1, 5);
        equal(bodies(first), List.of("a1"), "the oldest message");
        List<Message> others = receive(url, 10, 5);
        equal(bodies(others), List.of("b1"), "a group in flight is passed over, others are not");
        equal(others.get(0).attributes().get(MESSAGE_GROUP_ID), "b", "MessageGroupId");
        delete(url, first.get(0));
        equal(bodies(receive(url, 10, 5)), List.of("a2"), "the next of the group");
        remove(url);
    }

    private void fifoDuplicates() {
        String url = queue("duplicates.fifo", Map.of(
                QueueAttributeName.FIFO_QUEUE, "true",
                QueueAttributeName.CONTENT_BASED_DEDUPLICATION, "true"));
        Consumer<SendMessageRequest.Builder> pay =
                send -> send.queueUrl(url).messageBody("pay").messageGroupId("g").messageDeduplicationId("pay-1");
        SendMessageResponse first = send(pay);
        SendMessageResponse again = send(pay.andThen(send -> send.messageBody("pay, again")));
        equal(again.messageId(), first.messageId(), "a duplicate is answered with the original's id");
        equal(again.sequenceNumber(), first.sequenceNumber(), "and with its SequenceNumber");
        send(send -> send.queueUrl(url).messageBody("equal").messageGroupId("g"));
        send(send -> send.queueUrl(url).messageBody("equal").messageGroupId("g"));
        equal(bodies(receive(url, 10, 5)), List.of("pay", "equal"), "each once");
        remove(url);
    }

    private void deadLetters() {
        String dead = queue("dead", Map.of());
        String deadArn = attribute(dead, QueueAttributeName.QUEUE_ARN);
        String policy = "{\"deadLetterTargetArn\": \"%s\", \"maxReceiveCount\": 2}".formatted(deadArn);
        String url = queue("source", Map.of(QueueAttributeName.REDRIVE_POLICY, policy));
        var sources = sqs.listDeadLetterSourceQueues(list -> list.queueUrl(dead));
        equal(sources.queueUrls(), List.of(url), "ListDeadLetterSourceQueues");

        send(send -> send.queueUrl(url).messageBody("poison"));
        change(url, receiveOne(url), 0);
        change(url, receiveOne(url), 0);
        equal(receive(url, 10, 0), List.of(), "received twice, it is moved");
        Message message = receiveOne(dead);
        equal(message.body(), "poison", "the dead letter");
        equal(message.attributes().get(DEAD_LETTER_QUEUE_SOURCE_ARN),
                attribute(url, QueueAttributeName.QUEUE_ARN), "DeadLetterQueueSourceArn");

        change(dead, message, 0);
        sqs.startMessageMoveTask(start -> start.sourceArn(deadArn));
        equal(receiveOne(url).body(), "poison", "moved back to where it came from");
        var moves = sqs.listMessageMoveTasks(list -> list.sourceArn(deadArn)).results();
        equal(moves.get(0).sourceArn(), deadArn, "ListMessageMoveTasks");
        remove(url);
        remove(dead);
    }

    private void deletion() {
        String url = queue("deletion", Map.of());
        send(send -> send.queueUrl(url).messageBody("one"));
        Message message = receiveOne(url);
        delete(url, message);
        delete(url, message); // Again is no error.
        send(send -> send.queueUrl(url).messageBody("two"));
        sqs.purgeQueue(purge -> purge.queueUrl(url));
        equal(attribute(url, QueueAttributeName.APPROXIMATE_NUMBER_OF_MESSAGES), "0", "messages after a purge");

        remove(url);
        // A deleted queue takes nothing.
        refused(QueueDoesNotExistException.class, () -> send(send -> send.queueUrl(url).messageBody("x")));
    }

    // --- what the above is written with ---

    private String queue(String name, Map<QueueAttributeName, String> attributes) {
        return sqs.createQueue(create -> create.queueName(prefix + name).attributes(attributes)).queueUrl();
    }

    private void remove(String url) {
        sqs.deleteQueue(delete -> delete.queueUrl(url));
    }

    private String attribute(String url, QueueAttributeName name) {
        return sqs.getQueueAttributes(get -> get.queueUrl(url).attributeNames(name)).attributes().get(name);
    }

    private SendMessageResponse send(Consumer<SendMessageRequest.Builder> send) {
        return sqs.sendMessage(send);
    }

    private List<Message> receive(String url, int most, int wait) {
        return sqs.receiveMessage(receive -> receive.queueUrl(url)
                .maxNumberOfMessages(most)
                .waitTimeSeconds(wait)
                .messageAttributeNames("All")
                .messageSystemAttributeNamesWithStrings("All")).messages();
    }

    private Message receiveOne(String url) {
        List<Message> messages = receive(url, 1, 5);
        equal(messages.size(), 1, "messages within 5 s");
        return messages.get(0);
    }

    private void change(String url, Message message, int seconds) {
        sqs.changeMessageVisibility(
                change -> change.queueUrl(url).receiptHandle(message.receiptHandle()).visibilityTimeout(seconds));
    }

    private void delete(String url, Message message) {
        sqs.deleteMessage(delete -> delete.queueUrl(url).receiptHandle(message.receiptHandle()));
    }

    private static MessageAttributeValue text(String kind, String value) {
        return MessageAttributeValue.builder().dataType(kind).stringValue(value).build();
    }

    private static MessageAttributeValue binary(String kind, int... value) {
        byte[] bytes = new byte[value.length];
        for (int at = 0; at < value.length; at++) {
            bytes[at] = (byte) value[at];
        }
        return MessageAttributeValue.builder().dataType(kind).binaryValue(SdkBytes.fromByteArray(bytes)).build();
    }

    private static SendMessageBatchRequestEntry entry(String id, String body) {
        return SendMessageBatchRequestEntry.builder().id(id).messageBody(body).build();
    }

    private static DeleteMessageBatchRequestEntry deletion(String id, String handle) {
        return DeleteMessageBatchRequestEntry.builder().id(id).receiptHandle(handle).build();
    }

    private static List<String> bodies(List<Message> messages) {
        return messages.stream().map(Message::body).toList();
    }

    private static void equal(Object found, Object expected, String what) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError("%s: expected %s, found %s".formatted(what, expected, found));
        }
    }

    private static <E extends SqsException> E refused(Class<E> kind, Runnable call) {
        try {
            call.run();
        } catch (SqsException exception) {
            if (kind.isInstance(exception)) {
                return kind.cast(exception);
            }
            throw new AssertionError("expected " + kind.getSimpleName(), exception);
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", found no refusal");
    }
}
