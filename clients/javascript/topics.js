// Topics by the AWS SDK for JavaScript v3 against a running server: `node topics.js http://127.0.0.1:9324`.
//
// Ends with 0, or with 1 and the assertion that did not hold.

import assert from "node:assert/strict";
import {
  CreateTopicCommand,
  DeleteTopicCommand,
  GetSubscriptionAttributesCommand,
  GetTopicAttributesCommand,
  InvalidParameterException,
  ListSubscriptionsByTopicCommand,
  ListTagsForResourceCommand,
  NotFoundException,
  paginateListTopics,
  PublishBatchCommand,
  PublishCommand,
  SetSubscriptionAttributesCommand,
  SetTopicAttributesCommand,
  SNSClient,
  SubscribeCommand,
  TagResourceCommand,
  TooManyEntriesInBatchRequestException,
  UnsubscribeCommand,
  UntagResourceCommand,
} from "@aws-sdk/client-sns";
import {
  CreateQueueCommand,
  DeleteMessageCommand,
  DeleteQueueCommand,
  GetQueueAttributesCommand,
  ReceiveMessageCommand,
  SQSClient,
} from "@aws-sdk/client-sqs";

const endpoint = process.argv[2];
if (!endpoint) {
  console.error("usage: node topics.js ENDPOINT");
  process.exit(2);
}

const config = { endpoint, region: "us-east-1", credentials: { accessKeyId: "any", secretAccessKey: "any" } };
const sns = new SNSClient(config);
const sqs = new SQSClient(config);

// In front of every name, so that two runs do not meet.
const prefix = `javascript-${process.pid}-${Date.now()}-`;

async function oneTopicAndManyQueues() {
  const TopicArn = await topic("t", { DisplayName: "Orders" });
  assert.equal(await topic("t", { DisplayName: "Orders" }), TopicArn, "made once");
  await assert.rejects(topic("t", { DisplayName: "Others" }), InvalidParameterException);
  await sns.send(new SetTopicAttributesCommand({ TopicArn, AttributeName: "DisplayName", AttributeValue: "grün" }));
  const { Attributes } = await sns.send(new GetTopicAttributesCommand({ TopicArn }));
  assert.equal(Attributes.DisplayName, "grün", "GetTopicAttributes");

  const listed = [];
  for await (const page of paginateListTopics({ client: sns }, {})) {
    listed.push(...page.Topics.map((topic) => topic.TopicArn));
  }
  assert.ok(listed.includes(TopicArn), "ListTopics");

  const [wrapped, raw] = [await queue("wrapped"), await queue("raw")];
  const first = await subscribe(TopicArn, wrapped, {});
  const second = await subscribe(TopicArn, raw, {
    RawMessageDelivery: "true",
    FilterPolicy: JSON.stringify({ kind: ["new"] }),
  });
  const { Subscriptions } = await sns.send(new ListSubscriptionsByTopicCommand({ TopicArn }));
  assert.deepEqual(
    Subscriptions.map(({ SubscriptionArn }) => SubscriptionArn),
    [first, second],
    "ListSubscriptionsByTopic",
  );

  const MessageAttributes = {
    kind: { DataType: "String", StringValue: "new" },
    bytes: { DataType: "Binary", BinaryValue: Uint8Array.of(0, 255) },
  };
  const Message = "héllo \u{1F980}";
  const { MessageId } = await sns.send(new PublishCommand({ TopicArn, Message, Subject: "News", MessageAttributes }));
  const [notice] = await receive(wrapped);
  const notification = JSON.parse(notice.Body);
  assert.equal(notification.MessageId, MessageId, "MessageId");
  assert.equal(notification.TopicArn, TopicArn, "TopicArn");
  assert.equal(notification.Subject, "News", "Subject");
  assert.equal(notification.Message, Message, "Message");
  assert.deepEqual(notification.MessageAttributes.bytes, { Type: "Binary", Value: "AP8=" }, "bytes");
  const [plain] = await receive(raw);
  assert.equal(plain.Body, Message, "raw delivery");
  assert.deepEqual(plain.MessageAttributes, MessageAttributes, "attributes of a raw copy");

  await sns.send(new PublishCommand({ TopicArn, Message: "other" }));
  assert.equal((await receive(wrapped)).length, 1, "no filter");
  assert.equal((await receive(raw, 0)).length, 0, "a filter");

  await sns.send(
    new SetSubscriptionAttributesCommand({
      SubscriptionArn: second,
      AttributeName: "FilterPolicy",
      AttributeValue: "{}",
    }),
  );
  const changed = await sns.send(new GetSubscriptionAttributesCommand({ SubscriptionArn: second }));
  assert.equal(changed.Attributes.FilterPolicy, undefined, "SetSubscriptionAttributes");

  const PublishBatchRequestEntries = ["a", "b"].map((Id) => ({ Id, Message: Id, MessageAttributes }));
  const batch = await sns.send(new PublishBatchCommand({ TopicArn, PublishBatchRequestEntries }));
  assert.deepEqual(batch.Successful.map(({ Id }) => Id), ["a", "b"], "PublishBatch");
  const many = Array.from({ length: 11 }, (_, at) => ({ Id: `${at}`, Message: "x" }));
  await assert.rejects(
    sns.send(new PublishBatchCommand({ TopicArn, PublishBatchRequestEntries: many })),
    TooManyEntriesInBatchRequestException,
  );

  await sns.send(new TagResourceCommand({ ResourceArn: TopicArn, Tags: [{ Key: "team", Value: "a" }] }));
  await sns.send(new UntagResourceCommand({ ResourceArn: TopicArn, TagKeys: ["none"] }));
  const { Tags } = await sns.send(new ListTagsForResourceCommand({ ResourceArn: TopicArn }));
  assert.deepEqual(Tags, [{ Key: "team", Value: "a" }], "tags");

  await sns.send(new UnsubscribeCommand({ SubscriptionArn: first }));
  await sns.send(new DeleteTopicCommand({ TopicArn }));
  await assert.rejects(sns.send(new PublishCommand({ TopicArn, Message })), NotFoundException);
  await remove(wrapped);
  await remove(raw);
}

