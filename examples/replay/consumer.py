"""One consumer process: receives, records what it got, acknowledges until answered."""

import json
import time

import history
import sqs

PAUSE_SECONDS = 0.05  # between attempts while the server is away
WAIT_SECONDS = 1  # long poll; short, so that a consumer notices soon when it is to stop


def run(name, folder, endpoint, queue_url, lease, progress, stop):
    """Receives until `stop` is set and everything it holds is settled."""
    client = sqs.client(endpoint)
    receives = 0
    with history.Recorder(folder, name) as recorder:
        while not stop.is_set():
            receives += 1
            call = history.now()
            try:
                answer = sqs.call(
                    client.receive_message,
                    QueueUrl=queue_url,
                    MaxNumberOfMessages=sqs.BATCH,
                    WaitTimeSeconds=WAIT_SECONDS,
                    MessageSystemAttributeNames=["ApproximateReceiveCount"],
                )
            except sqs.UnknownOutcome:
                time.sleep(PAUSE_SECONDS)
                continue
            returned = history.now()
            held = []
            for place, message in enumerate(answer.get("Messages", [])):
                event = json.loads(message["Body"])
                recorder.add(
                    "deliver",
                    consumer=name,
                    id=event["id"],
                    key=event["key"],
                    crc=history.crc(message["Body"]),
                    receive=receives,
                    place=place,
                    call=call,
                    **{"return": returned},
                    lease=lease,
                    attempt=int(message["Attributes"]["ApproximateReceiveCount"]),
                )
                held.append((event["id"], message["ReceiptHandle"]))
            recorder.flush()
            # The work on an event would be done here.
            while held:
                held, settled = _acknowledge(client, queue_url, name, recorder, receives, held)
                with progress.get_lock():
                    progress.value += settled
                if held:
                    time.sleep(PAUSE_SECONDS)


def _acknowledge(client, queue_url, name, recorder, receive, held):
    """One call; what is still to be asked again, and how many are settled for good.

    Receipts stay valid over a restart of the server, so the same ones are used until answered.
    """
    entries = [
        {"Id": str(place), "ReceiptHandle": receipt} for place, (_, receipt) in enumerate(held)
    ]
    call = history.now()
    try:
        answer = sqs.call(client.delete_message_batch, QueueUrl=queue_url, Entries=entries)
    except sqs.UnknownOutcome:
        answer = {}
    returned = history.now()
    outcomes = {int(entry["Id"]): "ok" for entry in answer.get("Successful", [])}
    for entry in answer.get("Failed", []):
        if entry["Code"] in sqs.STALE_CODES:
            outcomes[int(entry["Id"])] = "stale"
        elif entry["SenderFault"]:
            raise RuntimeError(f"{name}: the server refused to settle: {entry}")
    for place, (identity, _) in enumerate(held):
        recorder.add(
            "ack",
            consumer=name,
            id=identity,
            receive=receive,
            call=call,
            **{"return": returned},
            outcome=outcomes.get(place, "unknown"),
        )
    recorder.flush()
    unsettled = [message for place, message in enumerate(held) if place not in outcomes]
    return unsettled, sum(outcome == "ok" for outcome in outcomes.values())
