//! What is refused, one row per case: action, input, status, legacy code, and how the text begins.
//! `$q` is the URL of a standard queue, `$f` of a FIFO queue.

use serde_json::json;

use super::{
    Answer, Shop,
    protocols::{self, Speaks},
};

struct Case(&'static str, &'static str, u16, &'static str, &'static str);

const NO_QUEUE: &str = "AWS.SimpleQueueService.NonExistentQueue";
const MISSING: &str = "MissingParameter";
const INVALID: &str = "InvalidParameterValue";

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case("CreateQueue", r#"{}"#, 400, MISSING, "The request must contain the parameter QueueName."),
    Case("CreateQueue", r#"{"QueueName":""}"#, 400, INVALID, "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"),
    Case("CreateQueue", r#"{"QueueName":"a/b"}"#, 400, INVALID, "Can only include"),
    Case("CreateQueue", r#"{"QueueName":"x.fifo"}"#, 400, INVALID, "Can only include"),
    Case("CreateQueue", r#"{"QueueName":"x","Attributes":{"FifoQueue":"true"}}"#, 400, INVALID, "The name of a FIFO queue can only include"),
    Case("CreateQueue", r#"{"QueueName":"x","Attributes":{"FifoQueue":"false"}}"#, 400, "InvalidAttributeName", "Unknown Attribute FifoQueue."),
    Case("CreateQueue", r#"{"QueueName":"x","Attributes":{"Foo":"1"}}"#, 400, "InvalidAttributeName", "Unknown Attribute Foo."),
    Case("CreateQueue", r#"{"QueueName":"x","Attributes":{"DelaySeconds":"901"}}"#, 400, "InvalidAttributeValue", "Invalid value for the parameter DelaySeconds."),
    Case("CreateQueue", r#"{"QueueName":"x","tags":{"":"v"}}"#, 400, INVALID, "Tag keys must be between 1 and 128 characters in length."),
    Case("CreateQueue", r#"{"QueueName":"q","Attributes":{"VisibilityTimeout":"1"}}"#, 400, "QueueAlreadyExists", "A queue already exists with the same name and a different value for attribute VisibilityTimeout"),

    Case("GetQueueUrl", r#"{}"#, 400, MISSING, "The request must contain the parameter QueueName."),
    Case("GetQueueUrl", r#"{"QueueName":"nope"}"#, 400, NO_QUEUE, "The specified queue does not exist."),
    Case("GetQueueUrl", r#"{"QueueName":"a/b c"}"#, 400, NO_QUEUE, "The specified queue does not exist."),
    Case("GetQueueUrl", r#"{"QueueName":"q","QueueOwnerAWSAccountId":"111111111111"}"#, 400, NO_QUEUE, "The specified queue does not exist."),

    Case("ListQueues", r#"{"MaxResults":0}"#, 400, INVALID, "Value 0 for parameter MaxResults is invalid. Reason: MaxResults must be an integer between 1 and 1000."),
    Case("ListQueues", r#"{"MaxResults":1001}"#, 400, INVALID, "Value 1001 for parameter MaxResults is invalid."),
    Case("ListQueues", r#"{"NextToken":"?"}"#, 400, INVALID, "Invalid or expired next token."),

    Case("DeleteQueue", r#"{}"#, 400, MISSING, "The request must contain the parameter QueueUrl."),
    Case("DeleteQueue", r#"{"QueueUrl":"$qx"}"#, 400, NO_QUEUE, "The specified queue does not exist."),
    Case("PurgeQueue", r#"{"QueueUrl":"http://nowhere"}"#, 400, NO_QUEUE, "The specified queue does not exist."),
    Case("ListQueueTags", r#"{"QueueUrl":""}"#, 400, NO_QUEUE, "The specified queue does not exist."),
    Case("ListDeadLetterSourceQueues", r#"{"QueueUrl":"$q","MaxResults":-1}"#, 400, INVALID, "Value -1 for parameter MaxResults is invalid."),

    Case("GetQueueAttributes", r#"{"QueueUrl":"$q","AttributeNames":["QueueArn","Foo"]}"#, 400, "InvalidAttributeName", "Unknown Attribute Foo."),
    Case("SetQueueAttributes", r#"{"QueueUrl":"$q"}"#, 400, MISSING, "The request must contain the parameter Attributes."),
    Case("SetQueueAttributes", r#"{"QueueUrl":"$q","Attributes":{"FifoQueue":"true"}}"#, 400, "InvalidAttributeName", "Unknown Attribute FifoQueue."),
    Case("SetQueueAttributes", r#"{"QueueUrl":"$f","Attributes":{"FifoQueue":"false"}}"#, 400, "InvalidAttributeValue", "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."),
    Case("SetQueueAttributes", r#"{"QueueUrl":"$f","Attributes":{"FifoThroughputLimit":"perMessageGroupId"}}"#, 400, "InvalidAttributeValue", "Invalid value for the parameter FifoThroughputLimit."),
    Case("SetQueueAttributes", r#"{"QueueUrl":"$q","Attributes":{"RedrivePolicy":"x"}}"#, 400, INVALID, "Value x for parameter RedrivePolicy is invalid. Reason: Redrive policy is not a valid JSON map."),

    Case("TagQueue", r#"{"QueueUrl":"$q","Tags":{}}"#, 400, MISSING, "The request must contain the parameter Tags."),
    Case("UntagQueue", r#"{"QueueUrl":"$q"}"#, 400, MISSING, "The request must contain the parameter TagKeys."),
    Case("UntagQueue", r#"{"QueueUrl":"$q","TagKeys":[]}"#, 400, INVALID, "Tag keys must be between 1 and 128 characters in length."),

    Case("SendMessage", r#"{"MessageBody":"x"}"#, 400, MISSING, "The request must contain the parameter QueueUrl."),
    Case("SendMessage", r#"{"QueueUrl":"$q"}"#, 400, MISSING, "The request must contain the parameter MessageBody."),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":""}"#, 400, MISSING, "The request must contain the parameter MessageBody."),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":null}"#, 400, MISSING, "The request must contain the parameter MessageBody."),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"\u0000"}"#, 400, "InvalidMessageContents", "Invalid binary character '#x0' was found in the message body"),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"\uffff"}"#, 400, "InvalidMessageContents", "Invalid binary character '#xFFFF'"),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","DelaySeconds":901}"#, 400, INVALID, "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900."),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","DelaySeconds":-1}"#, 400, INVALID, "Value -1 for parameter DelaySeconds is invalid."),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","MessageDeduplicationId":"1"}"#, 400, INVALID, "Value 1 for parameter MessageDeduplicationId is invalid. Reason: The request includes a parameter that is not valid for this queue type."),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","MessageGroupId":""}"#, 400, INVALID, "Value  for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length."),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","MessageGroupId":"a b"}"#, 400, INVALID, "Value a b for parameter MessageGroupId is invalid."),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","MessageAttributes":{"a":{"DataType":"String","StringValue":""}}}"#, 400, INVALID, "Message (user) attribute 'a' must contain a non-empty value of type 'String'."),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","MessageSystemAttributes":{"SenderId":{"DataType":"String","StringValue":"x"}}}"#, 400, INVALID, "Value SenderId for parameter MessageSystemAttributes is invalid."),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","MessageSystemAttributes":{"AWSTraceHeader":{"DataType":"Number","StringValue":"1"}}}"#, 400, INVALID, "Message (system) attribute 'AWSTraceHeader' must have the type 'String'."),
    Case("SendMessage", r#"{"QueueUrl":"$f","MessageBody":"x","MessageDeduplicationId":"1"}"#, 400, MISSING, "The request must contain the parameter MessageGroupId."),
    Case("SendMessage", r#"{"QueueUrl":"$f","MessageBody":"x","MessageGroupId":"1"}"#, 400, INVALID, "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"),
    Case("SendMessage", r#"{"QueueUrl":"$f","MessageBody":"x","MessageGroupId":"1","MessageDeduplicationId":""}"#, 400, INVALID, "Value  for parameter MessageDeduplicationId is invalid."),

    Case("SendMessageBatch", r#"{"QueueUrl":"$q"}"#, 400, "AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one SendMessageBatchRequestEntry in the request."),
    Case("SendMessageBatch", r#"{"QueueUrl":"$q","Entries":[]}"#, 400, "AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one"),
    Case("SendMessageBatch", r#"{"QueueUrl":"$q","Entries":[{"MessageBody":"x"}]}"#, 400, MISSING, "The request must contain the parameter Id."),
    Case("SendMessageBatch", r#"{"QueueUrl":"$q","Entries":[{"Id":"","MessageBody":"x"}]}"#, 400, "AWS.SimpleQueueService.InvalidBatchEntryId", "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long."),
    Case("SendMessageBatch", r#"{"QueueUrl":"$q","Entries":[{"Id":"1","MessageBody":"x"},{"Id":"2","MessageBody":"x"},{"Id":"2","MessageBody":"x"},{"Id":"1","MessageBody":"x"}]}"#, 400, "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "Id 2 repeated."),
    Case("SendMessageBatch", r#"{"QueueUrl":"$q","Entries":[{},{},{},{},{},{},{},{},{},{},{}]}"#, 400, "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10. You have sent 11."),
    Case("SendMessageBatch", r#"{"QueueUrl":"$f","Entries":[{"Id":"1","MessageBody":"x","MessageGroupId":"g"}]}"#, 400, INVALID, "The queue should either have ContentBasedDeduplication enabled"),
    Case("SendMessageBatch", r#"{"QueueUrl":"$f","Entries":[{"Id":"1","MessageBody":"x","MessageDeduplicationId":"d"}]}"#, 400, INVALID, "The request must contain the parameter MessageGroupId."),

    Case("ReceiveMessage", r#"{"QueueUrl":"$q","MaxNumberOfMessages":0}"#, 400, INVALID, "Value 0 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."),
    Case("ReceiveMessage", r#"{"QueueUrl":"$q","MaxNumberOfMessages":11}"#, 400, INVALID, "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."),
    Case("ReceiveMessage", r#"{"QueueUrl":"$q","WaitTimeSeconds":21}"#, 400, INVALID, "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."),
    Case("ReceiveMessage", r#"{"QueueUrl":"$q","WaitTimeSeconds":-1}"#, 400, INVALID, "Value -1 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."),
    Case("ReceiveMessage", r#"{"QueueUrl":"$q","VisibilityTimeout":43201}"#, 400, INVALID, "Value 43201 for parameter VisibilityTimeout is invalid."),
    Case("ReceiveMessage", r#"{"QueueUrl":"$q","ReceiveRequestAttemptId":"a b"}"#, 400, INVALID, "Value a b for parameter ReceiveRequestAttemptId is invalid."),
    Case("ReceiveMessage", r#"{"QueueUrl":"$q","MessageSystemAttributeNames":["Foo"]}"#, 400, "InvalidAttributeName", "Unknown Attribute Foo."),

    Case("DeleteMessage", r#"{"QueueUrl":"$q"}"#, 400, MISSING, "The request must contain the parameter ReceiptHandle."),
    Case("DeleteMessage", r#"{"QueueUrl":"$q","ReceiptHandle":"garbage"}"#, 404, "ReceiptHandleIsInvalid", "The input receipt handle \"garbage\" is not a valid receipt handle."),
    Case("DeleteMessageBatch", r#"{"QueueUrl":"$q","Entries":[]}"#, 400, "AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one DeleteMessageBatchRequestEntry in the request."),
    Case("ChangeMessageVisibility", r#"{"QueueUrl":"$q","ReceiptHandle":"x"}"#, 400, MISSING, "The request must contain the parameter VisibilityTimeout."),
    Case("ChangeMessageVisibility", r#"{"QueueUrl":"$q","ReceiptHandle":"x","VisibilityTimeout":1}"#, 404, "ReceiptHandleIsInvalid", "The input receipt handle \"x\""),
    Case("ChangeMessageVisibility", r#"{"QueueUrl":"$q","ReceiptHandle":"x","VisibilityTimeout":43201}"#, 400, INVALID, "Value 43201 for parameter VisibilityTimeout is invalid."),
    Case("ChangeMessageVisibilityBatch", r#"{"QueueUrl":"$q"}"#, 400, "AWS.SimpleQueueService.EmptyBatchRequest", "There should be at least one ChangeMessageVisibilityBatchRequestEntry in the request."),

    Case("AddPermission", r#"{"Label":"l","Actions":["SendMessage"],"AWSAccountIds":["111111111111"]}"#, 400, MISSING, "The request must contain the parameter QueueUrl."),
    Case("AddPermission", r#"{"QueueUrl":"$q","Actions":["SendMessage"],"AWSAccountIds":["111111111111"]}"#, 400, MISSING, "The request must contain the parameter Label."),
    Case("AddPermission", r#"{"QueueUrl":"$q","Label":"a b","Actions":["SendMessage"],"AWSAccountIds":["111111111111"]}"#, 400, INVALID, "Value a b for parameter Label is invalid. Reason: Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"),
    Case("AddPermission", r#"{"QueueUrl":"$q","Label":"l","AWSAccountIds":["111111111111"]}"#, 400, MISSING, "The request must contain the parameter Actions."),
    Case("AddPermission", r#"{"QueueUrl":"$q","Label":"l","Actions":["SendMessage"]}"#, 400, INVALID, "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify."),
    Case("AddPermission", r#"{"QueueUrl":"$q","Label":"l","Actions":["SendMessage"],"AWSAccountIds":["111111111111","x"]}"#, 400, INVALID, "Value [111111111111, x] for parameter PrincipalId is invalid. Reason: Unable to verify."),
    Case("AddPermission", r#"{"QueueUrl":"$q","Label":"l","Actions":["Nonsense"],"AWSAccountIds":["111111111111"]}"#, 400, INVALID, "Value SQS:Nonsense for parameter ActionName is invalid. Reason: Please refer to the appropriate WSDL for a list of valid actions."),
    Case("AddPermission", r#"{"QueueUrl":"$q","Label":"l","Actions":["RemovePermission"],"AWSAccountIds":["111111111111"]}"#, 400, INVALID, "Value SQS:RemovePermission for parameter ActionName is invalid. Reason: Only the queue owner is allowed to invoke this action."),
    Case("AddPermission", r#"{"QueueUrl":"$q","Label":"l","Actions":["*","*","*","*","*","*","*","*"],"AWSAccountIds":["111111111111"]}"#, 403, "OverLimit", "8 Actions were found, maximum allowed is 7."),
    Case("RemovePermission", r#"{"QueueUrl":"$q"}"#, 400, MISSING, "The request must contain the parameter Label."),
    Case("RemovePermission", r#"{"QueueUrl":"$q","Label":"l"}"#, 400, INVALID, "Value l for parameter Label is invalid. Reason: can't find label."),
    Case("RemovePermission", r#"{"QueueUrl":"http://localhost/000000000000/none","Label":"l"}"#, 400, NO_QUEUE, "The specified queue does not exist."),
    Case("StartMessageMoveTask", r#"{}"#, 400, MISSING, "The request must contain the parameter SourceArn."),
    Case("StartMessageMoveTask", r#"{"SourceArn":"x"}"#, 404, "ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist."),
    Case("StartMessageMoveTask", r#"{"SourceArn":"arn:aws:sqs:us-east-1:000000000000:none"}"#, 404, "ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist."),
    Case("StartMessageMoveTask", r#"{"SourceArn":"arn:aws:sqs:us-east-1:000000000000:q"}"#, 400, INVALID, "Source queue must be configured as a Dead Letter Queue."),
    Case("StartMessageMoveTask", r#"{"SourceArn":"arn:aws:sqs:us-east-1:000000000000:q","MaxNumberOfMessagesPerSecond":0}"#, 400, INVALID, "Value 0 for parameter MaxNumberOfMessagesPerSecond is invalid."),
    Case("StartMessageMoveTask", r#"{"SourceArn":"arn:aws:sqs:us-east-1:000000000000:q","MaxNumberOfMessagesPerSecond":501}"#, 400, INVALID, "Value 501 for parameter MaxNumberOfMessagesPerSecond is invalid."),
    Case("CancelMessageMoveTask", r#"{}"#, 400, MISSING, "The request must contain the parameter TaskHandle."),
    Case("CancelMessageMoveTask", r#"{"TaskHandle":"foobared"}"#, 400, INVALID, "Value for parameter TaskHandle is invalid."),
    Case("ListMessageMoveTasks", r#"{}"#, 400, MISSING, "The request must contain the parameter SourceArn."),
    Case("ListMessageMoveTasks", r#"{"SourceArn":"arn:aws:sqs:us-east-1:111111111111:q"}"#, 404, "ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist."),
    Case("ListMessageMoveTasks", r#"{"SourceArn":"arn:aws:sqs:us-east-1:000000000000:q","MaxResults":11}"#, 400, INVALID, "Value 11 for parameter MaxResults is invalid."),
    Case("ListMessageMoveTasks", r#"{"SourceArn":"arn:aws:sqs:us-east-1:000000000000:q","MaxResults":0}"#, 400, INVALID, "Value 0 for parameter MaxResults is invalid."),
    Case("Nonsense", r#"{}"#, 400, "InvalidAction", "The action AmazonSQS.Nonsense is not valid for this endpoint."),
    Case("sendmessage", r#"{}"#, 400, "InvalidAction", "The action AmazonSQS.sendmessage is not valid"),

    Case("SendMessage", r#""#, 400, MISSING, "The request must contain the parameter QueueUrl."),
    Case("SendMessage", r#"{"#, 400, "SerializationException", "EOF while parsing"),
    Case("SendMessage", r#"[]"#, 400, "SerializationException", "invalid type: sequence, expected an object"),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":7}"#, 400, "SerializationException", "invalid type: integer `7`, expected a string"),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","DelaySeconds":"1"}"#, 400, "SerializationException", "invalid type: string \"1\""),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","DelaySeconds":1.5}"#, 400, "SerializationException", "invalid type: floating point"),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","DelaySeconds":99999999999999999999}"#, 400, "SerializationException", "invalid type: floating point"),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"\ud800"}"#, 400, "SerializationException", "unexpected end of hex escape"),
    Case("SendMessage", r#"{"QueueUrl":"$q","MessageBody":"x","MessageAttributes":{"a":["String","x"]}}"#, 400, "SerializationException", "invalid type: sequence, expected an object"),
];

#[tokio::test]
async fn every_refusal_has_its_code_status_and_text() {
    let shop = Shop::open();
    let standard = shop.queue("q", json!({})).await;
    let fifo = shop.queue("f.fifo", json!({})).await;
    for Case(action, input, status, code, text) in CASES {
        let input = input.replace("$q", &standard).replace("$f", &fifo);
        let target = format!("AmazonSQS.{action}");
        let answer = shop.raw(Some(&target), input.clone()).await;
        judge(action, &input, &answer, *status, code, text);
    }
    assert_eq!(shop.counts(&standard).await, [0, 0, 0]);
    assert_eq!(shop.counts(&fifo).await, [0, 0, 0]);
}

/// The same rows by forms, but for what no form can say: values of wrong types, empty lists.
#[tokio::test]
async fn every_refusal_is_the_same_in_the_query_protocol() {
    let shop = Shop::speaking(Speaks::Query);
    let standard = shop.queue("q", json!({})).await;
    let fifo = shop.queue("f.fifo", json!({})).await;
    let mut asked = 0;
    for Case(action, input, status, code, text) in CASES {
        let input = input.replace("$q", &standard).replace("$f", &fifo);
        let Ok(value) = serde_json::from_str(&input) else {
            continue;
        };
        if matches!(*code, "SerializationException" | "InvalidAction")
            || protocols::form(action, &value).is_none()
            || ["[]", "{}"].iter().any(|empty| input.contains(empty))
        {
            continue;
        }
        asked += 1;
        let answer = shop.ask(action, value).await;
        judge(action, &input, &answer, *status, code, text);
    }
    assert!(asked > CASES.len() / 2, "{asked} of {}", CASES.len());
    assert_eq!(shop.counts(&standard).await, [0, 0, 0]);
    assert_eq!(shop.counts(&fifo).await, [0, 0, 0]);
}

fn judge(action: &str, input: &str, answer: &Answer, status: u16, code: &str, text: &str) {
    assert_eq!(answer.status, status, "{action} {input}: {answer:?}");
    let (found_code, found_text) = answer.error();
    assert_eq!(found_code, code, "{action} {input}: {answer:?}");
    assert!(found_text.starts_with(text), "{action} {input}: {answer:?}");
}

#[tokio::test]
async fn the_body_of_an_error_names_its_shape() {
    let shop = Shop::open();
    shop.queue("q", json!({})).await;
    for (action, input, shape) in [
        (
            "DeleteQueue",
            "{\"QueueUrl\":\"x\"}",
            "com.amazonaws.sqs#QueueDoesNotExist",
        ),
        (
            "CreateQueue",
            "{\"QueueName\":\"q\",\"Attributes\":{\"DelaySeconds\":\"6\"}}",
            "com.amazonaws.sqs#QueueNameExists",
        ),
        (
            "DeleteQueue",
            "{}",
            "com.amazon.coral.service#MissingRequiredParameterException",
        ),
        (
            "DeleteQueue",
            "{",
            "com.amazon.coral.service#SerializationException",
        ),
        (
            "X",
            "{}",
            "com.amazon.coral.service#UnknownOperationException",
        ),
    ] {
        let target = format!("AmazonSQS.{action}");
        let answer = shop.raw(Some(&target), input).await;
        assert_eq!(answer.body["__type"], shape);
    }
    let answer = shop.raw(None, "{}").await;
    assert_eq!(
        (answer.status, answer.error().0.as_str()),
        (400, "InvalidAction")
    );
}