async function fifo() {
  const TopicArn = await topic("t.fifo", { FifoTopic: "true", ContentBasedDeduplication: "true" });
  const ordered = await queue("q.fifo", { FifoQueue: "true" });
  await subscribe(TopicArn, ordered, { RawMessageDelivery: "true" });
  const numbers = [];
  for (const Message of ["one", "two", "one"]) {
    const published = await sns.send(new PublishCommand({ TopicArn, Message, MessageGroupId: "g" }));
    numbers.push(published.SequenceNumber);
  }
  assert.deepEqual(numbers, [...new Set(numbers)].sort(), "SequenceNumber");
  assert.deepEqual((await receive(ordered)).map(({ Body }) => Body), ["one", "two"], "order, and no duplicate");
  await assert.rejects(subscribe(await topic("standard"), ordered, {}), InvalidParameterException);
  await sns.send(new DeleteTopicCommand({ TopicArn: await topic("standard") }));
  await sns.send(new DeleteTopicCommand({ TopicArn }));
  await remove(ordered);
}

async function topic(name, Attributes) {
  return (await sns.send(new CreateTopicCommand({ Name: prefix + name, Attributes }))).TopicArn;
}

async function queue(name, Attributes) {
  return (await sqs.send(new CreateQueueCommand({ QueueName: prefix + name, Attributes }))).QueueUrl;
}

async function subscribe(TopicArn, QueueUrl, Attributes) {
  const { Attributes: found } = await sqs.send(
    new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["QueueArn"] }),
  );
  const subscribed = await sns.send(
    new SubscribeCommand({ TopicArn, Protocol: "sqs", Endpoint: found.QueueArn, Attributes }),
  );
  return subscribed.SubscriptionArn;
}

async function receive(QueueUrl, wait = 5) {
  const { Messages = [] } = await sqs.send(
    new ReceiveMessageCommand({
      QueueUrl,
      MaxNumberOfMessages: 10,
      WaitTimeSeconds: wait,
      MessageAttributeNames: ["All"],
    }),
  );
  for (const { ReceiptHandle } of Messages) {
    await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle }));
  }
  return Messages;
}

const remove = (QueueUrl) => sqs.send(new DeleteQueueCommand({ QueueUrl }));

await oneTopicAndManyQueues();
await fifo();
console.log("js-sdk: all went well with topics");
