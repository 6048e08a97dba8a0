"""The checker on hand-made histories: a good one passes, and each planted fault is caught.

Run: python3 -m unittest discover -s examples/replay
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import checker
import history


class Story:
    """Writes a history one step at a time; every step takes a second."""

    def __init__(self):
        self.records = []
        self.clock = 0.0
        self.numbers = {}
        self.receives = 0

    def _second(self):
        self.clock += 1
        return {"call": self.clock - 0.9, "return": self.clock - 0.1}

    def send(self, identity, key="k", outcome="ok", message=None):
        number = self.numbers.setdefault(identity, 1 + sum(i[0] == key[0] for i in self.numbers))
        self.records.append(
            {
                "do": "send",
                "producer": "producer-1",
                "id": identity,
                "key": key,
                "number": number,
                "crc": history.crc(identity),
                "outcome": outcome,
                "message": message or f"message {identity}",
                "sequence": "1",
                **self._second(),
            }
        )
        return self

    def deliver(self, identity, key="k", consumer="consumer-1", body=None, lease=30):
        self.receives += 1
        self.records.append(
            {
                "do": "deliver",
                "consumer": consumer,
                "id": identity,
                "key": key,
                "crc": history.crc(body or identity),
                "receive": self.receives,
                "place": 0,
                "lease": lease,
                "attempt": 1,
                **self._second(),
            }
        )
        return self.receives

    def ack(self, identity, receive, consumer="consumer-1", outcome="ok"):
        self.records.append(
            {
                "do": "ack",
                "consumer": consumer,
                "id": identity,
                "receive": receive,
                "outcome": outcome,
                **self._second(),
            }
        )
        return self

    def handle(self, identity, key="k", consumer="consumer-1"):
        return self.ack(identity, self.deliver(identity, key, consumer), consumer)

    def report(self):
        return checker.check(self.records)


def good():
    """Two keys, two consumers; `k1` is sent twice because the first answer got lost."""
    story = Story().send("k1", outcome="unknown").send("k1").send("k2").send("l1", "l")
    return story.handle("k1").handle("l1", "l", "consumer-2").handle("k2", "k", "consumer-2")


class CheckerTest(unittest.TestCase):
    def test_a_good_history_passes(self):
        report = good().report()
        self.assertTrue(report["ok"], report)
        self.assertEqual(report["sent"], 3)
        self.assertEqual(report["delivered"], 3)
        self.assertEqual(report["duplicates"], 0)
        self.assertEqual(report["max_holders_per_key"], 1)
        self.assertEqual(report["unknown_sends"], 1)

    def test_an_empty_history_does_not_pass(self):
        self.assertFalse(checker.check([])["ok"])

    def test_a_planted_reordering_is_caught(self):
        story = Story().send("k1").send("k2").send("k3")
        report = story.handle("k2").handle("k1").handle("k3").report()
        self.assertEqual(report["order_violations"], 1)
        self.assertEqual(report["keys_out_of_order"], {"k": 1})
        self.assertFalse(report["ok"])

    def test_every_event_that_overtook_is_counted(self):
        story = Story().send("k1").send("k2").send("k3")
        report = story.handle("k2").handle("k3").handle("k1").report()
        self.assertEqual(report["order_violations"], 2)

    def test_a_reordering_inside_one_batch_is_caught(self):
        story = Story().send("k1").send("k2")
        for place, identity in enumerate(["k2", "k1"]):
            story.deliver(identity)
            story.records[-1].update({"place": place, "call": 10.0, "return": 11.0})
        self.assertEqual(story.report()["order_violations"], 1)

    def test_other_keys_may_overtake(self):
        story = Story().send("k1").send("l1", "l")
        self.assertTrue(story.handle("l1", "l").handle("k1").report()["ok"])

    def test_a_redelivery_is_no_reordering(self):
        story = Story().send("k1").send("k2")
        late = story.deliver("k1", lease=2)
        story.ack("k1", late, outcome="unknown")
        story.clock += 10
        report = story.handle("k1", "k", "consumer-2").handle("k2").report()
        self.assertEqual(report["order_violations"], 0)
        self.assertEqual(report["duplicates"], 1)
        self.assertTrue(report["ok"], report)

    def test_a_planted_loss_is_caught(self):
        report = good().send("k3").report()
        self.assertEqual(report["lost"], 1)
        self.assertEqual(report["unfinished"], 1)
        self.assertFalse(report["ok"])

    def test_a_send_without_an_answer_is_not_lost(self):
        report = good().send("k3", outcome="unknown").report()
        self.assertEqual(report["lost"], 0)
        self.assertTrue(report["ok"], report)

    def test_a_planted_second_holder_is_caught(self):
        story = Story().send("k1").send("k2")
        first = story.deliver("k1")
        second = story.deliver("k2", consumer="consumer-2")
        report = story.ack("k1", first).ack("k2", second, "consumer-2").report()
        self.assertEqual(report["max_holders_per_key"], 2)
        self.assertFalse(report["ok"])

    def test_a_batch_of_one_consumer_is_one_holder(self):
        story = Story().send("k1").send("k2")
        first, second = story.deliver("k1"), story.deliver("k2")
        report = story.ack("k1", first).ack("k2", second).report()
        self.assertEqual(report["max_holders_per_key"], 1)
        self.assertTrue(report["ok"], report)

    def test_a_lease_that_has_ended_holds_nothing(self):
        story = Story().send("k1")
        story.deliver("k1", lease=2)
        story.clock += 10
        report = story.handle("k1", "k", "consumer-2").report()
        self.assertEqual(report["max_holders_per_key"], 1)
        self.assertEqual(report["duplicates"], 1)
        self.assertTrue(report["ok"], report)

    def test_planted_duplicates_are_counted(self):
        story = Story().send("k1")
        for _ in range(2):
            story.deliver("k1", lease=0)
        report = story.handle("k1").report()
        self.assertEqual(report["delivered"], 1)
        self.assertEqual(report["duplicates"], 2)

    def test_an_acknowledgement_that_was_undone_is_caught(self):
        report = good().handle("k1").report()
        self.assertEqual(report["acks_undone"], 1)
        self.assertFalse(report["ok"])

    def test_an_event_that_was_never_acknowledged_is_caught(self):
        story = good().send("k3")
        story.deliver("k3")
        report = story.report()
        self.assertEqual(report["lost"], 0)
        self.assertEqual(report["unfinished"], 1)
        self.assertFalse(report["ok"])

    def test_a_stale_acknowledgement_settles_nothing(self):
        story = good().send("k3")
        report = story.ack("k3", story.deliver("k3"), outcome="stale").report()
        self.assertEqual(report["unfinished"], 1)
        self.assertEqual(report["stale_acks"], 1)

    def test_an_altered_body_is_caught(self):
        story = good().send("k3")
        receive = story.deliver("k3", body="something else")
        report = story.ack("k3", receive).report()
        self.assertEqual(report["altered"], 1)
        self.assertFalse(report["ok"])

    def test_an_event_nobody_sent_is_caught(self):
        report = good().handle("k9").report()
        self.assertEqual(report["invented"], 1)
        self.assertFalse(report["ok"])

    def test_a_unique_id_that_was_forgotten_is_caught(self):
        report = good().send("k1", message="another").report()
        self.assertEqual(report["forked_ids"], 1)
        self.assertFalse(report["ok"])


class CommandTest(unittest.TestCase):
    """The command itself, over files: exit code and the one line."""

    def judge(self, story):
        with tempfile.TemporaryDirectory() as folder:
            with history.Recorder(folder, "producer-1") as recorder:
                for record in story.records:
                    recorder.add(**record)
            script = pathlib.Path(__file__).with_name("checker.py")
            return subprocess.run(
                [sys.executable, script, folder], capture_output=True, text=True, check=False
            )

    def test_a_good_history_exits_with_0(self):
        result = self.judge(good())
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(result.stdout.splitlines()), 1)

    def test_a_bad_history_exits_with_1(self):
        self.assertEqual(self.judge(good().send("k3")).returncode, 1)


if __name__ == "__main__":
    unittest.main()
