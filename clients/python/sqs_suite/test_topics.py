"""Topics: the SNS API, one topic and many queues."""

import json
import urllib.parse

from botocore.exceptions import ClientError

from . import support
from .support import SqsTest


class TopicTest(SqsTest):
    def setUp(self):
        super().setUp()
        self.sns = support.client(service="sns")

    def refused(self, code, call, *args, text=None, status=400, **kwargs):
        """Checks that a call is refused with this code, and with this text if one is given."""
        with self.assertRaises(ClientError) as caught:
            call(*args, **kwargs)
        answer = caught.exception.response
        error = answer["Error"]
        self.assertEqual((error["Code"], error["Type"]), (code, "Sender"), error)
        if text is not None:
            self.assertIn(text, error["Message"])
        self.assertEqual(answer["ResponseMetadata"]["HTTPStatusCode"], status, error)
        self.assertTrue(answer["ResponseMetadata"]["RequestId"])

    def topic(self, name="t", **attributes):
        """Makes a topic and returns its ARN. A name that ends in .fifo makes a FIFO topic."""
        if name.endswith(".fifo"):
            attributes["FifoTopic"] = "true"
        arn = self.sns.create_topic(Name=self.prefix + name, Attributes=attributes)["TopicArn"]
        self.addCleanup(self.sns.delete_topic, TopicArn=arn)
        return arn

    def arn(self, url):
        return self.attribute(url, "QueueArn")

    def subscribe(self, topic, url, **attributes):
        attributes = {
            name: json.dumps(value) if isinstance(value, dict) else value for name, value in attributes.items()
        }
        return self.sns.subscribe(
            TopicArn=topic, Protocol="sqs", Endpoint=self.arn(url), Attributes=attributes, ReturnSubscriptionArn=True
        )["SubscriptionArn"]

    def subscription(self, arn):
        return self.sns.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]

    def topic_attributes(self, arn):
        return self.sns.get_topic_attributes(TopicArn=arn)["Attributes"]


class Topics(TopicTest):
    def test_made_once(self):
        arn = self.topic(DisplayName="Orders")
        self.assertEqual(arn, f"arn:aws:sns:us-east-1:000000000000:{self.prefix}t")
        self.assertEqual(self.topic(), arn)
        self.assertEqual(self.topic(DisplayName="Orders"), arn)
        self.refused(
            "InvalidParameter",
            self.sns.create_topic,
            Name=self.prefix + "t",
            Attributes={"DisplayName": "Others"},
            text="Topic already exists with different attributes",
        )
        attributes = self.topic_attributes(arn)
        self.assertEqual(attributes["TopicArn"], arn)
        self.assertEqual(attributes["DisplayName"], "Orders")
        self.assertEqual(attributes["SubscriptionsConfirmed"], "0")
        self.assertEqual(json.loads(attributes["Policy"])["Statement"][0]["Resource"], arn)
        self.assertIn("http", json.loads(attributes["EffectiveDeliveryPolicy"]))
        self.refused("InvalidParameter", self.sns.create_topic, Name="a b", text="Topic Name")

    def test_attributes_and_tags(self):
        arn = self.topic()
        self.sns.set_topic_attributes(TopicArn=arn, AttributeName="DisplayName", AttributeValue="New <&>")
        self.assertEqual(self.topic_attributes(arn)["DisplayName"], "New <&>")
        self.refused(
            "InvalidParameter",
            self.sns.set_topic_attributes,
            TopicArn=arn,
            AttributeName="Nothing",
            AttributeValue="x",
            text="AttributeName",
        )
        self.sns.tag_resource(ResourceArn=arn, Tags=[{"Key": "team", "Value": "a"}, {"Key": "x", "Value": ""}])
        self.sns.untag_resource(ResourceArn=arn, TagKeys=["x", "none"])
        tags = self.sns.list_tags_for_resource(ResourceArn=arn)["Tags"]
        self.assertEqual(tags, [{"Key": "team", "Value": "a"}])
        self.refused("ResourceNotFound", self.sns.list_tags_for_resource, ResourceArn=arn + "x", status=404)
        self.sns.add_permission(TopicArn=arn, Label="p", AWSAccountId=["111111111111"], ActionName=["Publish"])
        statements = json.loads(self.topic_attributes(arn)["Policy"])["Statement"]
        self.assertEqual([found["Sid"] for found in statements], ["__default_statement_ID", "p"])
        self.sns.remove_permission(TopicArn=arn, Label="p")

    def test_listed_by_pages(self):
        arns = {self.topic(f"t{number}") for number in range(3)}
        url = self.queue()
        for arn in arns:
            self.subscribe(arn, url)
        pages = self.sns.get_paginator("list_topics").paginate()
        found = {topic["TopicArn"] for page in pages for topic in page["Topics"]}
        self.assertLessEqual(arns, found)
        pages = self.sns.get_paginator("list_subscriptions").paginate()
        found = [it["TopicArn"] for page in pages for it in page["Subscriptions"] if it["Endpoint"] == self.arn(url)]
        self.assertEqual(sorted(found), sorted(arns))

    def test_a_topic_that_is_not_there(self):
        arn = self.topic()
        self.sns.delete_topic(TopicArn=arn)
        self.sns.delete_topic(TopicArn=arn)
        for call, more in [
            (self.sns.publish, {"Message": "x"}),
            (self.sns.get_topic_attributes, {}),
            (self.sns.list_subscriptions_by_topic, {}),
        ]:
            with self.subTest(call=call.__name__):
                self.refused("NotFound", call, TopicArn=arn, status=404, text="Topic does not exist", **more)
        self.refused(
            "InvalidParameter",
            self.sns.publish,
            TopicArn="orders",
            Message="x",
            text="An ARN must have at least 6 elements, not 1",
        )

    def test_what_is_not_done_is_said(self):
        arn = self.topic()
        for protocol, endpoint in [("email", "a@example.com"), ("https", "https://example.com"), ("lambda", "arn")]:
            with self.subTest(protocol=protocol):
                self.refused(
                    "InvalidParameter",
                    self.sns.subscribe,
                    TopicArn=arn,
                    Protocol=protocol,
                    Endpoint=endpoint,
                    text="Lockgate delivers to queues only",
                )
        self.refused("InvalidParameter", self.sns.publish, PhoneNumber="+15550100", Message="x", text="not to phones")
        self.refused("InvalidAction", self.sns.list_platform_applications, text="apps on phones")


