"""One producer process: sends the events of its keys in order, again and again until answered."""

import hashlib
import json
import time

import history
import sqs

PAUSE_SECONDS = 0.05  # between attempts while the server is away


def group(key):
    """The MessageGroupId of a key. Some keys are longer than the 128 characters SQS allows."""
    return hashlib.sha256(key.encode()).hexdigest()


def owner(key, producers):
    """Which producer a key belongs to: exactly one, or its order would be anybody's guess."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % producers


def run(name, folder, endpoint, queue_url, lines, progress, stop):
    """Sends `lines` (JSON text, all of this producer's keys, in order).

    A call with an unknown outcome is repeated with the same unique ids before anything else is
    sent, so an event never overtakes an earlier one of its key.
    """
    client = sqs.client(endpoint)
    numbers = {}
    with history.Recorder(folder, name) as recorder:
        for start in range(0, len(lines), sqs.BATCH):
            batch = []
            for line in lines[start : start + sqs.BATCH]:
                event = json.loads(line)
                numbers[event["key"]] = numbers.get(event["key"], 0) + 1
                batch.append((event["id"], event["key"], numbers[event["key"]], line))
            while not stop.is_set():
                if _send(client, queue_url, name, recorder, batch):
                    with progress.get_lock():
                        progress.value += len(batch)
                    break
                time.sleep(PAUSE_SECONDS)


def _send(client, queue_url, name, recorder, batch):
    """One call; whether it was answered."""
    entries = [
        {
            "Id": str(place),
            "MessageBody": line,
            "MessageGroupId": group(key),
            "MessageDeduplicationId": identity,
        }
        for place, (identity, key, _, line) in enumerate(batch)
    ]
    call = history.now()
    try:
        answer = sqs.call(client.send_message_batch, QueueUrl=queue_url, Entries=entries)
    except sqs.UnknownOutcome:
        answer = {}
    returned = history.now()
    accepted = {int(entry["Id"]): entry for entry in answer.get("Successful", [])}
    for place, (identity, key, number, line) in enumerate(batch):
        entry = accepted.get(place)
        recorder.add(
            "send",
            producer=name,
            id=identity,
            key=key,
            number=number,
            crc=history.crc(line),
            call=call,
            **{"return": returned},
            outcome="ok" if entry else "unknown",
            message=entry and entry["MessageId"],
            sequence=entry and entry["SequenceNumber"],
        )
    recorder.flush()
    for failed in answer.get("Failed", []):
        # Sent again, it could come behind later events of its key that were accepted.
        if accepted or failed["SenderFault"]:
            raise RuntimeError(f"{name}: the server refused an event: {failed}")
    return len(accepted) == len(batch)
