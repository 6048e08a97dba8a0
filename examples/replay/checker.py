#!/usr/bin/env python3
"""Judges the histories of a run: `checker.py FOLDER` prints one JSON line.

It knows nothing but the histories. Exit code 0: everything that must hold held; 1: it did not.
README.md defines each figure.
"""

import collections
import json
import sys

import history

# What must be 0, and what may be 1 at most; everything else is only told.
MUST_BE_ZERO = (
    "lost",
    "order_violations",
    "acks_undone",
    "unfinished",
    "altered",
    "invented",
    "forked_ids",
)


def check(records):
    """The report on some histories, as a dict in the order in which it is printed."""
    sends, deliveries, acks, kills = [], [], [], 0
    for record in records:
        if record["do"] == "send":
            sends.append(record)
        elif record["do"] == "deliver":
            deliveries.append(record)
        elif record["do"] == "ack":
            acks.append(record)
        elif record["do"] == "server":
            kills += record["what"] == "killed"

    # Two receives that return in the order A, B were given their leases in that order wherever
    # order counts: B's lease on a key can only follow A's acknowledgement.
    deliveries.sort(key=lambda delivery: (delivery["return"], delivery["place"]))
    first_deliveries = {}
    for delivery in deliveries:
        first_deliveries.setdefault(delivery["id"], delivery)
    sent = {send["id"] for send in sends if send["outcome"] == "ok"}
    acked = {ack["id"] for ack in acks if ack["outcome"] == "ok"}
    violations = _order_violations(sends, first_deliveries)
    seconds = _seconds(sends, acks)

    report = {
        "sent": len(sent),
        "delivered": len(first_deliveries),
        "lost": len(sent - first_deliveries.keys()),
        "duplicates": len(deliveries) - len(first_deliveries),
        "order_violations": sum(violations.values()),
        "max_holders_per_key": _max_holders(deliveries, acks),
        "messages_per_s": round(len(acked) / seconds) if seconds else 0,
        "acks_undone": _acks_undone(deliveries, acks),
        "unfinished": len((sent | first_deliveries.keys()) - acked),
        "altered": _altered(sends, deliveries),
        "invented": len(first_deliveries.keys() - {send["id"] for send in sends}),
        "forked_ids": _forked_ids(sends),
        "unknown_sends": sum(send["outcome"] == "unknown" for send in sends),
        "unknown_acks": sum(ack["outcome"] == "unknown" for ack in acks),
        "stale_acks": sum(ack["outcome"] == "stale" for ack in acks),
        "keys": len({send["key"] for send in sends}),
        "kills": kills,
        "seconds": round(seconds, 3),
    }
    if violations:
        report["keys_out_of_order"] = dict(collections.Counter(violations).most_common(10))
    report["ok"] = (
        report["sent"] > 0
        and report["max_holders_per_key"] <= 1
        and all(report[name] == 0 for name in MUST_BE_ZERO)
    )
    return report


def _order_violations(sends, first_deliveries):
    """Per key: how many first deliveries came before that of an earlier event of the key."""
    numbers = {send["id"]: send["number"] for send in sends}
    orders = collections.defaultdict(list)
    for delivery in first_deliveries.values():
        if delivery["id"] in numbers:
            orders[delivery["key"]].append(numbers[delivery["id"]])
    violations = {}
    for key, order in orders.items():
        lowest_after = float("inf")
        for number in reversed(order):
            if lowest_after < number:
                violations[key] = violations.get(key, 0) + 1
            lowest_after = min(lowest_after, number)
    return violations


def _max_holders(deliveries, acks):
    """How many consumers at most held valid leases of one key at one time.

    A lease is known to be valid from the return of its receive until its consumer first asks to
    acknowledge it, and no longer than its length after the *call* of the receive.
    """
    settle_calls = {}
    for ack in acks:
        lease = (ack["consumer"], ack["receive"], ack["id"])
        settle_calls[lease] = min(ack["call"], settle_calls.get(lease, ack["call"]))
    edges = collections.defaultdict(list)
    for delivery in deliveries:
        start, end = delivery["return"], delivery["call"] + delivery["lease"]
        lease = (delivery["consumer"], delivery["receive"], delivery["id"])
        end = min(end, settle_calls.get(lease, end))
        if start < end:
            # An end sorts before a start at the same instant: they do not overlap.
            edges[delivery["key"]].append((start, 1, delivery["consumer"]))
            edges[delivery["key"]].append((end, -1, delivery["consumer"]))
    most = 0
    for of_key in edges.values():
        held = collections.Counter()
        for _, change, consumer in sorted(of_key, key=lambda edge: edge[:2]):
            held[consumer] += change
            most = max(most, sum(leases > 0 for leases in held.values()))
    return most


def _acks_undone(deliveries, acks):
    """Deliveries asked for after an acknowledgement of the same event had been answered."""
    answered = {}
    for ack in acks:
        if ack["outcome"] == "ok":
            answered[ack["id"]] = min(ack["return"], answered.get(ack["id"], ack["return"]))
    never = float("inf")
    return sum(delivery["call"] > answered.get(delivery["id"], never) for delivery in deliveries)


def _altered(sends, deliveries):
    """Deliveries whose body is not the one that was sent."""
    bodies = {send["id"]: send["crc"] for send in sends}
    known = [delivery for delivery in deliveries if delivery["id"] in bodies]
    return sum(bodies[delivery["id"]] != delivery["crc"] for delivery in known)


def _forked_ids(sends):
    """Events whose sends were answered with more than one message id or sequence number."""
    answers = collections.defaultdict(set)
    for send in sends:
        if send["outcome"] == "ok":
            answers[send["id"]].add((send["message"], send["sequence"]))
    return sum(len(of_id) > 1 for of_id in answers.values())


def _seconds(sends, acks):
    """From the first send's call to the last acknowledgement's answer."""
    if not sends or not acks:
        return 0.0
    return max(ack["return"] for ack in acks) - min(send["call"] for send in sends)


def main():
    if len(sys.argv) != 2:
        print("usage: checker.py FOLDER", file=sys.stderr)
        return 2
    report = check(history.read(sys.argv[1]))
    print(json.dumps(report))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
