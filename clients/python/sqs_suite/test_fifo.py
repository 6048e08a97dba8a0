"""FIFO queues: order, locks, deduplication."""

import threading

from .support import SqsTest


class Fifo(SqsTest):
    def put(self, url, group, body, **more):
        more.setdefault("MessageDeduplicationId", body)
        return self.send(url, body, MessageGroupId=group, **more)

    def test_order_within_a_group_and_sequence_numbers(self):
        url = self.queue("q.fifo")
        numbers = [self.put(url, "g", f"m{number}")["SequenceNumber"] for number in range(10)]
        self.assertEqual(numbers, sorted(numbers))
        self.assertTrue(all(len(number) == 20 for number in numbers), numbers)
        messages = self.receive(url)
        self.assertEqual([message["Body"] for message in messages], [f"m{n}" for n in range(10)])
        self.assertEqual([message["Attributes"]["SequenceNumber"] for message in messages], numbers)
        attributes = messages[0]["Attributes"]
        self.assertEqual(attributes["MessageGroupId"], "g")
        self.assertEqual(attributes["MessageDeduplicationId"], "m0")

    def test_a_group_in_flight_is_locked_and_others_are_not(self):
        url = self.queue("q.fifo")
        for group, body in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")]:
            self.put(url, group, body)
        (first,) = self.receive(url, most=1)
        self.assertEqual(first["Body"], "a1")
        (second,) = self.receive(url, most=1)
        self.assertEqual(second["Body"], "b1")
        self.assertEqual(self.bodies(url), [])
        # A send to a locked group does not unlock it.
        self.put(url, "a", "a3")
        self.assertEqual(self.bodies(url), [])
        self.delete(url, first)
        self.assertEqual(self.bodies(url), ["a2", "a3"])

    def test_a_message_that_comes_back_comes_back_first(self):
        url = self.queue("q.fifo")
        for body in ["1", "2", "3"]:
            self.put(url, "g", body)
        messages = self.receive(url, most=2)
        self.assertEqual([message["Body"] for message in messages], ["1", "2"])
        for message in messages:
            self.sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
            )
        self.assertEqual(self.bodies(url), ["1", "2", "3"])

    def test_what_became_visible_in_front_is_given_out_and_nothing_behind_it(self):
        url = self.queue("q.fifo", VisibilityTimeout=600)
        for body in ["foo", "bar", "baz"]:
            self.put(url, "g", body)
        first, second, third = self.receive(url)
        for message in [first, third]:
            self.sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
            )
        self.assertEqual(self.bodies(url), ["foo"])
        self.assertEqual(self.bodies(url), [])

    def test_expired_handles_are_refused(self):
        url = self.queue("q.fifo")
        self.put(url, "g", "x")
        (old,) = self.receive(url, VisibilityTimeout=1)
        (new,) = self.receive(url, wait=10)
        handle = old["ReceiptHandle"]
        text = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
        self.refused(
            "InvalidParameterValue", self.sqs.delete_message, QueueUrl=url, ReceiptHandle=handle, text=text
        )
        self.refused(
            "InvalidParameterValue",
            self.sqs.change_message_visibility,
            QueueUrl=url,
            ReceiptHandle=handle,
            VisibilityTimeout=10,
            text=text,
        )
        self.delete(url, new)
        self.assertEqual(self.counts(url), [0, 0, 0])

    def test_a_duplicate_is_accepted_and_gets_the_originals_answer(self):
        url = self.queue("q.fifo")
        first = self.put(url, "g", "x", MessageDeduplicationId="id")
        second = self.put(url, "other", "y", MessageDeduplicationId="id")
        for name in ["MessageId", "SequenceNumber"]:
            self.assertEqual(second[name], first[name])
        (message,) = self.receive(url)
        self.assertEqual(message["Body"], "x")
        self.delete(url, message)
        self.put(url, "g", "x", MessageDeduplicationId="id")
        self.assertEqual(self.counts(url), [0, 0, 0], "remembered after it was deleted")

    def test_content_based_deduplication(self):
        url = self.queue("q.fifo", ContentBasedDeduplication="true")
        ids = {
            self.send(url, body, MessageGroupId="g", **more)["MessageId"]
            for body, more in [
                ("a", {}),
                ("a", {"MessageAttributes": {"x": {"DataType": "String", "StringValue": "y"}}}),
                ("b", {}),
                ("a", {"MessageDeduplicationId": "explicit"}),
            ]
        }
        self.assertEqual(len(ids), 3)

    def test_deduplication_within_the_group(self):
        url = self.queue("q.fifo", DeduplicationScope="messageGroup")
        self.assertEqual(len({self.put(url, group, "x")["MessageId"] for group in "aab"}), 2)

    def test_deduplication_inside_a_batch(self):
        url = self.queue("q.fifo")
        entry = {"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
        answer = self.sqs.send_message_batch(
            QueueUrl=url, Entries=[{"Id": "1", **entry}, {"Id": "2", **entry}]
        )
        self.assertEqual(len({sent["MessageId"] for sent in answer["Successful"]}), 1)
        self.assertEqual(self.counts(url), [1, 0, 0])

    def test_a_purge_forgets_deduplication_ids(self):
        url = self.queue("q.fifo")
        self.put(url, "g", "x")
        self.sqs.purge_queue(QueueUrl=url)
        self.put(url, "g", "x")
        self.assertEqual(self.counts(url), [1, 0, 0])

    def test_required_and_refused_parameters(self):
        url = self.queue("q.fifo")
        self.refused(
            "MissingParameter",
            self.send,
            url,
            MessageDeduplicationId="1",
            text="The request must contain the parameter MessageGroupId.",
        )
        needs_id = (
            "The queue should either have ContentBasedDeduplication enabled or "
            "MessageDeduplicationId provided explicitly"
        )
        self.refused("InvalidParameterValue", self.send, url, MessageGroupId="g", text=needs_id)
        entry = {"Id": "1", "MessageBody": "x"}
        for more, text in [
            ({"MessageGroupId": "g"}, needs_id),
            ({"MessageDeduplicationId": "d"}, "The request must contain the parameter MessageGroupId."),
        ]:
            self.refused(
                "InvalidParameterValue",
                self.sqs.send_message_batch,
                QueueUrl=url,
                Entries=[{**entry, **more}],
                text=text,
            )
        for bad in ["", "a b", "ü", "x" * 129]:
            with self.subTest(id=bad[:5]):
                self.refused("InvalidParameterValue", self.put, url, bad, "x")
                self.refused("InvalidParameterValue", self.put, url, "g", "x", MessageDeduplicationId=bad)
        self.refused(
            "InvalidParameterValue",
            self.put,
            url,
            "g",
            "x",
            DelaySeconds=2,
            text="Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for this queue type.",
        )
        self.put(url, "g", "x", DelaySeconds=0)

    def test_the_queues_delay_applies(self):
        url = self.queue("q.fifo", DelaySeconds=1)
        self.put(url, "g", "x")
        self.assertEqual(self.counts(url), [0, 0, 1])
        self.assertEqual(self.bodies(url, wait=10), ["x"])

    def test_concurrent_consumers_keep_every_groups_order(self):
        url = self.queue("q.fifo", VisibilityTimeout=60)
        groups, each = 8, 12
        for number in range(each):
            for start in range(0, groups, 8):
                self.sqs.send_message_batch(
                    QueueUrl=url,
                    Entries=[
                        {
                            "Id": str(group),
                            "MessageBody": f"{group} {number}",
                            "MessageGroupId": str(group),
                            "MessageDeduplicationId": f"{group}-{number}",
                        }
                        for group in range(start, start + 8)
                    ],
                )
        seen, lock, held, problems = {}, threading.Lock(), set(), []

        def consume():
            while True:
                messages = self.receive(url, wait=1, most=3)
                if not messages:
                    return
                taken = {message["Attributes"]["MessageGroupId"] for message in messages}
                with lock:
                    if held & taken:
                        problems.append(f"two holders of {held & taken}")
                    held.update(taken)
                    for message in messages:
                        group, number = message["Body"].split()
                        seen.setdefault(group, []).append(int(number))
                # Some work, in which nobody else may get these groups.
                self.counts(url)
                with lock:
                    held.difference_update(taken)
                for message in messages:
                    self.delete(url, message)

        consumers = [threading.Thread(target=consume) for _ in range(4)]
        for thread in consumers:
            thread.start()
        for thread in consumers:
            thread.join(60)
        self.assertEqual(problems, [])
        self.assertEqual(seen, {str(group): list(range(each)) for group in range(groups)})
