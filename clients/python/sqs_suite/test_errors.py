"""Requests that are wrong as such."""

import json

from . import support
from .support import SqsTest


class Errors(SqsTest):
    def post(self, body, **headers):
        """Status, headers and error of a request as it stands here."""
        answer = support.post(body, {"Content-Type": "application/x-amz-json-1.0", **headers})
        return *answer[:2], json.loads(answer[2])

    def action(self, name, body):
        return self.post(body, **{"X-Amz-Target": f"AmazonSQS.{name}"})

    def test_wrong_types(self):
        url = self.queue()
        for more in [
            {"MessageBody": 7},
            {"MessageBody": ["x"]},
            {"MessageBody": {"x": "y"}},
            {"MessageBody": "x", "DelaySeconds": "1"},
            {"MessageBody": "x", "DelaySeconds": 1.5},
            {"MessageBody": "x", "MessageAttributes": []},
            {"MessageBody": "x", "MessageAttributes": {"a": "b"}},
        ]:
            with self.subTest(more=more):
                body = json.dumps({"QueueUrl": url, **more}).encode()
                status, headers, error = self.action("SendMessage", body)
                self.assertEqual(status, 400)
                self.assertTrue(error["__type"].endswith("#SerializationException"), error)
                self.assertEqual(headers["x-amzn-query-error"], "SerializationException;Sender")
        self.assertEqual(self.counts(url), [0, 0, 0])

    def test_malformed_json(self):
        for body in [b"{", b"[]", b"\xff", b"nonsense", b'{"QueueUrl":' + b"[" * 10_000, b'{"a":1}{']:
            with self.subTest(body=body[:20]):
                status, _, error = self.action("ListQueues", body)
                self.assertEqual(status, 400)
                self.assertTrue(error["__type"].endswith("#SerializationException"), error)

    def test_unknown_actions_and_none(self):
        for headers in [{}, {"X-Amz-Target": "AmazonSQS.Dance"}, {"X-Amz-Target": "DynamoDB.ListTables"}]:
            status, found, error = self.post(b"{}", **headers)
            self.assertEqual(status, 400)
            self.assertTrue(error["__type"].endswith("#UnknownOperationException"), error)
            self.assertEqual(found["x-amzn-query-error"], "InvalidAction;Sender")

    def test_typed_exceptions_of_the_client(self):
        """Handlers written with the client's own exception classes work."""
        with self.assertRaises(self.sqs.exceptions.QueueDoesNotExist):
            self.sqs.get_queue_url(QueueName=self.prefix + "none")
        url = self.queue()
        with self.assertRaises(self.sqs.exceptions.ReceiptHandleIsInvalid):
            self.sqs.delete_message(QueueUrl=url, ReceiptHandle="x")
        with self.assertRaises(self.sqs.exceptions.EmptyBatchRequest):
            self.sqs.send_message_batch(QueueUrl=url, Entries=[])
