"""What all tests share: a client, queues that clean up after themselves, and checks."""

import hashlib
import json
import ssl
import struct
import unittest
import urllib.error
import urllib.request
import uuid

import boto3
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

# Ids and secrets of ../access-keys.toml. Where the server asks for none, any will do.
SUITE_KEY = ("SUITE", "secret-of-the-suite")
READER_KEY = ("READER", "secret-of-the-reader")

_settings = {"endpoint": None, "region": None, "signed": False, "ca": None}
_clients = {}


def configure(endpoint, region, signed, ca=None):
    """Where the server is, whether it checks signatures, and who vouches for it where it speaks TLS."""
    _settings.update(endpoint=endpoint, region=region, signed=signed, ca=ca)


def is_signed():
    return _settings["signed"]


def client(key=SUITE_KEY, service="sqs", **config):
    """A client; one for each access key, service and way of configuring it."""
    name = (key, service, tuple(sorted(config.items())))
    if name not in _clients:
        _clients[name] = boto3.client(
            service,
            endpoint_url=_settings["endpoint"],
            region_name=_settings["region"],
            verify=_settings["ca"],
            aws_access_key_id=key[0],
            aws_secret_access_key=key[1],
            # A refusal is a result here, so nothing is tried again; and waiting in a long poll is
            # no failure.
            config=Config(retries={"total_max_attempts": 1}, read_timeout=30, **config),
        )
    return _clients[name]


def post(body, headers):
    """Posts bytes as they are, signed; returns status, headers and body."""
    request = AWSRequest("POST", _settings["endpoint"] + "/", data=body, headers=headers)
    SigV4Auth(Credentials(*SUITE_KEY), "sqs", _settings["region"]).add_auth(request)
    return _open(urllib.request.Request(request.url, body, dict(request.headers)))


def get(url, sign=True):
    """Asks for an address, signed beforehand or as it is; returns status, headers and body."""
    request = AWSRequest("GET", url)
    if sign:
        SigV4QueryAuth(Credentials(*SUITE_KEY), "sqs", _settings["region"]).add_auth(request)
    return _open(request.url)


def _open(request):
    context = ssl.create_default_context(cafile=_settings["ca"]) if _settings["ca"] else None
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def speaks_query():
    """Whether the SDK speaks the older of AWS's two protocols, as all did until the end of 2023."""
    return client().meta.service_model.metadata["protocol"] == "query"


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
        # Without any, the member is left out.
        return answer.get("Attributes", {}).get(name)

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
        names = "AttributeNames" if speaks_query() else "MessageSystemAttributeNames"
        return self.sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=most,
            WaitTimeSeconds=wait,
            MessageAttributeNames=["All"],
            **{names: ["All"], **more},
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
        metadata = answer["ResponseMetadata"]
        self.assertEqual(metadata["HTTPStatusCode"], status, error)
        self.assertTrue(metadata["RequestId"])
        if speaks_query():
            self.assertEqual(error["Type"], "Sender")
        else:
            self.assertEqual(metadata["HTTPHeaders"]["x-amzn-query-error"], f"{code};Sender")
            if modelled is not None:
                self.assertEqual(error.get("QueryErrorCode"), modelled)
        return error
