"""Sending and receiving on standard queues."""

import threading

from . import support
from .support import SqsTest, attributes_md5, body_md5

TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


class Messages(SqsTest):
    def test_bodies_come_back_as_they_were_sent(self):
        url = self.queue()
        for body in [
            "x",
            " ",
            '{"json": "\\"escaped\\" \\\\ \\n"}',
            "tab\tline\nreturn\r",
            "größer, 大きい, \U0001f600, \ue000\ufffd",
            "\u2028<>&'",
            "y" * 100_000,
        ]:
            with self.subTest(body=body[:20]):
                sent = self.send(url, body)
                self.assertEqual(sent["MD5OfMessageBody"], body_md5(body))
                self.assertNotIn("MD5OfMessageAttributes", sent)
                self.assertNotIn("SequenceNumber", sent)
                (message,) = self.receive(url)
                self.assertEqual(message["Body"], body)
                self.assertEqual(message["MD5OfBody"], body_md5(body))
                self.assertEqual(message["MessageId"], sent["MessageId"])
                self.delete(url, message)

    def test_characters_outside_xml_are_refused(self):
        url = self.queue()
        for character in ["\0", "\x08", "\x0b", "\x1f", "\ufffe", "\uffff"]:
            with self.subTest(character=hex(ord(character))):
                self.refused(
                    "InvalidMessageContents",
                    self.send,
                    url,
                    f"bad {character}",
                    text=f"Invalid binary character '#x{ord(character):X}'",
                )

    def test_an_empty_body_is_a_missing_one(self):
        self.refused(
            "MissingParameter",
            self.send,
            self.queue(),
            "",
            text="The request must contain the parameter MessageBody.",
            modelled="MissingRequiredParameterException",
        )

    def test_sizes_up_to_one_mebibyte(self):
        url = self.queue()
        largest = "x" * 1_048_576
        self.send(url, largest)
        self.assertEqual(self.bodies(url), [largest])
        self.refused(
            "InvalidParameterValue",
            self.send,
            url,
            largest + "x",
            text="One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes.",
        )
        attributes = {"a": {"DataType": "Binary", "BinaryValue": b"12"}}
        self.send(url, largest[9:], MessageAttributes=attributes)
        self.refused("InvalidParameterValue", self.send, url, largest[8:], MessageAttributes=attributes)

    def test_message_attributes_of_all_types_and_their_digest(self):
        url = self.queue()
        attributes = {
            "Text": {"DataType": "String", "StringValue": "größer"},
            "Number": {"DataType": "Number", "StringValue": "-1.5e3"},
            "Long": {"DataType": "Number.java.lang.Long", "StringValue": "1493147359900"},
            "Picture": {"DataType": "Binary.png", "BinaryValue": bytes(range(256))},
            "a.b-c_9": {"DataType": "String.custom", "StringValue": "x"},
        }
        sent = self.send(url, MessageAttributes=attributes)
        self.assertEqual(sent["MD5OfMessageAttributes"], attributes_md5(attributes))
        (message,) = self.receive(url)
        self.assertEqual(message["MessageAttributes"], attributes)
        self.assertEqual(message["MD5OfMessageAttributes"], attributes_md5(attributes))

    def test_attribute_filters_and_the_digest_of_what_passes(self):
        url = self.queue(VisibilityTimeout=0)
        attributes = {
            name: {"DataType": "String", "StringValue": name} for name in ["Hello", "Help.Me", "General"]
        }
        self.send(url, MessageAttributes=attributes)
        for names, expected in [
            ([], []),
            (["All"], ["Hello", "Help.Me", "General"]),
            ([".*"], ["Hello", "Help.Me", "General"]),
            (["Hel.*"], ["Hello", "Help.Me"]),
            (["Hello", "Nothing"], ["Hello"]),
            (["Nothing"], []),
        ]:
            with self.subTest(names=names):
                answer = self.sqs.receive_message(QueueUrl=url, MessageAttributeNames=names, WaitTimeSeconds=5)
                (message,) = answer["Messages"]
                passed = {name: attributes[name] for name in expected}
                self.assertEqual(message.get("MessageAttributes", {}), passed)
                if passed:
                    self.assertEqual(message["MD5OfMessageAttributes"], attributes_md5(passed))
                else:
                    self.assertNotIn("MD5OfMessageAttributes", message)
                self.assertNotIn("Attributes", message)

    def test_bad_message_attributes(self):
        url = self.queue()
        good = {"DataType": "String", "StringValue": "x"}
        for name, value in [
            ("AWS.x", good),
            ("amazon.x", good),
            (".x", good),
            ("x.", good),
            ("x y", good),
            ("x" * 257, good),
            ("x", {"DataType": "Str", "StringValue": "x"}),
            ("x", {"DataType": "", "StringValue": "x"}),
            ("x", {"DataType": "String", "StringValue": ""}),
            ("x", {"DataType": "String", "StringValue": "\x08"}),
            ("x", {"DataType": "Number", "StringValue": "ten"}),
            ("x", {"DataType": "Binary", "BinaryValue": b""}),
        ]:
            with self.subTest(name=name[:10], value=value):
                self.refused("InvalidParameterValue", self.send, url, MessageAttributes={name: value})
        self.send(url, MessageAttributes={f"a{number}": good for number in range(10)})
        self.refused(
            "InvalidParameterValue",
            self.send,
            url,
            MessageAttributes={f"a{number}": good for number in range(11)},
            text="Number of message attributes [11] exceeds the allowed maximum [10].",
        )

    def test_system_attributes(self):
        url = self.queue()
        trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": TRACE}}
        sent = self.send(url, MessageSystemAttributes=trace, MessageGroupId="tenant")
        self.assertEqual(sent["MD5OfMessageSystemAttributes"], "5ae4d5d7636402d80f4eb6d213245a88")
        (message,) = self.receive(url)
        attributes = message["Attributes"]
        self.assertEqual(attributes["AWSTraceHeader"], TRACE)
        self.assertEqual(attributes["MessageGroupId"], "tenant")
        self.assertEqual(attributes["ApproximateReceiveCount"], "1")
        self.assertTrue(attributes["SenderId"])
        first = int(attributes["ApproximateFirstReceiveTimestamp"])
        self.assertGreaterEqual(first, int(attributes["SentTimestamp"]))
        self.assertNotIn("SequenceNumber", attributes)
        self.assertNotIn("DeadLetterQueueSourceArn", attributes)
        self.refused(
            "InvalidParameterValue",
            self.unchecked.send_message,
            QueueUrl=url,
            MessageBody="x",
            MessageSystemAttributes={"SenderId": {"DataType": "String", "StringValue": "me"}},
        )

    def test_the_requests_trace_header_is_kept_with_the_message(self):
        url = self.queue()

        def trace(request, **_):
            request.headers["X-Amzn-Trace-Id"] = TRACE

        events = self.unchecked.meta.events
        events.register("before-sign.sqs.SendMessage", trace)
        try:
            self.unchecked.send_message(QueueUrl=url, MessageBody="x")
        finally:
            events.unregister("before-sign.sqs.SendMessage", trace)
        (message,) = self.receive(url)
        self.assertEqual(message["Attributes"]["AWSTraceHeader"], TRACE)

    def test_system_attributes_are_asked_for_by_either_name(self):
        url = self.queue(VisibilityTimeout=0)
        self.send(url)
        newer = [] if support.speaks_query() else ["MessageSystemAttributeNames"]
        for names in ["AttributeNames", *newer]:
            answer = self.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5, **{names: ["SentTimestamp"]})
            self.assertEqual(list(answer["Messages"][0]["Attributes"]), ["SentTimestamp"])

    def test_delay(self):
        url = self.queue(DelaySeconds=1)
        self.send(url, "queue's")
        self.send(url, "none", DelaySeconds=0)
        self.send(url, "long", DelaySeconds=900)
        self.assertEqual(self.bodies(url), ["none"])
        self.assertEqual(self.bodies(url, wait=10), ["queue's"])
        self.assertEqual(self.counts(url)[2], 1)
        for delay in [-1, 901]:
            self.refused(
                "InvalidParameterValue",
                self.send,
                url,
                DelaySeconds=delay,
                text=f"Value {delay} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.",
            )

    def test_a_standard_queue_takes_a_group_but_no_deduplication_id(self):
        url = self.queue()
        self.refused("InvalidParameterValue", self.send, url, MessageDeduplicationId="1")
        for group in ["", "a b", "x" * 129]:
            self.refused("InvalidParameterValue", self.send, url, MessageGroupId=group)


