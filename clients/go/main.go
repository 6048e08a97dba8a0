// The AWS SDK for Go v2 against a running server: `go run . http://127.0.0.1:9324`.
//
// Ends with 0, or with 1 and what was not as it should be.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"sort"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go-sdk ENDPOINT")
		os.Exit(2)
	}
	suite := suite{
		sqs: sqs.New(sqs.Options{
			BaseEndpoint: aws.String(os.Args[1]),
			Region:       "us-east-1",
			Credentials:  credentials.NewStaticCredentialsProvider("any", "any", ""),
		}),
		prefix: fmt.Sprintf("go-%d-", time.Now().UnixNano()),
	}
	suite.queues()
	suite.attributes()
	suite.longPoll()
	suite.batches()
	suite.visibility()
	suite.fifo()
	suite.fifoDuplicates()
	suite.deadLetters()
	suite.deletion()
	fmt.Println("go-sdk: all went well")
}

type suite struct {
	sqs *sqs.Client
	// In front of the name of every queue, so that two runs do not meet.
	prefix string
}

var ctx = context.Background()

func (s suite) queues() {
	name := s.prefix + "queues"
	url := s.queue("queues", attributes{"VisibilityTimeout": "45"})
	found, err := s.sqs.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	check(err)
	equal(*found.QueueUrl, url, "GetQueueUrl")
	listed, err := s.sqs.ListQueues(ctx, &sqs.ListQueuesInput{QueueNamePrefix: &name})
	check(err)
	equal(listed.QueueUrls, []string{url}, "ListQueues")
	equal(s.attribute(url, "VisibilityTimeout"), "45", "the attribute given on creation")

	_, err = s.sqs.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
		QueueUrl:   &url,
		Attributes: attributes{"VisibilityTimeout": "60"},
	})
	check(err)
	equal(s.attribute(url, "VisibilityTimeout"), "60", "the attribute that was set")

	tags := map[string]string{"team": "billing"}
	_, err = s.sqs.TagQueue(ctx, &sqs.TagQueueInput{QueueUrl: &url, Tags: tags})
	check(err)
	tagged, err := s.sqs.ListQueueTags(ctx, &sqs.ListQueueTagsInput{QueueUrl: &url})
	check(err)
	equal(tagged.Tags, tags, "ListQueueTags")

	s.remove(url)
	_, err = s.sqs.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	var missing *types.QueueDoesNotExist
	equal(errors.As(err, &missing), true, "a missing queue is the SDK's own error")
}

// The SDK compares the MD5s of what is sent and received by itself.
func (s suite) attributes() {
	url := s.queue("attributes", nil)
	text := func(kind, value string) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: &kind, StringValue: &value}
	}
	binary := func(kind string, value ...byte) types.MessageAttributeValue {
		return types.MessageAttributeValue{DataType: &kind, BinaryValue: value}
	}
	given := map[string]types.MessageAttributeValue{
		"text":        text("String", "grün & <b>"),
		"number":      text("Number", "-12.50"),
		"bytes":       binary("Binary", 0, 255, 128),
		"text.kind":   text("String.uuid", "1-2-3"),
		"number.kind": text("Number.int", "7"),
		"bytes.kind":  binary("Binary.png", 0x89, 0x50),
	}
	body, trace := "héllo \U0001F980\n", "Root=1-5759e988-bd862e3fe1be46a994272793"
	sent, err := s.sqs.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl:          &url,
		MessageBody:       &body,
		MessageAttributes: given,
		MessageSystemAttributes: map[string]types.MessageSystemAttributeValue{
			"AWSTraceHeader": {DataType: aws.String("String"), StringValue: &trace},
		},
	})
	check(err)
	message := s.receiveOne(url)
	equal(*message.MessageId, *sent.MessageId, "MessageId")
	equal(*message.Body, body, "the body as it was sent")
	equal(*message.MD5OfBody, *sent.MD5OfMessageBody, "MD5 of the body")
	equal(*message.MD5OfMessageAttributes, *sent.MD5OfMessageAttributes, "MD5 of the attributes")
	equal(message.MessageAttributes, given, "attributes of all types")
	equal(message.Attributes["AWSTraceHeader"], trace, "AWSTraceHeader")
	equal(message.Attributes["ApproximateReceiveCount"], "1", "the count of receives")
	s.remove(url)
}

// A receive waits for what is not there yet, and for no longer than it was told to.
func (s suite) longPoll() {
	url := s.queue("long-poll", nil)
	equal(len(s.receive(url, 10, 1)), 0, "messages of an empty queue")
	sent := make(chan error)
	go func() {
		_, err := s.sqs.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl:     &url,
			MessageBody:  aws.String("late"),
			DelaySeconds: 1,
		})
		sent <- err
	}()
	received := s.receive(url, 10, 20)
	check(<-sent)
	equal(bodies(received), []string{"late"}, "the message that ends the wait")
	s.remove(url)
}

