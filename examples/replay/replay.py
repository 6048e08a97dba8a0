"""The main job on real input; `run --help` says how to call it, README.md what it proves."""

import argparse
import gzip
import json
import multiprocessing
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

import checker
import consumer
import history
import producer
import server
import sqs

HERE = pathlib.Path(__file__).resolve().parent
POLL_SECONDS = 0.02


def main():
    arguments = _arguments()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockgate-replay-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    worth_keeping = True
    try:
        (folder / "histories").mkdir()
        _replay(arguments, folder)
        report = checker.check(history.read(folder / "histories"))
        worth_keeping = arguments.keep or not report["ok"]
    except (KeyboardInterrupt, SystemExit) as stopped:
        worth_keeping = arguments.keep
        return 130 if isinstance(stopped, KeyboardInterrupt) else stopped.code
    finally:
        if worth_keeping:
            print(f"histories, server log and data: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if not arguments.json:
        _print_table(report)
    print(json.dumps(report))
    return 0 if report["ok"] else 1


def _arguments():
    parser = argparse.ArgumentParser(
        prog="run",
        description="Replays real events through a Lockgate server with several boto3 producers and "
        "consumers, kills the server on the way, and judges the histories. Standard output is one "
        "JSON object; the exit code is 0 if nothing was lost, reordered, or held twice.",
    )
    count, count_or_none = _at_least(1), _at_least(0)
    default = "(default: %(default)s)"

    def option(name, help, **settings):
        parser.add_argument(f"--{name}", help=help, **settings)

    option(
        "events",
        f"events, one JSON object a line, gzip or plain {default}",
        type=pathlib.Path,
        default=HERE / "events.jsonl.gz",
        metavar="FILE",
    )
    option("limit", "take only the first N events", type=count, metavar="N")
    option("producers", f"producer processes {default}", type=count, default=3, metavar="N")
    option("consumers", f"consumer processes {default}", type=count, default=3, metavar="N")
    option(
        "kills",
        f"how often the server is killed {default}",
        type=count_or_none,
        default=1,
        metavar="K",
    )
    option(
        "lease",
        "seconds a consumer may take; the events of an answer that a kill cut off come back after "
        f"so long {default}",
        type=count,
        default=10,
        metavar="S",
    )
    option(
        "deadline",
        f"give up after so many seconds {default}",
        type=count,
        default=600,
        metavar="S",
    )
    option("seed", "decides when kills come (default: random, and printed)", type=int, metavar="N")
    option(
        "bin",
        "the lockgate binary (default: the release build, built if needed)",
        type=pathlib.Path,
        default=HERE.parent.parent / "target/release/lockgate",
        metavar="FILE",
    )
    option("json", "print the final line and nothing else", action="store_true")
    option("keep", "keep the folder with histories, server log and data", action="store_true")
    return parser.parse_args()


def _at_least(minimum):
    def number(text):
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum}")
        return value

    return number


def _replay(arguments, folder):
    """One run; leaves its histories in `folder`."""
    lines = _events(arguments.events, arguments.limit)
    shares = [[] for _ in range(arguments.producers)]
    for line in lines:
        shares[producer.owner(json.loads(line)["key"], arguments.producers)].append(line)

    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed

    def say(text):
        if not arguments.json:
            print(text, file=sys.stderr, flush=True)

    say(
        f"{len(lines)} events, {arguments.producers} producers, {arguments.consumers} consumers, "
        f"{arguments.kills} kills, seed {seed}"
    )

    # Children start afresh: a forked boto3 client would share its sockets with the parent.
    processes = multiprocessing.get_context("spawn")
    sent, acked, stop = processes.Value("q"), processes.Value("q"), processes.Event()
    service = server.Server(arguments.bin, folder)
    producers, consumers = [], []
    with history.Recorder(folder / "histories", "server") as recorder:
        try:
            service.start()
            recorder.add("server", what="started", time=history.now())
            client = sqs.client(service.endpoint)
            attributes = {"FifoQueue": "true", "VisibilityTimeout": str(arguments.lease)}
            queue_url = client.create_queue(QueueName=sqs.QUEUE, Attributes=attributes)["QueueUrl"]
            common = (str(folder / "histories"), service.endpoint, queue_url)
            for number, share in enumerate(shares, 1):
                arguments_of = (f"producer-{number}", *common, share, sent, stop)
                producers.append(processes.Process(target=producer.run, args=arguments_of))
            for number in range(1, arguments.consumers + 1):
                arguments_of = (f"consumer-{number}", *common, arguments.lease, acked, stop)
                consumers.append(processes.Process(target=consumer.run, args=arguments_of))
            # Ctrl-C is for this process, which then stops the others: what is blocked here while they
            # start stays blocked there.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            for child in producers + consumers:
                child.start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

            kills = _kill_points(random.Random(seed), arguments.kills, len(lines))
            deadline = time.monotonic() + arguments.deadline
            drained = False
            while not drained and time.monotonic() < deadline:
                _raise_if_failed(producers + consumers)
                done = acked.value
                if kills and done >= kills[0]:
                    kills.pop(0)
                    service.kill()
                    recorder.add("server", what="killed", time=history.now())
                    service.start()
                    recorder.add("server", what="started", time=history.now())
                    recorder.flush()
                    say(f"killed and started again with {sent.value} sent and {done} acknowledged")
                    continue
                if not any(child.is_alive() for child in producers):
                    drained = _is_empty(client, queue_url)
                time.sleep(POLL_SECONDS)
            if not drained:
                say(f"deadline: {sent.value} sent, {acked.value} acknowledged\n{service.log()}")
            stop.set()
            for child in producers + consumers:
                child.join(timeout=60)
            _raise_if_failed(producers + consumers)
        finally:
            stop.set()
            for child in producers + consumers:
                if child.is_alive():
                    child.join(timeout=2)
                if child.is_alive():
                    child.kill()
            service.stop()


def _events(path, limit):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file if line.strip()]
    return lines[:limit]


def _kill_points(random_numbers, kills, events):
    """After how many acknowledgements to kill: one somewhere in each of `kills` equal stretches,
    none at the very end, where nothing would be under way any more."""
    stretch = events * 0.9 / max(kills, 1)
    return [int(stretch * (kill + random_numbers.uniform(0.2, 1))) for kill in range(kills)]


def _is_empty(client, queue_url):
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    answer = client.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)
    return all(answer["Attributes"][name] == "0" for name in names)


def _raise_if_failed(children):
    for child in children:
        if child.exitcode:
            raise RuntimeError(f"{child.name} ended with {child.exitcode}; its message is above")


def _print_table(report):
    for name, value in report.items():
        print(f"  {name:<22}{value}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