class LongPolling(SqsTest):
    def test_a_waiting_receive_is_woken_by_the_send(self):
        url = self.queue()
        received = []
        waiting = threading.Thread(target=lambda: received.extend(self.bodies(url, wait=20)))
        waiting.start()
        self.send(url, "wake up")
        waiting.join(30)
        self.assertEqual(received, ["wake up"])

    def test_many_waiting_receives_get_one_message_each(self):
        url = self.queue()
        received = []
        waiting = [
            threading.Thread(target=lambda: received.extend(self.bodies(url, wait=20, most=1)))
            for _ in range(8)
        ]
        for thread in waiting:
            thread.start()
        for number in range(8):
            self.send(url, str(number))
        for thread in waiting:
            thread.join(30)
        self.assertEqual(sorted(received), [str(number) for number in range(8)])

    def test_the_queues_own_wait_applies(self):
        url = self.queue(ReceiveMessageWaitTimeSeconds=20)
        received = []

        def wait():
            received.extend(self.sqs.receive_message(QueueUrl=url).get("Messages", []))

        waiting = threading.Thread(target=wait)
        waiting.start()
        self.send(url, "x")
        waiting.join(30)
        self.assertEqual([message["Body"] for message in received], ["x"])

    def test_a_short_poll_of_an_empty_queue_has_no_messages(self):
        answer = self.sqs.receive_message(QueueUrl=self.queue(), WaitTimeSeconds=0)
        self.assertNotIn("Messages", answer)

    def test_limits_of_a_receive(self):
        url = self.queue()
        for parameter, value, text in [
            ("MaxNumberOfMessages", 0, "Must be between 1 and 10, if provided."),
            ("MaxNumberOfMessages", 11, "Must be between 1 and 10, if provided."),
            ("WaitTimeSeconds", -1, "Must be >= 0 and <= 20, if provided."),
            ("WaitTimeSeconds", 21, "Must be >= 0 and <= 20, if provided."),
            ("VisibilityTimeout", 43_201, ""),
            ("VisibilityTimeout", -1, ""),
        ]:
            with self.subTest(parameter=parameter, value=value):
                self.refused(
                    "InvalidParameterValue",
                    self.sqs.receive_message,
                    QueueUrl=url,
                    **{parameter: value},
                    text=f"Value {value} for parameter {parameter} is invalid. Reason: {text}",
                )
