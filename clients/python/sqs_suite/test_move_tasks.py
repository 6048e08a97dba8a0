"""Moving dead letters back, or to another queue."""

import json

from .support import SqsTest


class MoveTasks(SqsTest):
    def setUp(self):
        super().setUp()
        if not hasattr(self.sqs, "start_message_move_task"):
            self.skipTest("this boto3 is older than move tasks")

    def queues(self, letters):
        """A queue and its dead-letter queue, with so many dead letters."""
        dead = self.queue("dead")
        self.arn = self.attribute(dead, "QueueArn")
        policy = json.dumps({"deadLetterTargetArn": self.arn, "maxReceiveCount": 1})
        url = self.queue("q", RedrivePolicy=policy)
        for number in range(letters):
            self.send(url, f"letter {number}")
        self.receive(url, VisibilityTimeout=0)
        self.receive(url)
        self.assertEqual(self.counts(dead), [letters, 0, 0])
        return url, dead

    def tasks(self):
        return self.sqs.list_message_move_tasks(SourceArn=self.arn, MaxResults=10)["Results"]

    def test_dead_letters_go_back_to_where_they_came_from(self):
        url, dead = self.queues(3)
        self.sqs.start_message_move_task(SourceArn=self.arn)
        bodies = []
        while len(bodies) < 3:
            found = self.receive(url, wait=10)
            self.assertTrue(found, bodies)
            bodies += [message["Body"] for message in found]
        self.assertEqual(sorted(bodies), ["letter 0", "letter 1", "letter 2"])
        self.assertEqual(self.counts(dead), [0, 0, 0])
        (task,) = self.tasks()
        self.assertEqual(task["SourceArn"], self.arn)

    def test_to_a_queue_that_is_named(self):
        url, _ = self.queues(1)
        other = self.queue("other")
        self.sqs.start_message_move_task(
            SourceArn=self.arn, DestinationArn=self.attribute(other, "QueueArn")
        )
        self.assertEqual(self.bodies(other, wait=10), ["letter 0"])
        self.assertEqual(self.counts(url), [0, 0, 0])

    def test_a_slow_task_is_listed_and_cancelled(self):
        url, dead = self.queues(10)
        handle = self.sqs.start_message_move_task(
            SourceArn=self.arn, MaxNumberOfMessagesPerSecond=1
        )["TaskHandle"]
        (task,) = self.tasks()
        self.assertEqual((task["Status"], task["TaskHandle"]), ("RUNNING", handle))
        self.refused(
            "InvalidParameterValue",
            self.sqs.start_message_move_task,
            SourceArn=self.arn,
            text="There is already a task running.",
        )
        self.sqs.cancel_message_move_task(TaskHandle=handle)
        self.assertIn(self.tasks()[0]["Status"], ["CANCELLING", "CANCELLED"])
        self.assertEqual(self.counts(url)[0] + self.counts(dead)[0], 10)

    def test_what_is_refused(self):
        url = self.queue("q")
        for arn, code, status in [
            (self.attribute(url, "QueueArn"), "InvalidParameterValue", 400),
            (self.attribute(url, "QueueArn") + "-none", "ResourceNotFoundException", 404),
        ]:
            with self.subTest(arn=arn):
                self.refused(code, self.sqs.start_message_move_task, SourceArn=arn, status=status)
        self.refused(
            "InvalidParameterValue", self.sqs.cancel_message_move_task, TaskHandle="none"
        )