func (s suite) batches() {
	url := s.queue("batches", attributes{"MaximumMessageSize": "1024"})
	var entries []types.SendMessageBatchRequestEntry
	for id := 0; id < 9; id++ {
		entries = append(entries, types.SendMessageBatchRequestEntry{
			Id:          aws.String(fmt.Sprintf("e%d", id)),
			MessageBody: aws.String(fmt.Sprintf("message %d", id)),
		})
	}
	entries = append(entries, types.SendMessageBatchRequestEntry{
		Id:          aws.String("large"),
		MessageBody: aws.String(strings.Repeat("x", 1025)),
	})
	sent, err := s.sqs.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries})
	check(err)
	equal(len(sent.Successful), 9, "the entries that fit")
	equal(len(sent.Failed), 1, "the entry that is too large fails alone")
	equal(*sent.Failed[0].Id+": "+*sent.Failed[0].Code, "large: InvalidParameterValue", "why")
	equal(sent.Failed[0].SenderFault, true, "whose fault it is")

	// No visibility timeout of 0: SDKs before September 2024 leave a zero out of a batch.
	var changes []types.ChangeMessageVisibilityBatchRequestEntry
	deletions := []types.DeleteMessageBatchRequestEntry{
		{Id: aws.String("forged"), ReceiptHandle: aws.String("forged")},
	}
	for id, message := range s.receive(url, 10, 5) {
		name := aws.String(fmt.Sprintf("e%d", id))
		changes = append(changes, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: name, ReceiptHandle: message.ReceiptHandle, VisibilityTimeout: 600,
		})
		deletions = append(deletions, types.DeleteMessageBatchRequestEntry{
			Id: name, ReceiptHandle: message.ReceiptHandle,
		})
	}
	changed, err := s.sqs.ChangeMessageVisibilityBatch(ctx,
		&sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: changes})
	check(err)
	equal(len(changed.Successful), 9, "extended messages")
	deleted, err := s.sqs.DeleteMessageBatch(ctx,
		&sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: deletions})
	check(err)
	equal(len(deleted.Successful), 9, "deleted messages")
	equal(*deleted.Failed[0].Code, "ReceiptHandleIsInvalid", "but the forged one")
	s.remove(url)
}

func (s suite) visibility() {
	url := s.queue("visibility", attributes{"VisibilityTimeout": "1"})
	s.send(url, "again")
	first := s.receiveOne(url)
	second := s.receiveOne(url)
	equal(*second.MessageId, *first.MessageId, "it comes back when its time is over")
	equal(second.Attributes["ApproximateReceiveCount"], "2", "the count of receives")

	check(s.change(url, second, 600))
	equal(len(s.receive(url, 10, 2)), 0, "extended, it stays away")
	check(s.change(url, second, 0))
	third := s.receiveOne(url)
	s.delete(url, third)
	var refused smithy.APIError
	equal(errors.As(s.change(url, third, 0), &refused), true, "a deleted message cannot be changed")
	equal(refused.ErrorCode(), "InvalidParameterValue", "why")
	s.remove(url)
}

// A group keeps its order and is held by one receiver; other groups go on.
func (s suite) fifo() {
	url := s.queue("groups.fifo", attributes{"FifoQueue": "true"})
	var numbers []string
	for _, body := range []string{"a1", "a2", "b1"} {
		numbers = append(numbers, *s.sendToGroup(url, body[:1], body, &body).SequenceNumber)
	}
	equal(sort.StringsAreSorted(numbers), true, "SequenceNumber rises")

	first := s.receive(url, 1, 5)
	equal(bodies(first), []string{"a1"}, "the oldest message")
	others := s.receive(url, 10, 5)
	equal(bodies(others), []string{"b1"}, "a group in flight is passed over, others are not")
	equal(others[0].Attributes["MessageGroupId"], "b", "MessageGroupId")
	s.delete(url, first[0])
	equal(bodies(s.receive(url, 10, 5)), []string{"a2"}, "the next of the group")
	s.remove(url)
}

func (s suite) fifoDuplicates() {
	url := s.queue("duplicates.fifo", attributes{"FifoQueue": "true", "ContentBasedDeduplication": "true"})
	unique := "pay-1"
	first := s.sendToGroup(url, "g", "pay", &unique)
	again := s.sendToGroup(url, "g", "pay, again", &unique)
	equal(*again.MessageId, *first.MessageId, "a duplicate is answered with the original's id")
	equal(*again.SequenceNumber, *first.SequenceNumber, "and with its SequenceNumber")
	s.sendToGroup(url, "g", "equal", nil)
	s.sendToGroup(url, "g", "equal", nil)
	equal(bodies(s.receive(url, 10, 5)), []string{"pay", "equal"}, "each once")
	s.remove(url)
}

