"""Permissions of a queue, and access keys where the server asks for them."""

import json

from . import support
from .support import SqsTest


class Permissions(SqsTest):
    def statements(self, url):
        policy = self.attribute(url, "Policy")
        return {} if policy is None else {found["Sid"]: found for found in json.loads(policy)["Statement"]}

    def test_added_and_removed(self):
        url = self.queue()
        self.sqs.add_permission(
            QueueUrl=url, Label="partner", AWSAccountIds=["111111111111"], Actions=["SendMessage"]
        )
        statement = self.statements(url)["partner"]
        self.assertEqual(statement["Effect"], "Allow")
        self.assertEqual(statement["Resource"], self.attribute(url, "QueueArn"))
        self.assertIn("111111111111", json.dumps(statement["Principal"]))
        self.assertIn("SQS:SendMessage", json.dumps(statement["Action"]))
        self.sqs.remove_permission(QueueUrl=url, Label="partner")
        self.assertNotIn("partner", self.statements(url))


class AccessKeys(SqsTest):
    def setUp(self):
        if not support.is_signed():
            self.skipTest("the server asks for no access keys")
        super().setUp()

    def test_a_wrong_secret_and_an_unknown_key(self):
        for key, code in [
            (("SUITE", "secret-of-another"), "SignatureDoesNotMatch"),
            (("NOBODY", "secret-of-the-suite"), "InvalidClientTokenId"),
        ]:
            with self.subTest(code=code):
                self.refused(code, support.client(key).list_queues, status=403)

    def test_a_key_that_may_only_read(self):
        url = self.queue("q")
        reader = support.client(support.READER_KEY)
        self.assertEqual(reader.get_queue_url(QueueName=self.prefix + "q")["QueueUrl"], url)
        for call, more in [
            (reader.send_message, {"MessageBody": "x"}),
            (reader.receive_message, {}),
            (reader.purge_queue, {}),
            (reader.delete_queue, {}),
            (reader.tag_queue, {"Tags": {"a": "b"}}),
        ]:
            with self.subTest(call=call.__name__):
                self.refused("AccessDenied", call, QueueUrl=url, status=403, **more)

    def test_an_address_signed_beforehand(self):
        url = self.queue()
        self.send(url, "x")
        status, _, body = support.get(f"{url}?Action=ReceiveMessage")
        self.assertEqual(status, 200, body)
        self.assertIn(b"<Body>x</Body>", body)
        status, _, body = support.get(f"{url}?Action=ReceiveMessage", sign=False)
        self.assertEqual(status, 403, body)
        self.assertIn(b"<Code>MissingAuthenticationToken</Code>", body)
