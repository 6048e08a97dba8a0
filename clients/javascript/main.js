// The AWS SDK for JavaScript v3 against a running server: `node main.js http://127.0.0.1:9324`.
//
// Ends with 0, or with 1 and the assertion that did not hold.

import assert from "node:assert/strict";
import {
  ChangeMessageVisibilityBatchCommand,
  ChangeMessageVisibilityCommand,
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  DeleteMessageCommand,
  DeleteQueueCommand,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  ListDeadLetterSourceQueuesCommand,
  ListMessageMoveTasksCommand,
  ListQueuesCommand,
  ListQueueTagsCommand,
  PurgeQueueCommand,
  QueueDoesNotExist,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SetQueueAttributesCommand,
  SQSClient,
  StartMessageMoveTaskCommand,
  TagQueueCommand,
} from "@aws-sdk/client-sqs";

const endpoint = process.argv[2];
if (!endpoint) {
  console.error("usage: node main.js ENDPOINT");
  process.exit(2);
}

const sqs = new SQSClient({
  endpoint,
  region: "us-east-1",
  credentials: { accessKeyId: "any", secretAccessKey: "any" },
});

// In front of the name of every queue, so that two runs do not meet.
const prefix = `javascript-${process.pid}-${Date.now()}-`;

async function queues() {
  const QueueName = `${prefix}queues`;
  const QueueUrl = await createQueue("queues", { VisibilityTimeout: "45" });
  const found = await sqs.send(new GetQueueUrlCommand({ QueueName }));
  assert.equal(found.QueueUrl, QueueUrl, "GetQueueUrl");
  const listed = await sqs.send(new ListQueuesCommand({ QueueNamePrefix: QueueName }));
  assert.deepEqual(listed.QueueUrls, [QueueUrl], "ListQueues");
  assert.equal(await attribute(QueueUrl, "VisibilityTimeout"), "45", "given on creation");

  await sqs.send(new SetQueueAttributesCommand({ QueueUrl, Attributes: { VisibilityTimeout: "60" } }));
  assert.equal(await attribute(QueueUrl, "VisibilityTimeout"), "60", "set later");

  await sqs.send(new TagQueueCommand({ QueueUrl, Tags: { team: "billing" } }));
  const { Tags } = await sqs.send(new ListQueueTagsCommand({ QueueUrl }));
  assert.deepEqual(Tags, { team: "billing" }, "ListQueueTags");

  await remove(QueueUrl);
  await assert.rejects(
    sqs.send(new GetQueueUrlCommand({ QueueName })),
    QueueDoesNotExist,
    "a missing queue is the SDK's own error",
  );
}

// The SDK compares the MD5 of each received body by itself.
async function attributes() {
  const QueueUrl = await createQueue("attributes");
  const given = {
    text: { DataType: "String", StringValue: "grün & <b>" },
    number: { DataType: "Number", StringValue: "-12.50" },
    bytes: { DataType: "Binary", BinaryValue: Uint8Array.of(0, 255, 128) },
    "text.kind": { DataType: "String.uuid", StringValue: "1-2-3" },
    "number.kind": { DataType: "Number.int", StringValue: "7" },
    "bytes.kind": { DataType: "Binary.png", BinaryValue: Uint8Array.of(0x89, 0x50) },
  };
  const trace = "Root=1-5759e988-bd862e3fe1be46a994272793";
  const sent = await sqs.send(
    new SendMessageCommand({
      QueueUrl,
      MessageBody: "héllo \u{1F980}\n",
      MessageAttributes: given,
      MessageSystemAttributes: { AWSTraceHeader: { DataType: "String", StringValue: trace } },
    }),
  );
  const message = await receiveOne(QueueUrl);
  assert.equal(message.MessageId, sent.MessageId, "MessageId");
  assert.equal(message.Body, "héllo \u{1F980}\n", "the body as it was sent");
  assert.equal(message.MD5OfBody, sent.MD5OfMessageBody, "MD5 of the body");
  assert.equal(message.MD5OfMessageAttributes, sent.MD5OfMessageAttributes, "MD5 of the attributes");
  assert.deepEqual(message.MessageAttributes, given, "attributes of all types");
  assert.equal(message.Attributes.AWSTraceHeader, trace, "AWSTraceHeader");
  assert.equal(message.Attributes.ApproximateReceiveCount, "1", "the count of receives");
  await remove(QueueUrl);
}

