"""Deleting messages and changing their visibility."""

from .support import SqsTest


class Deleting(SqsTest):
    def test_a_deleted_message_is_gone_and_deleting_it_again_is_no_error(self):
        url = self.queue()
        self.send(url)
        (message,) = self.receive(url)
        self.delete(url, message)
        self.assertEqual(self.counts(url), [0, 0, 0])
        self.delete(url, message)

    def test_an_older_handle_deletes_nothing(self):
        url = self.queue()
        self.send(url)
        (first,) = self.receive(url, VisibilityTimeout=1)
        (second,) = self.receive(url, wait=10)
        self.assertNotEqual(first["ReceiptHandle"], second["ReceiptHandle"])
        self.delete(url, first)
        self.assertEqual(self.counts(url), [0, 1, 0])
        self.delete(url, second)
        self.assertEqual(self.counts(url), [0, 0, 0])

    def test_an_expired_handle_still_deletes_on_a_standard_queue(self):
        url = self.queue()
        self.send(url)
        (message,) = self.receive(url, VisibilityTimeout=0)
        self.delete(url, message)
        self.assertEqual(self.counts(url), [0, 0, 0])

    def test_handles_that_were_never_given_out(self):
        url, other = self.queue("q"), self.queue("other")
        self.send(url)
        (message,) = self.receive(url)
        handle = message["ReceiptHandle"]
        changed = handle[:-2] + ("A" if handle[-2] != "A" else "B") + handle[-1]
        for queue, bad in [(url, "garbage"), (url, changed), (url, handle + "A"), (other, handle)]:
            made_up = f'The input receipt handle "{bad}" is not a valid receipt handle.'
            of_another = f'The receipt handle "{bad}" is not valid for this queue.'
            with self.subTest(handle=bad):
                self.refused(
                    "ReceiptHandleIsInvalid",
                    self.sqs.delete_message,
                    QueueUrl=queue,
                    ReceiptHandle=bad,
                    status=404,
                    text=of_another if queue == other else made_up,
                )
                self.refused(
                    "ReceiptHandleIsInvalid",
                    self.sqs.change_message_visibility,
                    QueueUrl=queue,
                    ReceiptHandle=bad,
                    VisibilityTimeout=0,
                    status=404,
                )
        self.refused("MissingParameter", self.sqs.delete_message, QueueUrl=url, ReceiptHandle="")
        self.assertEqual(self.counts(url), [0, 1, 0])
        self.delete(url, message)


class Visibility(SqsTest):
    def change(self, url, message, seconds):
        return self.sqs.change_message_visibility(
            QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds
        )

    def test_a_message_comes_back_when_its_time_is_over(self):
        url = self.queue(VisibilityTimeout=1)
        self.send(url)
        (first,) = self.receive(url)
        self.assertEqual(self.counts(url), [0, 1, 0])
        (second,) = self.receive(url, wait=10)
        self.assertEqual(second["Attributes"]["ApproximateReceiveCount"], "2")
        name = "ApproximateFirstReceiveTimestamp"
        self.assertEqual(second["Attributes"][name], first["Attributes"][name])

    def test_zero_makes_it_visible_at_once(self):
        url = self.queue(VisibilityTimeout=600)
        self.send(url)
        (message,) = self.receive(url)
        self.change(url, message, 0)
        (again,) = self.receive(url)
        self.assertEqual(again["MessageId"], message["MessageId"])

    def test_it_can_be_extended_and_shortened(self):
        url = self.queue(VisibilityTimeout=1)
        self.send(url)
        (message,) = self.receive(url)
        self.change(url, message, 600)
        self.assertEqual(self.bodies(url, wait=2), [])
        self.change(url, message, 1)
        self.assertEqual(self.bodies(url, wait=10), ["body"])

    def test_twelve_hours_in_all(self):
        url = self.queue()
        self.send(url)
        (message,) = self.receive(url, VisibilityTimeout=600)
        for seconds in [-1, 43_201]:
            self.refused(
                "InvalidParameterValue",
                self.change,
                url,
                message,
                seconds,
                text=f"Value {seconds} for parameter VisibilityTimeout is invalid.",
            )
        self.change(url, message, 43_000)

    def test_messages_that_are_not_in_flight(self):
        url = self.queue()
        self.send(url)
        (message,) = self.receive(url, VisibilityTimeout=600)
        self.change(url, message, 0)
        # As on AWS, a standard queue's message can be hidden again by a handle whose time is over.
        self.change(url, message, 600)
        self.assertEqual(self.bodies(url), [])
        self.change(url, message, 0)
        (message,) = self.receive(url)
        self.delete(url, message)
        self.refused(
            "InvalidParameterValue",
            self.change,
            url,
            message,
            10,
            text="Reason: Message does not exist or is not available for visibility timeout change.",
        )
