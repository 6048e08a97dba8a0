#!/usr/bin/env python3
"""Celery, over kombu's SQS transport, against a running server: `python run.py http://127.0.0.1:9324`.

Workers are real ones, in processes of their own. Ends with 0, or with what was not as it should be and the log
of the worker.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import boto3
from celery.exceptions import TimeoutError

import tasks

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: run.py ENDPOINT")
    # So that the workers are ended with this program.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="lockgate-celery-") as folder:
        suite = Suite(sys.argv[1], Path(folder))
        try:
            suite.queues_made_by_celery()
            suite.queues_made_before()
            suite.fifo()
            suite.killed_worker()
        finally:
            suite.clean_up()
    print("celery: all went well")


class Suite:
    def __init__(self, endpoint, folder):
        self.folder = folder
        self.broker = endpoint.replace("http://", "sqs://any:any@")
        self.prefix = f"celery-{os.getpid()}-{time.time_ns()}-"
        self.sqs = boto3.client(
            "sqs",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )

    def queues_made_by_celery(self):
        settings = self.settings(
            {"queue_name_prefix": self.prefix, "fetch_message_attributes": ["All"]}, "celery"
        )
        app = tasks.make_app(**settings)
        sent = [app.send_task("tasks.add", (number, number)) for number in range(20)]
        with Worker(settings, "celery", self.folder):
            check([result(task) for task in sent], [2 * number for number in range(20)], "20 tasks")
            check(result(app.send_task("tasks.retried", ("ok",))), "ok after 2 retries", "retries")

            began = time.time()
            eta = app.send_task("tasks.now", countdown=2)
            delayed = app.send_task("tasks.now", DelaySeconds=2)
            check(result(eta) >= began + 2, True, "a countdown, waited for by the worker")
            check(result(delayed) >= began + 2, True, "a delay, waited for by the queue")
            self.check_empty(self.prefix + "celery")

    def queues_made_before(self):
        """A failed task comes back when its back-off says so, until its queue has enough of it."""
        dead = self.create("dead")
        arn = self.attribute(dead, "QueueArn")
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
        # Without the back-off, nothing would come back for ten minutes.
        jobs = self.create("jobs", VisibilityTimeout="600", RedrivePolicy=policy)
        settings = self.settings(
            {
                "predefined_queues": {
                    "jobs": {
                        "url": jobs,
                        "backoff_policy": {1: 1, 2: 1, 3: 1},
                        "backoff_tasks": ["tasks.fails_until"],
                    }
                }
            },
            "jobs",
        )
        app = tasks.make_app(**settings)
        with Worker(settings, "jobs", self.folder):
            flaky = app.send_task("tasks.fails_until", (3, str(self.folder / "flaky")))
            # Its result is a failure for as long as it fails, and an AsyncResult keeps the first it saw.
            succeeds = lambda: app.AsyncResult(flaky.id).successful()
            self.until(succeeds, "the success of a task that fails twice")
            check(app.AsyncResult(flaky.id).result, 3, "attempts")
            app.send_task("tasks.fails_until", (1000, str(self.folder / "poison")))
            message = self.receive(dead)
            check(message["Attributes"]["DeadLetterQueueSourceArn"], self.attribute(jobs, "QueueArn"), "source")
            check((self.folder / "poison").stat().st_size, 3, "attempts before the dead-letter queue")
            self.check_empty(self.prefix + "jobs")

    def fifo(self):
        orders = self.create("orders.fifo", FifoQueue="true")
        settings = self.settings({"predefined_queues": {"orders.fifo": {"url": orders}}}, "orders.fifo")
        app = tasks.make_app(**settings)
        file = self.folder / "lines"
        sent = [
            app.send_task("tasks.append", (f"{key}{number}", str(file)), MessageGroupId=key)
            for number in range(5)
            for key in "ab"
        ]
        with Worker(settings, "orders.fifo", self.folder, concurrency=1):
            for task in sent:
                result(task)
            self.check_empty(self.prefix + "orders.fifo")
        lines = file.read_text().split()
        for key in "ab":
            in_order = [f"{key}{number}" for number in range(5)]
            check([line for line in lines if line[0] == key], in_order, f"the order of group {key}")

    def killed_worker(self):
        """The task of a worker that is killed is done by the next one."""
        short = self.create("short", VisibilityTimeout="3")
        settings = self.settings({"predefined_queues": {"short": {"url": short}}}, "short")
        app = tasks.make_app(**settings)
        started = self.folder / "started"
        task = app.send_task("tasks.sleeps_the_first_time", (str(started),))
        with Worker(settings, "short", self.folder) as worker:
            self.until(started.exists, "the start of the task")
            worker.kill()
        with Worker(settings, "short", self.folder):
            check(result(task), "done by another worker", "the task of the killed worker")
            self.check_empty(self.prefix + "short")

    # --- what the above is written with ---

    def settings(self, transport_options, default_queue):
        return {
            "broker": self.broker,
            "results": str(self.folder),
            "default_queue": default_queue,
            "transport_options": {"region": "us-east-1", "wait_time_seconds": 2, **transport_options},
        }

    def create(self, name, **attributes):
        return self.sqs.create_queue(QueueName=self.prefix + name, Attributes=attributes)["QueueUrl"]

    def attribute(self, url, name):
        return self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name]

    def receive(self, url):
        for _ in range(PATIENCE_S // 20):
            answer = self.sqs.receive_message(
                QueueUrl=url, WaitTimeSeconds=20, MessageSystemAttributeNames=["All"]
            )
            for message in answer.get("Messages", []):
                return message
        fail(f"no message in {url} within {PATIENCE_S} s")

    def check_empty(self, name):
        """Nothing is left of a task that is done. The worker deletes its message soon after the result is there; if
        it is told to end before that, it may not."""
        url = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

        def is_empty():
            attributes = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
            return [attributes[name] for name in names] == ["0", "0"]

        self.until(is_empty, f"no message left in {name}")

    def until(self, condition, what):
        """Returns once a condition holds, of a file or a result that another process writes."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                fail(f"{what}: not within {PATIENCE_S} s")
            time.sleep(0.05)

    def clean_up(self):
        for url in self.sqs.list_queues(QueueNamePrefix=self.prefix).get("QueueUrls", []):
            self.sqs.delete_queue(QueueUrl=url)


class Worker:
    """`celery worker` in processes of its own, ended with the block. Shows its log if the block fails."""

    def __init__(self, settings, queues, folder, concurrency=2):
        self.settings = settings
        self.log = folder / "worker.log"
        self.command = [
            *[sys.executable, "-m", "celery", "--app", "tasks", "worker", "--queues", queues],
            *["--concurrency", str(concurrency), "--loglevel", "INFO"],
            *["--without-gossip", "--without-mingle", "--without-heartbeat"],
        ]

    def __enter__(self):
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=HERE,
                env={**os.environ, "CLIENT_APP": repr(self.settings)},
                stdout=log,
                stderr=log,
                # A group of its own, so that all its processes can be killed.
                start_new_session=True,
            )
        return self

    def __exit__(self, kind, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            pass
        self.kill()
        if kind is not None:
            print(self.log.read_text()[-5000:], file=sys.stderr)

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def result(task):
    try:
        return task.get(timeout=PATIENCE_S)
    except TimeoutError:
        fail(f"the task {task.id} has no result after {PATIENCE_S} s")


def check(found, expected, what):
    if found != expected:
        fail(f"{what}: expected {expected}, found {found}")


def fail(what):
    raise SystemExit(f"celery: {what}")


if __name__ == "__main__":
    main()
