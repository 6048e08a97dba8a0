"""Queues: making, finding, listing, tagging, purging, removing."""

import json

from .support import SqsTest


class Queues(SqsTest):
    def test_create_returns_a_url_that_get_queue_url_finds(self):
        url = self.queue("orders")
        self.assertTrue(url.endswith(f"/000000000000/{self.prefix}orders"), url)
        found = self.sqs.get_queue_url(QueueName=self.prefix + "orders")
        self.assertEqual(found["QueueUrl"], url)

    def test_create_again_with_equal_attributes_returns_the_same_queue(self):
        url = self.queue("q", DelaySeconds=5, VisibilityTimeout=77)
        self.assertEqual(self.queue("q", DelaySeconds=5), url)
        self.assertEqual(self.queue("q"), url)

    def test_create_again_with_another_attribute_names_it(self):
        self.queue("q", DelaySeconds=5)
        self.refused(
            "QueueAlreadyExists",
            self.sqs.create_queue,
            QueueName=self.prefix + "q",
            Attributes={"DelaySeconds": "6"},
            text="a different value for attribute DelaySeconds",
            modelled="QueueNameExists",
        )

    def test_names_follow_the_rules(self):
        for name in ["", "a b", "a/b", "x" * 81, "a.b", "q.fifo", "ü"]:
            with self.subTest(name=name):
                self.refused("InvalidParameterValue", self.sqs.create_queue, QueueName=name)
        self.refused(
            "InvalidParameterValue",
            self.sqs.create_queue,
            QueueName=self.prefix + "q",
            Attributes={"FifoQueue": "true"},
            text="must end with .fifo suffix",
        )

    def test_list_by_prefix_and_in_pages(self):
        urls = sorted(self.queue(f"n{number}") for number in range(5))
        listed = self.sqs.list_queues(QueueNamePrefix=self.prefix)
        self.assertEqual(listed["QueueUrls"], urls)
        self.assertNotIn("NextToken", listed)
        pages = self.sqs.get_paginator("list_queues").paginate(
            QueueNamePrefix=self.prefix, PaginationConfig={"PageSize": 2}
        )
        sizes, seen = [], []
        for page in pages:
            sizes.append(len(page["QueueUrls"]))
            seen += page["QueueUrls"]
        self.assertEqual((sizes, seen), ([2, 2, 1], urls))
        self.assertNotIn("QueueUrls", self.sqs.list_queues(QueueNamePrefix=self.prefix + "x"))

    def test_queue_urls_work_whatever_host_they_name(self):
        url = self.queue("q")
        path = url.split("/", 3)[3]
        for other in [f"https://sqs.us-east-1.amazonaws.com/{path}", f"http://proxy/x/{path}", url + "/"]:
            self.assertEqual(self.counts(other), [0, 0, 0], other)
        self.refused(
            "AWS.SimpleQueueService.NonExistentQueue",
            self.sqs.purge_queue,
            QueueUrl=url.replace("000000000000", "111111111111"),
            text="The specified queue does not exist",
            modelled="QueueDoesNotExist",
        )

    def test_delete_removes_the_queue_and_frees_its_name(self):
        url = self.queue("q")
        self.send(url)
        self.sqs.delete_queue(QueueUrl=url)
        missing = "AWS.SimpleQueueService.NonExistentQueue"
        self.refused(missing, self.sqs.get_queue_url, QueueName=self.prefix + "q")
        self.refused(missing, self.sqs.delete_queue, QueueUrl=url)
        self.refused(missing, self.sqs.send_message, QueueUrl=url, MessageBody="x")
        self.refused(missing, self.sqs.receive_message, QueueUrl=url)
        self.queue("q", DelaySeconds=1)
        self.assertEqual(self.counts(url), [0, 0, 0])

    def test_purge_takes_all_messages_and_only_once_a_minute(self):
        url = self.queue("q")
        for _ in range(3):
            self.send(url)
        self.receive(url, most=1)
        self.send(url, DelaySeconds=900)
        self.assertEqual(self.counts(url), [2, 1, 1])
        self.sqs.purge_queue(QueueUrl=url)
        self.assertEqual(self.counts(url), [0, 0, 0])
        self.refused(
            "AWS.SimpleQueueService.PurgeQueueInProgress",
            self.sqs.purge_queue,
            QueueUrl=url,
            status=403,
            text=f"Only one PurgeQueue operation on {self.prefix}q is allowed every 60 seconds.",
        )

    def test_tags(self):
        url = self.queue("q", tags={"team": "a", "gone": ""})
        self.sqs.tag_queue(QueueUrl=url, Tags={"team": "b", "ü": "€"})
        self.sqs.untag_queue(QueueUrl=url, TagKeys=["gone", "never there"])
        tags = self.sqs.list_queue_tags(QueueUrl=url)["Tags"]
        self.assertEqual(tags, {"team": "b", "ü": "€"})
        self.sqs.untag_queue(QueueUrl=url, TagKeys=list(tags))
        self.assertNotIn("Tags", self.sqs.list_queue_tags(QueueUrl=url))
        self.refused(
            "InvalidParameterValue",
            self.sqs.tag_queue,
            QueueUrl=url,
            Tags={f"k{number}": "v" for number in range(51)},
            text="Too many tags added for queue",
        )
        self.refused("MissingParameter", self.sqs.tag_queue, QueueUrl=url, Tags={})