// A receive waits for what is not there yet, and for no longer than it was told to.
async function longPoll() {
  const QueueUrl = await createQueue("long-poll");
  assert.deepEqual(await receive(QueueUrl, { wait: 1 }), [], "an empty queue stays empty");
  const [received] = await Promise.all([
    receive(QueueUrl, { wait: 20 }),
    sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "late", DelaySeconds: 1 })),
  ]);
  assert.deepEqual(bodies(received), ["late"], "the message that ends the wait");
  await remove(QueueUrl);
}

async function batches() {
  const QueueUrl = await createQueue("batches", { MaximumMessageSize: "1024" });
  const entries = Array.from({ length: 9 }, (_, id) => ({ Id: `e${id}`, MessageBody: `message ${id}` }));
  const sent = await sqs.send(
    new SendMessageBatchCommand({
      QueueUrl,
      Entries: [...entries, { Id: "large", MessageBody: "x".repeat(1025) }],
    }),
  );
  assert.equal(sent.Successful.length, 9, "the entries that fit");
  assert.deepEqual(
    sent.Failed.map(({ Id, Code, SenderFault }) => ({ Id, Code, SenderFault })),
    [{ Id: "large", Code: "InvalidParameterValue", SenderFault: true }],
    "the entry that is too large fails alone",
  );

  let messages = await receive(QueueUrl);
  const changed = await sqs.send(
    new ChangeMessageVisibilityBatchCommand({
      QueueUrl,
      Entries: messages.map(({ ReceiptHandle }, id) => ({ Id: `e${id}`, ReceiptHandle, VisibilityTimeout: 0 })),
    }),
  );
  assert.equal(changed.Successful.length, 9, "all given back");

  messages = await receive(QueueUrl);
  const deleted = await sqs.send(
    new DeleteMessageBatchCommand({
      QueueUrl,
      Entries: [
        ...messages.map(({ ReceiptHandle }, id) => ({ Id: `e${id}`, ReceiptHandle })),
        { Id: "forged", ReceiptHandle: "forged" },
      ],
    }),
  );
  assert.equal(deleted.Successful.length, 9, "all deleted");
  assert.equal(deleted.Failed[0].Code, "ReceiptHandleIsInvalid", "but the forged one");
  await remove(QueueUrl);
}

async function visibility() {
  const QueueUrl = await createQueue("visibility", { VisibilityTimeout: "1" });
  await send(QueueUrl, "again");
  const first = await receiveOne(QueueUrl);
  const second = await receiveOne(QueueUrl);
  assert.equal(second.MessageId, first.MessageId, "it comes back when its time is over");
  assert.equal(second.Attributes.ApproximateReceiveCount, "2", "the count of receives");

  await change(QueueUrl, second, 600);
  assert.deepEqual(await receive(QueueUrl, { wait: 2 }), [], "extended, it stays away");
  await change(QueueUrl, second, 0);
  const third = await receiveOne(QueueUrl);
  await deleteMessage(QueueUrl, third);
  await assert.rejects(change(QueueUrl, third, 0), { name: "InvalidParameterValue" }, "a deleted message");
  await remove(QueueUrl);
}

// A group keeps its order and is held by one receiver; other groups go on.
async function fifo() {
  const QueueUrl = await createQueue("groups.fifo", { FifoQueue: "true" });
  const numbers = [];
  for (const body of ["a1", "a2", "b1"]) {
    const { SequenceNumber } = await sqs.send(
      new SendMessageCommand({
        QueueUrl,
        MessageBody: body,
        MessageGroupId: body[0],
        MessageDeduplicationId: body,
      }),
    );
    numbers.push(SequenceNumber);
  }
  assert.deepEqual([...numbers].sort(), numbers, "SequenceNumber rises");

  const [first] = await receive(QueueUrl, { most: 1 });
  assert.equal(first.Body, "a1", "the oldest message");
  const others = await receive(QueueUrl);
  assert.deepEqual(bodies(others), ["b1"], "a group in flight is passed over, others are not");
  assert.equal(others[0].Attributes.MessageGroupId, "b", "MessageGroupId");
  await deleteMessage(QueueUrl, first);
  assert.deepEqual(bodies(await receive(QueueUrl)), ["a2"], "the next of the group");
  await remove(QueueUrl);
}

