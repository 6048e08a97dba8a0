"""Histories: what each producer and consumer saw, one JSON object a line.

A process writes only its own file, in the order in which things happened to it. All times are
seconds of CLOCK_MONOTONIC, which every process of one machine shares.

    {"do": "send", "producer", "id", "key", "number", "crc", "call", "return",
     "outcome": "ok" | "unknown", "message", "sequence"}
    {"do": "deliver", "consumer", "id", "key", "crc", "receive", "place", "call", "return", "lease",
     "attempt"}
    {"do": "ack", "consumer", "id", "receive", "call", "return",
     "outcome": "ok" | "unknown" | "stale"}
    {"do": "server", "what": "started" | "killed", "time"}

README.md says what each field means.
"""

import json
import pathlib
import time
import zlib


class Recorder:
    """Appends to one history file. `flush` before anything that rests on the record."""

    def __init__(self, folder, name):
        self._file = open(pathlib.Path(folder) / f"{name}.jsonl", "a", encoding="utf-8")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def add(self, do, **fields):
        self._file.write(json.dumps({"do": do, **fields}, separators=(",", ":")) + "\n")

    def flush(self):
        self._file.flush()


def read(folder):
    """All records of all history files of a folder; each file's own order is kept."""
    for path in sorted(pathlib.Path(folder).glob("*.jsonl")):
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def now():
    """Seconds of the clock that all histories use."""
    return time.monotonic()


def crc(body):
    """A checksum of a message body, to notice one that was altered on its way."""
    return zlib.crc32(body.encode())