func (s suite) deadLetters() {
	dead := s.queue("dead", nil)
	policy := fmt.Sprintf(`{"deadLetterTargetArn": %q, "maxReceiveCount": 2}`, s.attribute(dead, "QueueArn"))
	url := s.queue("source", attributes{"RedrivePolicy": policy})
	sources, err := s.sqs.ListDeadLetterSourceQueues(ctx, &sqs.ListDeadLetterSourceQueuesInput{QueueUrl: &dead})
	check(err)
	equal(sources.QueueUrls, []string{url}, "ListDeadLetterSourceQueues")

	s.send(url, "poison")
	for attempt := 0; attempt < 2; attempt++ {
		check(s.change(url, s.receiveOne(url), 0))
	}
	equal(len(s.receive(url, 10, 0)), 0, "received twice, it is moved")
	message := s.receiveOne(dead)
	equal(*message.Body, "poison", "the dead letter")
	equal(message.Attributes["DeadLetterQueueSourceArn"], s.attribute(url, "QueueArn"),
		"DeadLetterQueueSourceArn")

	check(s.change(dead, message, 0))
	deadArn := s.attribute(dead, "QueueArn")
	_, err = s.sqs.StartMessageMoveTask(ctx, &sqs.StartMessageMoveTaskInput{SourceArn: &deadArn})
	check(err)
	equal(*s.receiveOne(url).Body, "poison", "moved back to where it came from")
	moves, err := s.sqs.ListMessageMoveTasks(ctx, &sqs.ListMessageMoveTasksInput{SourceArn: &deadArn})
	check(err)
	equal(*moves.Results[0].SourceArn, deadArn, "ListMessageMoveTasks")
	s.remove(url)
	s.remove(dead)
}

func (s suite) deletion() {
	url := s.queue("deletion", nil)
	s.send(url, "one")
	message := s.receiveOne(url)
	s.delete(url, message)
	s.delete(url, message) // Again is no error.
	s.send(url, "two")
	_, err := s.sqs.PurgeQueue(ctx, &sqs.PurgeQueueInput{QueueUrl: &url})
	check(err)
	equal(s.attribute(url, "ApproximateNumberOfMessages"), "0", "messages after a purge")

	s.remove(url)
	_, err = s.sqs.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: aws.String("x")})
	var missing *types.QueueDoesNotExist
	equal(errors.As(err, &missing), true, "a deleted queue takes nothing")
}

// --- what the above is written with ---

type attributes = map[string]string

func (s suite) queue(name string, given attributes) string {
	created, err := s.sqs.CreateQueue(ctx, &sqs.CreateQueueInput{
		QueueName:  aws.String(s.prefix + name),
		Attributes: given,
	})
	check(err)
	return *created.QueueUrl
}

func (s suite) remove(url string) {
	_, err := s.sqs.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: &url})
	check(err)
}

func (s suite) attribute(url string, name types.QueueAttributeName) string {
	answer, err := s.sqs.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl:       &url,
		AttributeNames: []types.QueueAttributeName{name},
	})
	check(err)
	return answer.Attributes[string(name)]
}

func (s suite) send(url, body string) {
	_, err := s.sqs.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body})
	check(err)
}

func (s suite) sendToGroup(url, group, body string, unique *string) *sqs.SendMessageOutput {
	sent, err := s.sqs.SendMessage(ctx, &sqs.SendMessageInput{
		QueueUrl:               &url,
		MessageBody:            &body,
		MessageGroupId:         &group,
		MessageDeduplicationId: unique,
	})
	check(err)
	return sent
}

func (s suite) receive(url string, most, wait int32) []types.Message {
	answer, err := s.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl:              &url,
		MaxNumberOfMessages:   most,
		WaitTimeSeconds:       wait,
		MessageAttributeNames: []string{"All"},
		AttributeNames:        []types.QueueAttributeName{"All"},
	})
	check(err)
	return answer.Messages
}

func (s suite) receiveOne(url string) types.Message {
	messages := s.receive(url, 1, 5)
	equal(len(messages), 1, "messages within 5 s")
	return messages[0]
}

func (s suite) change(url string, message types.Message, seconds int32) error {
	_, err := s.sqs.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl:          &url,
		ReceiptHandle:     message.ReceiptHandle,
		VisibilityTimeout: seconds,
	})
	return err
}

func (s suite) delete(url string, message types.Message) {
	_, err := s.sqs.DeleteMessage(ctx, &sqs.DeleteMessageInput{
		QueueUrl:      &url,
		ReceiptHandle: message.ReceiptHandle,
	})
	check(err)
}

func bodies(messages []types.Message) []string {
	var bodies []string
	for _, message := range messages {
		bodies = append(bodies, *message.Body)
	}
	return bodies
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func equal(found, expected any, what string) {
	if !reflect.DeepEqual(found, expected) {
		fail(fmt.Sprintf("%s: expected %v, found %v", what, expected, found))
	}
}

// Called by check and equal, so the line that is of interest is two calls away.
func fail(what string) {
	_, _, line, _ := runtime.Caller(2)
	fmt.Fprintf(os.Stderr, "main.go:%d: %s\n", line, what)
	os.Exit(1)
}