class Subscriptions(TopicTest):
    def test_every_queue_gets_the_message(self):
        topic = self.topic()
        urls = [self.queue(f"q{number}") for number in range(3)]
        arns = [self.subscribe(topic, url) for url in urls]
        self.assertEqual(len(set(arns)), 3)
        self.assertEqual(self.subscribe(topic, urls[0]), arns[0])
        listed = self.sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        self.assertEqual([it["SubscriptionArn"] for it in listed], arns)
        self.assertEqual({it["Protocol"] for it in listed}, {"sqs"})
        attributes = {
            "kind": {"DataType": "String", "StringValue": "new"},
            "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        }
        published = self.sns.publish(
            TopicArn=topic, Message='order "17" ä', Subject="News", MessageAttributes=attributes
        )
        for url in urls:
            [message] = self.receive(url)
            self.assertNotIn("MessageAttributes", message)
            notification = json.loads(message["Body"])
            self.assertEqual(notification["Type"], "Notification")
            self.assertEqual(notification["MessageId"], published["MessageId"])
            self.assertEqual(notification["TopicArn"], topic)
            self.assertEqual(notification["Subject"], "News")
            self.assertEqual(notification["Message"], 'order "17" ä')
            self.assertRegex(notification["Timestamp"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertEqual(notification["MessageAttributes"]["kind"], {"Type": "String", "Value": "new"})
            self.assertEqual(notification["MessageAttributes"]["blob"], {"Type": "Binary", "Value": "AP8="})
        self.sns.unsubscribe(SubscriptionArn=arns[0])
        self.sns.unsubscribe(SubscriptionArn=arns[0])
        again = self.subscribe(topic, urls[0])
        self.assertNotIn(again, arns)
        self.refused("NotFound", self.subscription, arns[0], status=404, text="Subscription does not exist")

    def test_raw_delivery(self):
        topic, url = self.topic(), self.queue()
        arn = self.subscribe(topic, url, RawMessageDelivery="true")
        self.assertEqual(self.subscription(arn)["RawMessageDelivery"], "true")
        attributes = {"kind": {"DataType": "String", "StringValue": "new"}}
        self.sns.publish(TopicArn=topic, Message="plain", MessageAttributes=attributes)
        [message] = self.receive(url)
        self.assertEqual(message["Body"], "plain")
        self.assertEqual(message["MessageAttributes"], attributes)
        self.assertEqual(message["MD5OfMessageAttributes"], support.attributes_md5(attributes))
        structured = json.dumps({"default": "for all", "sqs": "for queues", "email": 7})
        self.sns.publish(TopicArn=topic, Message=structured, MessageStructure="json")
        self.assertEqual(self.bodies(url), ["for queues"])
        self.refused(
            "InvalidParameter",
            self.sns.publish,
            TopicArn=topic,
            Message='{"sqs": "x"}',
            MessageStructure="json",
            text="No default entry in JSON message body",
        )
        self.sns.set_subscription_attributes(
            SubscriptionArn=arn, AttributeName="RawMessageDelivery", AttributeValue="false"
        )
        self.sns.publish(TopicArn=topic, Message="wrapped")
        self.assertEqual([json.loads(body)["Message"] for body in self.bodies(url)], ["wrapped"])

    def test_filters(self):
        topic, by_attribute, by_body = self.topic(), self.queue("a"), self.queue("b")
        policy = {"shop": ["eu", {"prefix": "us-"}]}
        first = self.subscribe(topic, by_attribute, RawMessageDelivery="true", FilterPolicy=policy)
        second = self.subscribe(
            topic,
            by_body,
            RawMessageDelivery="true",
            FilterPolicy={"order": {"price": [{"numeric": [">", 10]}]}},
            FilterPolicyScope="MessageBody",
        )
        found = self.subscription(first)
        self.assertEqual(json.loads(found["FilterPolicy"]), policy)
        self.assertEqual(found["FilterPolicyScope"], "MessageAttributes")
        self.assertEqual(self.subscription(second)["FilterPolicyScope"], "MessageBody")
        cheap, dear = '{"order": {"price": 5}}', '{"order": {"price": 50}}'
        for shop, message in [("us-west", cheap), ("cn", dear), ("cn", cheap)]:
            attributes = {"shop": {"DataType": "String", "StringValue": shop}}
            self.sns.publish(TopicArn=topic, Message=message, MessageAttributes=attributes)
        self.assertEqual(self.bodies(by_attribute), [cheap])
        self.assertEqual(self.bodies(by_body), [dear])
        self.refused(
            "InvalidParameter",
            self.sns.set_subscription_attributes,
            SubscriptionArn=first,
            AttributeName="FilterPolicy",
            AttributeValue="{",
            text="FilterPolicy",
        )
        self.sns.set_subscription_attributes(SubscriptionArn=first, AttributeName="FilterPolicy", AttributeValue="{}")
        self.assertNotIn("FilterPolicy", self.subscription(first))
        self.sns.publish(TopicArn=topic, Message="all")
        self.assertEqual(self.bodies(by_attribute), ["all"])

    def test_subscribed_otherwise(self):
        topic, url = self.topic(), self.queue()
        self.subscribe(topic, url, FilterPolicy={"a": ["x"]})
        self.subscribe(topic, url)
        with self.assertRaises(ClientError) as caught:
            self.subscribe(topic, url, FilterPolicy={"a": ["y"]})
        self.assertIn("Subscription already exists with different attributes", str(caught.exception))
        self.refused(
            "InvalidParameter",
            self.sns.subscribe,
            TopicArn=topic,
            Protocol="sqs",
            Endpoint="nothing",
            text="SQS endpoint ARN",
        )

    def test_a_deleted_queue_is_subscribed_no_more(self):
        topic, url = self.topic(), self.queue()
        self.subscribe(topic, url)
        self.sqs.delete_queue(QueueUrl=url)
        self.assertEqual(self.sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"], [])
        self.sns.publish(TopicArn=topic, Message="x")

    def test_a_redrive_policy(self):
        topic, url, dead = self.topic(), self.queue("q"), self.queue("dead")
        policy = {"deadLetterTargetArn": self.arn(dead)}
        arn = self.subscribe(topic, url, RawMessageDelivery="true", RedrivePolicy=policy)
        self.assertEqual(json.loads(self.subscription(arn)["RedrivePolicy"]), policy)
        self.sqs.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "1024"})
        self.sns.publish(TopicArn=topic, Message="x" * 2000)
        self.sns.publish(TopicArn=topic, Message="y")
        self.assertEqual(self.bodies(url), ["y"])
        self.assertEqual(self.bodies(dead), ["x" * 2000])
        self.refused(
            "InvalidParameter",
            self.sns.set_subscription_attributes,
            SubscriptionArn=arn,
            AttributeName="RedrivePolicy",
            AttributeValue='{"deadLetterTargetArn": "none"}',
            text="deadLetterTargetArn is an invalid arn",
        )
        self.sns.set_subscription_attributes(SubscriptionArn=arn, AttributeName="RedrivePolicy", AttributeValue="{}")
        self.assertNotIn("RedrivePolicy", self.subscription(arn))


class Batches(TopicTest):
    def test_ten_messages(self):
        topic, url = self.topic(), self.queue()
        self.subscribe(topic, url, RawMessageDelivery="true")
        entries = [
            {"Id": f"m{number}", "Message": f"body {number}", "MessageAttributes": {
                "n": {"DataType": "Number", "StringValue": str(number)},
            }}
            for number in range(10)
        ]
        done = self.sns.publish_batch(TopicArn=topic, PublishBatchRequestEntries=entries)
        self.assertEqual([it["Id"] for it in done["Successful"]], [it["Id"] for it in entries])
        self.assertEqual(len({it["MessageId"] for it in done["Successful"]}), 10)
        self.assertEqual(done["Failed"], [])
        self.assertEqual(sorted(self.bodies(url)), [it["Message"] for it in entries])

    def test_refused_as_a_whole(self):
        topic = self.topic()

        def refused(code, entries):
            self.refused(
                code, self.sns.publish_batch, TopicArn=topic, PublishBatchRequestEntries=entries
            )

        entry = {"Id": "a", "Message": "x"}
        refused("TooManyEntriesInBatchRequest", [{"Id": str(number), "Message": "x"} for number in range(11)])
        refused("BatchEntryIdsNotDistinct", [entry, entry])
        refused("InvalidBatchEntryId", [{"Id": "a b", "Message": "x"}])
        refused("BatchRequestTooLong", [{"Id": str(number), "Message": "x" * 100_000} for number in range(3)])
        self.refused("InvalidParameter", self.sns.publish, TopicArn=topic, Message="x" * 300_000, text="too long")
        self.refused("InvalidParameter", self.sns.publish, TopicArn=topic, Message="", text="Empty message")
        odd = {"n": {"DataType": "Number", "StringValue": "one"}}
        self.refused("ParameterValueInvalid", self.sns.publish, TopicArn=topic, Message="x", MessageAttributes=odd)


class Fifo(TopicTest):
    def test_order_and_deduplication(self):
        topic, url = self.topic("t.fifo", ContentBasedDeduplication="true"), self.queue("q.fifo")
        attributes = self.topic_attributes(topic)
        self.assertEqual((attributes["FifoTopic"], attributes["ContentBasedDeduplication"]), ("true", "true"))
        self.subscribe(topic, url, RawMessageDelivery="true")
        numbers = []
        for body in ["one", "two", "one", "three"]:
            published = self.sns.publish(TopicArn=topic, Message=body, MessageGroupId="g")
            numbers.append(published["SequenceNumber"])
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertEqual(len(numbers[0]), 20)
        messages = self.receive(url)
        self.assertEqual([message["Body"] for message in messages], ["one", "two", "three"])
        self.assertEqual({message["Attributes"]["MessageGroupId"] for message in messages}, {"g"})

    def test_a_standard_queue_may_be_there_too(self):
        topic, url = self.topic("t.fifo"), self.queue("q")
        self.subscribe(topic, url)
        self.refused(
            "InvalidParameter",
            self.sns.publish,
            TopicArn=topic,
            Message="x",
            text="The MessageGroupId parameter is required for FIFO topics",
        )
        self.refused(
            "InvalidParameter",
            self.sns.publish,
            TopicArn=topic,
            Message="x",
            MessageGroupId="g",
            text="ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
        )
        published = self.sns.publish(TopicArn=topic, Message="x", MessageGroupId="g", MessageDeduplicationId="1")
        self.sns.publish(TopicArn=topic, Message="again", MessageGroupId="g", MessageDeduplicationId="1")
        [message] = self.receive(url)
        notification = json.loads(message["Body"])
        self.assertEqual(notification["SequenceNumber"], published["SequenceNumber"])
        self.assertNotIn("Signature", notification)

    def test_a_fifo_queue_needs_a_fifo_topic(self):
        self.refused(
            "InvalidParameter",
            self.sns.subscribe,
            TopicArn=self.topic(),
            Protocol="sqs",
            Endpoint=self.arn(self.queue("q.fifo")),
            text="FIFO SQS Queues can not be subscribed to standard SNS topics",
        )


class AccessToTopics(TopicTest):
    def setUp(self):
        if not support.is_signed():
            self.skipTest("the server asks for no access keys")
        super().setUp()

    def test_a_key_that_may_only_read(self):
        topic, url = self.topic(), self.queue()
        reader = support.client(support.READER_KEY, service="sns")
        self.assertEqual(reader.get_topic_attributes(TopicArn=topic)["Attributes"]["TopicArn"], topic)
        for call, more in [
            (reader.publish, {"Message": "x"}),
            (reader.subscribe, {"Protocol": "sqs", "Endpoint": self.arn(url)}),
            (reader.delete_topic, {}),
        ]:
            with self.subTest(call=call.__name__):
                self.refused("AuthorizationError", call, TopicArn=topic, status=403, **more)

    def test_a_signature_for_the_other_service(self):
        form = {"Action": "ListTopics", "Version": "2010-03-31"}
        headers = {"content-type": "application/x-www-form-urlencoded"}
        status, _, body = support.post(urllib.parse.urlencode(form).encode(), headers)
        self.assertEqual(status, 403, body)
        self.assertIn(b"<Code>SignatureDoesNotMatch</Code>", body)
