"""Requests that are wrong as such, and actions that are not there."""

import json
import urllib.error
import urllib.request

from . import support
from .support import SqsTest


class Errors(SqsTest):
    def post(self, body, **headers):
        """Posts bytes as they are; returns status, headers and body."""
        request = urllib.request.Request(
            support.client().meta.endpoint_url,
            data=body,
            method="POST",
            headers={"Content-Type": "application/x-amz-json-1.0", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, error.headers, json.load(error)

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

    def test_actions_that_are_not_supported(self):
        url = self.queue()
        self.refused(
            "AWS.SimpleQueueService.UnsupportedOperation",
            self.sqs.add_permission,
            QueueUrl=url,
            Label="x",
            AWSAccountIds=["111111111111"],
            Actions=["SendMessage"],
        )
        self.refused(
            "AWS.SimpleQueueService.UnsupportedOperation",
            self.sqs.list_message_move_tasks,
            SourceArn=self.attribute(url, "QueueArn"),
        )

    def test_typed_exceptions_of_the_client(self):
        """Handlers written with the client's own exception classes work."""
        with self.assertRaises(self.sqs.exceptions.QueueDoesNotExist):
            self.sqs.get_queue_url(QueueName=self.prefix + "none")
        url = self.queue()
        with self.assertRaises(self.sqs.exceptions.ReceiptHandleIsInvalid):
            self.sqs.delete_message(QueueUrl=url, ReceiptHandle="x")
        with self.assertRaises(self.sqs.exceptions.EmptyBatchRequest):
            self.sqs.send_message_batch(QueueUrl=url, Entries=[])
