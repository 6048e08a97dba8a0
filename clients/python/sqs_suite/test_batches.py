"""The three batch actions."""

from .support import SqsTest, attributes_md5, body_md5

LEGACY = "AWS.SimpleQueueService."


class Batches(SqsTest):
    def entries(self, *bodies):
        return [{"Id": str(at), "MessageBody": body} for at, body in enumerate(bodies)]

    def test_ten_messages_are_sent_received_changed_and_deleted(self):
        url = self.queue()
        bodies = [f"message {number}" for number in range(10)]
        sent = self.sqs.send_message_batch(QueueUrl=url, Entries=self.entries(*bodies))
        self.assertNotIn("Failed", sent)
        self.assertEqual([entry["Id"] for entry in sent["Successful"]], [str(n) for n in range(10)])
        for entry, body in zip(sent["Successful"], bodies):
            self.assertEqual(entry["MD5OfMessageBody"], body_md5(body))
        self.assertEqual(len({entry["MessageId"] for entry in sent["Successful"]}), 10)
        messages = self.receive(url)
        self.assertEqual(sorted(message["Body"] for message in messages), bodies)
        changed = self.sqs.change_message_visibility_batch(
            QueueUrl=url,
            Entries=[
                {"Id": f"m{at}", "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
                for at, message in enumerate(messages)
            ],
        )
        self.assertEqual(len(changed["Successful"]), 10)
        messages = self.receive(url)
        self.assertEqual(len(messages), 10)
        deleted = self.sqs.delete_message_batch(
            QueueUrl=url,
            Entries=[
                {"Id": f"m{at}", "ReceiptHandle": message["ReceiptHandle"]}
                for at, message in enumerate(messages)
            ],
        )
        self.assertEqual([entry["Id"] for entry in deleted["Successful"]], [f"m{n}" for n in range(10)])
        self.assertEqual(self.counts(url), [0, 0, 0])

    def test_each_entry_fails_by_itself(self):
        url = self.queue(MaximumMessageSize=1024)
        attributes = {"n": {"DataType": "Number", "StringValue": "1"}}
        answer = self.unchecked.send_message_batch(
            QueueUrl=url,
            Entries=[
                {"Id": "good", "MessageBody": "a", "MessageAttributes": attributes},
                {"Id": "large", "MessageBody": "x" * 1025},
                {"Id": "bad", "MessageBody": "\0"},
                {"Id": "late", "MessageBody": "b", "DelaySeconds": 901},
                {"Id": "none"},
            ],
        )
        (good,) = answer["Successful"]
        self.assertEqual(good["MD5OfMessageAttributes"], attributes_md5(attributes))
        failed = {entry["Id"]: entry for entry in answer["Failed"]}
        self.assertEqual(
            {name: entry["Code"] for name, entry in failed.items()},
            {
                "large": "InvalidParameterValue",
                "bad": "InvalidMessageContents",
                "late": "InvalidParameterValue",
                "none": "MissingParameter",
            },
        )
        self.assertTrue(all(entry["SenderFault"] for entry in failed.values()))
        self.assertEqual(
            failed["large"]["Message"],
            "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes.",
        )
        self.assertEqual(self.bodies(url), ["a"])

    def test_settling_entries_fail_by_themselves(self):
        url = self.queue()
        self.send(url)
        (message,) = self.receive(url)
        handle = message["ReceiptHandle"]
        answer = self.unchecked.change_message_visibility_batch(
            QueueUrl=url,
            Entries=[
                {"Id": "good", "ReceiptHandle": handle, "VisibilityTimeout": 600},
                {"Id": "garbage", "ReceiptHandle": "garbage", "VisibilityTimeout": 1},
                {"Id": "long", "ReceiptHandle": handle, "VisibilityTimeout": 43_201},
                {"Id": "none", "ReceiptHandle": handle},
            ],
        )
        self.assertEqual(answer["Successful"], [{"Id": "good"}])
        self.assertEqual(
            {entry["Id"]: entry["Code"] for entry in answer["Failed"]},
            {
                "garbage": "ReceiptHandleIsInvalid",
                "long": "InvalidParameterValue",
                "none": "MissingParameter",
            },
        )
        answer = self.sqs.delete_message_batch(
            QueueUrl=url,
            Entries=[{"Id": "1", "ReceiptHandle": "fake"}, {"Id": "2", "ReceiptHandle": handle}],
        )
        self.assertEqual(answer["Successful"], [{"Id": "2"}])
        self.assertEqual(
            answer["Failed"],
            [
                {
                    "Id": "1",
                    "SenderFault": True,
                    "Code": "ReceiptHandleIsInvalid",
                    "Message": 'The input receipt handle "fake" is not a valid receipt handle.',
                }
            ],
        )

    def test_batches_that_are_refused_whole(self):
        url = self.queue()
        send = self.sqs.send_message_batch
        self.refused(
            LEGACY + "EmptyBatchRequest",
            send,
            QueueUrl=url,
            Entries=[],
            text="There should be at least one SendMessageBatchRequestEntry in the request.",
        )
        self.refused(
            LEGACY + "TooManyEntriesInBatchRequest",
            send,
            QueueUrl=url,
            Entries=self.entries(*"abcdefghijk"),
            text="Maximum number of entries per request are 10. You have sent 11.",
        )
        for bad in ["", "a.b", "x" * 81]:
            self.refused(
                LEGACY + "InvalidBatchEntryId",
                send,
                QueueUrl=url,
                Entries=[{"Id": bad, "MessageBody": "x"}],
                text="A batch entry id can only contain alphanumeric characters",
            )
        self.refused(
            LEGACY + "BatchEntryIdsNotDistinct",
            send,
            QueueUrl=url,
            Entries=[{"Id": "a", "MessageBody": "x"}, {"Id": "a", "MessageBody": "y"}],
            text="Id a repeated.",
        )
        half = "x" * 524_288
        self.refused(
            LEGACY + "BatchRequestTooLong",
            send,
            QueueUrl=url,
            Entries=self.entries(half, half + "x"),
            text="Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.",
        )
        self.assertEqual(self.counts(url), [0, 0, 0])
        self.refused(
            LEGACY + "EmptyBatchRequest",
            self.sqs.delete_message_batch,
            QueueUrl=url,
            Entries=[],
            text="DeleteMessageBatchRequestEntry",
        )
