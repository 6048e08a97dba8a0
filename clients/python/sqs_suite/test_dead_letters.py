"""Dead-letter queues."""

import json

from .support import SqsTest


class DeadLetters(SqsTest):
    def policy(self, dead, count):
        return {"deadLetterTargetArn": self.attribute(dead, "QueueArn"), "maxReceiveCount": count}

    def sources(self, dead):
        # An empty list is left out of an XML answer.
        return self.sqs.list_dead_letter_source_queues(QueueUrl=dead).get("queueUrls", [])

    def test_a_message_received_too_often_is_moved(self):
        for suffix, more in [("", {}), (".fifo", {"MessageGroupId": "g", "MessageDeduplicationId": "d"})]:
            with self.subTest(suffix=suffix):
                dead = self.queue("dead" + suffix)
                url = self.queue("q" + suffix, RedrivePolicy=self.policy(dead, 2))
                attributes = {"a": {"DataType": "String", "StringValue": "kept"}}
                sent = self.send(url, "poison", MessageAttributes=attributes, **more)
                for _ in range(2):
                    self.assertEqual(self.bodies(url, VisibilityTimeout=0), ["poison"])
                self.assertEqual(self.bodies(url), [])
                self.assertEqual(self.counts(url), [0, 0, 0])
                (moved,) = self.receive(dead, wait=5)
                self.assertEqual(moved["MessageId"], sent["MessageId"])
                self.assertEqual(moved["Body"], "poison")
                self.assertEqual(moved["MessageAttributes"], attributes)
                self.assertEqual(
                    moved["Attributes"]["DeadLetterQueueSourceArn"], self.attribute(url, "QueueArn")
                )
                self.assertEqual(moved["Attributes"]["ApproximateReceiveCount"], "3")

    def test_a_poison_message_does_not_block_its_group_for_ever(self):
        dead = self.queue("dead.fifo")
        url = self.queue("q.fifo", RedrivePolicy=self.policy(dead, 1))
        for body in ["poison", "next"]:
            self.send(url, body, MessageGroupId="g", MessageDeduplicationId=body)
        self.assertEqual(self.bodies(url, most=1, VisibilityTimeout=0), ["poison"])
        self.assertEqual(self.bodies(url, wait=5), ["next"])
        self.assertEqual(self.bodies(dead, wait=5), ["poison"])

    def test_the_policy_is_returned_and_removed(self):
        dead = self.queue("dead")
        url = self.queue("q", RedrivePolicy=self.policy(dead, "7"))
        self.assertEqual(json.loads(self.attribute(url, "RedrivePolicy")), self.policy(dead, 7))
        self.assertEqual(self.sources(dead), [url])
        self.sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
        self.assertEqual(self.sources(dead), [])

    def test_policies_that_are_refused(self):
        dead, fifo = self.queue("dead"), self.queue("dead.fifo")
        url = self.queue("q")
        good = self.policy(dead, 1)
        for policy, reason in [
            ("x", "Redrive policy is not a valid JSON map."),
            ({"deadLetterTargetArn": good["deadLetterTargetArn"]}, "mandatory attribute: maxReceiveCount"),
            ({"maxReceiveCount": 1}, "mandatory attribute: deadLetterTargetArn"),
            ({**good, "maxReceiveCount": 0}, "valid values are from 1 to 1000 both inclusive."),
            ({**good, "maxReceiveCount": 1001}, "valid values are from 1 to 1000 both inclusive."),
            ({**good, "maxReceiveCount": "many"}, "valid values are from 1 to 1000 both inclusive."),
            ({**good, "deadLetterTargetArn": good["deadLetterTargetArn"] + "x"}, "Dead letter target does not exist."),
            (self.policy(fifo, 1), "Dead-letter queue must be same type of queue as the source."),
        ]:
            with self.subTest(policy=policy):
                text = policy if isinstance(policy, str) else json.dumps(policy)
                self.refused(
                    "InvalidParameterValue",
                    self.sqs.set_queue_attributes,
                    QueueUrl=url,
                    Attributes={"RedrivePolicy": text},
                    text=reason,
                )

    def test_a_queue_says_whose_dead_letter_queue_it_is(self):
        url = self.queue("q")
        allow = {"redrivePermission": "byQueue", "sourceQueueArns": [self.attribute(url, "QueueArn")]}
        dead = self.queue("dead", RedriveAllowPolicy=allow)
        other = self.queue("other")
        policy = {"RedrivePolicy": json.dumps(self.policy(dead, 1))}
        self.sqs.set_queue_attributes(QueueUrl=url, Attributes=policy)
        self.refused(
            "InvalidParameterValue", self.sqs.set_queue_attributes, QueueUrl=other, Attributes=policy
        )
