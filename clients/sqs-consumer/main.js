// sqs-consumer against a running server: `node main.js http://127.0.0.1:9324`.
//
// Ends with 0, or with 1 and what was not as it should be.

import assert from "node:assert/strict";
import {
  CreateQueueCommand,
  DeleteQueueCommand,
  GetQueueAttributesCommand,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
} from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

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
const prefix = `sqs-consumer-${process.pid}-${Date.now()}-`;

// Every message is handled once and deleted.
async function everyMessage() {
  const queue = await create("every");
  const sent = [];
  for (let batch = 0; batch < 3; batch++) {
    const bodies = Array.from({ length: 10 }, (_, entry) => `${batch}-${entry}`);
    await sqs.send(
      new SendMessageBatchCommand({
        QueueUrl: queue,
        Entries: bodies.map((MessageBody, entry) => ({ Id: `e${entry}`, MessageBody })),
      }),
    );
    sent.push(...bodies);
  }
  const handled = [];
  await consume(queue, { batchSize: 10 }, (finish, on) => {
    on("response_processed", () => handled.length >= sent.length && finish());
    return { handleMessage: async ({ Body }) => void handled.push(Body) };
  });
  assert.deepEqual(handled.sort(), sent, "every message, once");
  await removeEmpty(queue);
}

// A message whose handler fails is given back at once, and is a dead letter in the end.
async function failures() {
  const dead = await create("dead");
  const deadLetterTargetArn = await attribute(dead, "QueueArn");
  const queue = await create("failures", {
    VisibilityTimeout: "600",
    RedrivePolicy: JSON.stringify({ deadLetterTargetArn, maxReceiveCount: 3 }),
  });
  await send(queue, "poison");
  const received = [];
  let letters;
  const options = {
    terminateVisibilityTimeout: true,
    messageSystemAttributeNames: ["ApproximateReceiveCount"],
  };
  await consume(queue, options, (finish, on) => {
    on("processing_error", () => {}); // As expected.
    bodies(dead, 20).then((found) => {
      letters = found;
      finish();
    });
    return {
      handleMessage: async ({ Attributes }) => {
        received.push(Attributes.ApproximateReceiveCount);
        throw new Error("cannot be handled");
      },
    };
  });
  assert.deepEqual(received, ["1", "2", "3"], "the counts of receives");
  assert.deepEqual(letters, ["poison"], "the dead letter");
  await remove(queue);
  await remove(dead);
}

// What the handler of a batch does not return is not deleted, and comes back.
async function partOfABatch() {
  const queue = await create("part", { VisibilityTimeout: "1" });
  for (const body of ["good", "bad"]) await send(queue, body);
  const attempts = { good: 0, bad: 0 };
  await consume(queue, { batchSize: 10 }, (finish, on) => {
    on("response_processed", () => attempts.bad > 1 && finish());
    return {
      handleMessageBatch: async (messages) => {
        for (const { Body } of messages) attempts[Body] += 1;
        return messages.filter(({ Body }) => Body === "good" || attempts.bad > 1);
      },
    };
  });
  assert.deepEqual(attempts, { good: 1, bad: 2 }, "how often each was handled");
  await removeEmpty(queue);
}

// Heartbeats keep a message away from others for as long as its handler takes.
async function heartbeats() {
  const queue = await create("heartbeats");
  await send(queue, "slow");
  let others;
  await consume(queue, { visibilityTimeout: 3, heartbeatInterval: 2 }, (finish, on) => {
    on("response_processed", finish);
    // Longer than the visibility timeout, and over between two heartbeats.
    return { handleMessage: async () => void (others = await bodies(queue, 5)) };
  });
  assert.deepEqual(others, [], "messages for others while it is handled");
  await removeEmpty(queue);
}

async function fifo() {
  const queue = await create("orders.fifo", { FifoQueue: "true" });
  for (let number = 0; number < 15; number++) {
    for (const group of ["a", "b"]) {
      await sqs.send(
        new SendMessageCommand({
          QueueUrl: queue,
          MessageBody: `${group}${number}`,
          MessageGroupId: group,
          MessageDeduplicationId: `${group}${number}`,
        }),
      );
    }
  }
  const handled = { a: [], b: [] };
  await consume(queue, { batchSize: 10, suppressFifoWarning: true }, (finish, on) => {
    on("response_processed", () => handled.a.length + handled.b.length >= 30 && finish());
    return {
      handleMessageBatch: async (messages) => {
        for (const { Body } of messages) handled[Body[0]].push(Body);
        return messages;
      },
    };
  });
  for (const group of ["a", "b"]) {
    const inOrder = Array.from({ length: 15 }, (_, number) => `${group}${number}`);
    assert.deepEqual(handled[group], inOrder, `the order of group ${group}`);
  }
  await removeEmpty(queue);
}

// A consumer that gives up its long poll takes no message with it.
async function stoppedInALongPoll() {
  const queue = await create("stopped");
  await consume(queue, { waitTimeSeconds: 20 }, (finish) => ({
    preReceiveMessageCallback: async () => void setImmediate(finish),
    handleMessage: async () => assert.fail("there was no message"),
  }));
  await send(queue, "after");
  assert.deepEqual(await bodies(queue, 5), ["after"], "the message for the next consumer");
  await remove(queue);
}

// --- what the above is written with ---

// Runs a consumer until `finish` is called, which aborts its poll. `handlers` gets `finish` and a function
// that subscribes to the consumer's events, and returns the consumer's handlers.
async function consume(queueUrl, options, handlers) {
  await new Promise((resolve, reject) => {
    const subscriptions = [];
    let consumer;
    const finish = () => consumer.stop({ abort: true });
    const given = handlers(finish, (event, listener) => subscriptions.push([event, listener]));
    consumer = Consumer.create({ sqs, queueUrl, waitTimeSeconds: 5, ...options, ...given });
    for (const [event, listener] of subscriptions) consumer.on(event, listener);
    const late = setTimeout(() => reject(new Error(`${queueUrl}: not within 60 s`)), 60_000);
    consumer.on("stopped", () => {
      clearTimeout(late);
      resolve();
    });
    // That a request failed, or a handler where none should.
    consumer.on("error", (error) => error.code !== "AbortError" && reject(error));
    if (!subscriptions.some(([event]) => event === "processing_error")) {
      consumer.on("processing_error", reject);
    }
    consumer.start();
  });
}

async function create(name, Attributes) {
  const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: prefix + name, Attributes }));
  return QueueUrl;
}

const remove = (QueueUrl) => sqs.send(new DeleteQueueCommand({ QueueUrl }));

async function attribute(QueueUrl, name) {
  const command = new GetQueueAttributesCommand({ QueueUrl, AttributeNames: [name] });
  return (await sqs.send(command)).Attributes[name];
}

// Removes a queue in which nothing may be left, waiting or in flight.
async function removeEmpty(QueueUrl) {
  for (const name of ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]) {
    assert.equal(await attribute(QueueUrl, name), "0", `${name} of ${QueueUrl}`);
  }
  await remove(QueueUrl);
}

const send = (QueueUrl, MessageBody) => sqs.send(new SendMessageCommand({ QueueUrl, MessageBody }));

async function bodies(QueueUrl, WaitTimeSeconds) {
  const { Messages = [] } = await sqs.send(new ReceiveMessageCommand({ QueueUrl, WaitTimeSeconds }));
  return Messages.map(({ Body }) => Body);
}

const all = [everyMessage, failures, partOfABatch, heartbeats, fifo, stoppedInALongPoll];
for (const part of all) {
  await part();
}
console.log("sqs-consumer: all went well");
process.exit(0);