class QueueAttributes(SqsTest):
    def test_defaults_of_a_standard_queue(self):
        url = self.queue("q")
        attributes = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        for name in ["CreatedTimestamp", "LastModifiedTimestamp"]:
            self.assertGreater(int(attributes.pop(name)), 1_700_000_000)
        self.assertEqual(
            attributes,
            {
                "ApproximateNumberOfMessages": "0",
                "ApproximateNumberOfMessagesDelayed": "0",
                "ApproximateNumberOfMessagesNotVisible": "0",
                "DelaySeconds": "0",
                "MaximumMessageSize": "1048576",
                "MessageRetentionPeriod": "345600",
                "QueueArn": f"arn:aws:sqs:us-east-1:000000000000:{self.prefix}q",
                "ReceiveMessageWaitTimeSeconds": "0",
                "SqsManagedSseEnabled": "true",
                "VisibilityTimeout": "30",
            },
        )

    def test_defaults_of_a_fifo_queue(self):
        url = self.queue("q.fifo")
        names = ["FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"]
        attributes = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        self.assertEqual(list(map(attributes.get, names)), ["true", "false", "queue", "perQueue"])

    def test_set_changes_what_is_given_and_keeps_the_rest(self):
        url = self.queue("q", DelaySeconds=5)
        given = {
            "VisibilityTimeout": "0",
            "MaximumMessageSize": "1024",
            "MessageRetentionPeriod": "60",
            "ReceiveMessageWaitTimeSeconds": "20",
            "Policy": json.dumps({"Version": "2012-10-17", "Statement": []}),
            "KmsMasterKeyId": "alias/aws/sqs",
            "KmsDataKeyReusePeriodSeconds": "600",
        }
        self.sqs.set_queue_attributes(QueueUrl=url, Attributes=given)
        attributes = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        for name, value in {**given, "DelaySeconds": "5", "SqsManagedSseEnabled": "false"}.items():
            self.assertEqual(attributes[name], value, name)
        self.sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": "", "SqsManagedSseEnabled": "true"})
        for name in ["Policy", "KmsMasterKeyId"]:
            answer = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
            self.assertNotIn("Attributes", answer)

    def test_high_throughput_mode(self):
        url = self.queue("q.fifo")
        limit = {"FifoThroughputLimit": "perMessageGroupId"}
        self.refused(
            "InvalidAttributeValue", self.sqs.set_queue_attributes, QueueUrl=url, Attributes=limit
        )
        scope = {"DeduplicationScope": "messageGroup"}
        self.sqs.set_queue_attributes(QueueUrl=url, Attributes={**limit, **scope})
        self.assertEqual(self.attribute(url, "FifoThroughputLimit"), "perMessageGroupId")

    def test_values_out_of_range_and_unknown_names(self):
        url = self.queue("q")
        for name, value in [
            ("VisibilityTimeout", "43201"),
            ("VisibilityTimeout", "-1"),
            ("DelaySeconds", "901"),
            ("MaximumMessageSize", "1023"),
            ("MaximumMessageSize", "1048577"),
            ("MessageRetentionPeriod", "59"),
            ("MessageRetentionPeriod", "1209601"),
            ("ReceiveMessageWaitTimeSeconds", "21"),
            ("DelaySeconds", "many"),
        ]:
            with self.subTest(name=name, value=value):
                self.refused(
                    "InvalidAttributeValue",
                    self.sqs.set_queue_attributes,
                    QueueUrl=url,
                    Attributes={name: value},
                    text=f"Invalid value for the parameter {name}.",
                )
        for name, text in [
            ("FifoQueue", "Unknown Attribute FifoQueue."),
            ("ContentBasedDeduplication", "Unknown Attribute ContentBasedDeduplication."),
            ("DeduplicationScope", "only when FifoQueue is set to true"),
            ("QueueArn", "Unknown Attribute QueueArn."),
            ("Colour", "Unknown Attribute Colour."),
        ]:
            with self.subTest(name=name):
                self.refused(
                    "InvalidAttributeName",
                    self.sqs.set_queue_attributes,
                    QueueUrl=url,
                    Attributes={name: "true"},
                    text=text,
                )
        self.refused(
            "InvalidAttributeName",
            self.sqs.get_queue_attributes,
            QueueUrl=url,
            AttributeNames=["Colour"],
            text="Unknown Attribute Colour.",
        )

    def test_the_type_of_a_fifo_queue_is_fixed(self):
        url = self.queue("q.fifo")
        self.sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoQueue": "true"})
        self.refused(
            "InvalidAttributeValue",
            self.sqs.set_queue_attributes,
            QueueUrl=url,
            Attributes={"FifoQueue": "false"},
            text="Modifying queue type is not supported.",
        )
