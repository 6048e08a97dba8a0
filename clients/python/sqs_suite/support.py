"""What all tests share: a client, queues that clean up after themselves, and checks."""

import hashlib
import json
import struct
import unittest
import uuid

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

_settings = {"endpoint": None, "region": None}
_clients = {}


def configure(endpoint, region):
    _settings.update(endpoint=endpoint, region=region)


def client(**config):
    """A client; one for each way of configuring it."""
    key = tuple(sorted(config.items()))
    if key not in _clients:
        _clients[key] = boto3.client(
            "sqs",
            endpoint_url=_settings["endpoint"],
            region_name=_settings["region"],
            # Any key will do as long as the server asks for none.
            aws_access_key_id="test",
            aws_secret_access_key="test",
            # A refusal is a result here, so nothing is tried again; and waiting in a long poll is
            # no failure.
            config=Config(retries={"total_max_attempts": 1}, read_timeout=30, **config),
        )
    return _clients[key]


def attributes_md5(attributes):
    """The MD5 of message attributes, written from AWS's description and not from the server's code."""
    digest = hashlib.md5()

    def add(part):
        part = part.encode() if isinstance(part, str) else part
        digest.update(struct.pack(">I", len(part)) + part)

    for name in sorted(attributes):
        value = attributes[name]
        binary = value["DataType"].split(".")[0] == "Binary"
        add(name)
        add(value["DataType"])
        digest.update(b"\x02" if binary else b"\x01")
        add(value["BinaryValue"] if binary else value["StringValue"])
    return digest.hexdigest()


def body_md5(body):
    return hashlib.md5(body.encode()).hexdigest()


class SqsTest(unittest.TestCase):
    """A test with a client and queues of its own."""

    maxDiff = None

    def setUp(self):
        self.sqs = client()
        # Checks nothing before it sends, so that the server's own checks are seen.
        self.unchecked = client(parameter_validation=False)
        self.prefix = f"suite-{uuid.uuid4().hex[:12]}-"

    def queue(self, name="q", tags=None, **attributes):
        """Makes a queue and returns its URL. A name that ends in .fifo makes a FIFO queue."""
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        attributes = {
            key: json.dumps(value) if isinstance(value, dict) else str(value)
            for key, value in attributes.items()
        }
        url = self.sqs.create_queue(
            QueueName=self.prefix + name, Attributes=attributes, tags=tags or {}
        )["QueueUrl"]
        self.addCleanup(self._remove, url)
        return url

    def _remove(self, url):
        try:
            self.sqs.delete_queue(QueueUrl=url)
        except ClientError:
            pass  # The test removed it.

    def attribute(self, url, name):
        answer = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
        return answer["Attributes"].get(name)

    def counts(self, url):
        """Waiting, in flight and delayed messages."""
        names = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ]
        attributes = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return [int(attributes[name]) for name in names]

    def send(self, url, body="body", **more):
        return self.sqs.send_message(QueueUrl=url, MessageBody=body, **more)

    def receive(self, url, wait=0, most=10, **more):
        """Up to `most` messages with all attributes; a wait ends with the first one."""
        return self.sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=most,
            WaitTimeSeconds=wait,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
            **more,
        ).get("Messages", [])

    def bodies(self, url, **more):
        return [message["Body"] for message in self.receive(url, **more)]

    def delete(self, url, message):
        return self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def refused(self, code, call, *args, text=None, status=400, modelled=None, **kwargs):
        """Checks that a call is refused with this code, and with this text if one is given."""
        with self.assertRaises(ClientError) as caught:
            call(*args, **kwargs)
        answer = caught.exception.response
        error = answer["Error"]
        self.assertEqual(error["Code"], code, error)
        if text is not None:
            self.assertIn(text, error["Message"])
        if modelled is not None:
            self.assertEqual(error.get("QueryErrorCode"), modelled)
        metadata = answer["ResponseMetadata"]
        self.assertEqual(metadata["HTTPStatusCode"], status, error)
        headers = metadata["HTTPHeaders"]
        self.assertEqual(headers["x-amzn-query-error"], f"{code};Sender")
        self.assertTrue(metadata["RequestId"])
        return error
