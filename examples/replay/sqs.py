"""The boto3 client of this example, and what its failures mean for a caller that must not guess."""

import boto3
import botocore.config
import botocore.exceptions
import botocore.parsers

QUEUE = "replay.fifo"
BATCH = 10  # SQS allows no more in one call

# Settling with one of these says that the lease has ended: somebody else may hold the message.
STALE_CODES = {"InvalidParameterValue", "ReceiptHandleIsInvalid", "MessageNotInflight"}


# No connection, a connection that broke, an answer that was cut off.
NO_CLEAR_ANSWER = (
    botocore.exceptions.ConnectionError,
    botocore.exceptions.HTTPClientError,
    botocore.exceptions.IncompleteReadError,
    botocore.parsers.ResponseParserError,
)


class UnknownOutcome(Exception):
    """The call may or may not have happened: ask again until there is an answer."""


def client(endpoint):
    """A client without retries of its own: this example's histories record every attempt."""
    return boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="replay",
        aws_secret_access_key="replay",
        config=botocore.config.Config(
            connect_timeout=5,
            read_timeout=60,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=2,
        ),
    )


def call(operation, **arguments):
    """Calls once. Refusals are raised as they are, everything without a clear answer as unknown."""
    try:
        return operation(**arguments)
    except botocore.exceptions.ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        if status >= 500 or status == 429:
            raise UnknownOutcome(str(error)) from error
        raise
    except NO_CLEAR_ANSWER as error:
        raise UnknownOutcome(str(error)) from error