async function fifoDuplicates() {
  const QueueUrl = await createQueue("duplicates.fifo", {
    FifoQueue: "true",
    ContentBasedDeduplication: "true",
  });
  const pay = (MessageBody) =>
    sqs.send(
      new SendMessageCommand({
        QueueUrl,
        MessageBody,
        MessageGroupId: "g",
        MessageDeduplicationId: "pay-1",
      }),
    );
  const first = await pay("pay");
  const again = await pay("pay, again");
  assert.equal(again.MessageId, first.MessageId, "a duplicate is answered with the original's id");
  assert.equal(again.SequenceNumber, first.SequenceNumber, "and with its SequenceNumber");
  for (const MessageBody of ["equal", "equal"]) {
    await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody, MessageGroupId: "g" }));
  }
  assert.deepEqual(bodies(await receive(QueueUrl)), ["pay", "equal"], "each once");
  await remove(QueueUrl);
}

async function deadLetters() {
  const dead = await createQueue("dead");
  const deadLetterTargetArn = await attribute(dead, "QueueArn");
  const QueueUrl = await createQueue("source", {
    RedrivePolicy: JSON.stringify({ deadLetterTargetArn, maxReceiveCount: 2 }),
  });
  const sources = await sqs.send(new ListDeadLetterSourceQueuesCommand({ QueueUrl: dead }));
  assert.deepEqual(sources.queueUrls, [QueueUrl], "ListDeadLetterSourceQueues");

  await send(QueueUrl, "poison");
  for (let attempt = 0; attempt < 2; attempt++) {
    await change(QueueUrl, await receiveOne(QueueUrl), 0);
  }
  assert.deepEqual(await receive(QueueUrl, { wait: 0 }), [], "received twice, it is moved");
  const message = await receiveOne(dead);
  assert.equal(message.Body, "poison", "the dead letter");
  const source = await attribute(QueueUrl, "QueueArn");
  assert.equal(message.Attributes.DeadLetterQueueSourceArn, source, "DeadLetterQueueSourceArn");

  await change(dead, message, 0);
  await sqs.send(new StartMessageMoveTaskCommand({ SourceArn: deadLetterTargetArn }));
  assert.equal((await receiveOne(QueueUrl)).Body, "poison", "moved back to where it came from");
  const { Results } = await sqs.send(
    new ListMessageMoveTasksCommand({ SourceArn: deadLetterTargetArn }),
  );
  assert.equal(Results[0].SourceArn, deadLetterTargetArn, "ListMessageMoveTasks");
  await remove(QueueUrl);
  await remove(dead);
}

async function deletion() {
  const QueueUrl = await createQueue("deletion");
  await send(QueueUrl, "one");
  const message = await receiveOne(QueueUrl);
  await deleteMessage(QueueUrl, message);
  await deleteMessage(QueueUrl, message); // Again is no error.
  await send(QueueUrl, "two");
  await sqs.send(new PurgeQueueCommand({ QueueUrl }));
  assert.equal(await attribute(QueueUrl, "ApproximateNumberOfMessages"), "0", "after a purge");

  await remove(QueueUrl);
  await assert.rejects(send(QueueUrl, "x"), QueueDoesNotExist, "a deleted queue takes nothing");
}

// --- what the above is written with ---

async function createQueue(name, Attributes) {
  const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: prefix + name, Attributes }));
  return QueueUrl;
}

const remove = (QueueUrl) => sqs.send(new DeleteQueueCommand({ QueueUrl }));

async function attribute(QueueUrl, name) {
  const command = new GetQueueAttributesCommand({ QueueUrl, AttributeNames: [name] });
  return (await sqs.send(command)).Attributes?.[name];
}

const send = (QueueUrl, MessageBody) => sqs.send(new SendMessageCommand({ QueueUrl, MessageBody }));

async function receive(QueueUrl, { most = 10, wait = 5 } = {}) {
  const { Messages = [] } = await sqs.send(
    new ReceiveMessageCommand({
      QueueUrl,
      MaxNumberOfMessages: most,
      WaitTimeSeconds: wait,
      MessageAttributeNames: ["All"],
      MessageSystemAttributeNames: ["All"],
    }),
  );
  return Messages;
}

async function receiveOne(QueueUrl) {
  const [message] = await receive(QueueUrl, { most: 1 });
  assert.ok(message, "no message within 5 s");
  return message;
}

const change = (QueueUrl, { ReceiptHandle }, VisibilityTimeout) =>
  sqs.send(new ChangeMessageVisibilityCommand({ QueueUrl, ReceiptHandle, VisibilityTimeout }));

const deleteMessage = (QueueUrl, { ReceiptHandle }) =>
  sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle }));

const bodies = (messages) => messages.map(({ Body }) => Body);

const all = [
  queues,
  attributes,
  longPoll,
  batches,
  visibility,
  fifo,
  fifoDuplicates,
  deadLetters,
  deletion,
];
for (const part of all) {
  await part();
}
console.log("js-sdk: all went well");
