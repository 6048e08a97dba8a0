"""The tasks that the worker runs, and the Celery application that sends them. Used by run.py.

The worker is told by the environment variable CLIENT_APP, a Python literal, how the application is made.
"""

import ast
import os
import time
from pathlib import Path

from celery import Celery, shared_task


def make_app(broker, results, transport_options, default_queue):
    app = Celery("clients", broker=broker, backend=f"file://{results}")
    app.conf.update(
        broker_transport_options=transport_options,
        task_default_queue=default_queue,
        # A task is deleted from the queue when it is done, and not when it begins. One that fails stays there.
        task_acks_late=True,
        task_acks_on_failure_or_timeout=False,
        worker_prefetch_multiplier=1,
        # Needs broadcasts, which SQS does not have.
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
    )
    return app


@shared_task
def add(left, right):
    return left + right


@shared_task
def now():
    return time.time()


@shared_task(bind=True, max_retries=3)
def retried(self, text):
    """Asks Celery for another try, which is a new message, until there were three."""
    if self.request.retries < 2:
        raise self.retry(countdown=1)
    return f"{text} after {self.request.retries} retries"


@shared_task
def fails_until(attempt, counter):
    """Fails, which leaves its message in the queue, until it was tried so many times."""
    with open(counter, "a") as file:
        file.write("x")
    tried = Path(counter).stat().st_size
    if tried < attempt:
        raise RuntimeError(f"attempt {tried} of {attempt}")
    return tried


@shared_task
def sleeps_the_first_time(started):
    """Does not end when it is run first: its worker will be killed."""
    if not os.path.exists(started):
        Path(started).touch()
        time.sleep(3600)
    return "done by another worker"


@shared_task
def append(line, file):
    with open(file, "a") as lines:
        lines.write(line + "\n")


if "CLIENT_APP" in os.environ:
    app = make_app(**ast.literal_eval(os.environ["CLIENT_APP"]))
