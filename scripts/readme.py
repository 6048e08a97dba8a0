#!/usr/bin/env python3
"""Runs what README.md's quick start tells a newcomer to type, word for word.

    readme.py http://127.0.0.1:PORT

Needs a running server, and `lockgate` on the PATH. Only the server's address is replaced. Commands
of cargo, and the server itself, are left to the caller. Each block must succeed and print what the
text says, and all of them again when they are typed a second time.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ADDRESS = "http://127.0.0.1:9324"
# The blocks, and the words that each prints: the first time, the second time.
BOTH = ["post", "delete"]
EXPECTED = [
    ("sh", [], []),
    ("sh", BOTH + BOTH, BOTH + BOTH),
    ("sh", ["created", "created"], ["unchanged", "unchanged"]),
    ("sh", [], []),
    ("python", ["post"], ["post"]),
    ("python", [], []),
]
README = pathlib.Path(__file__).resolve().parent.parent / "README.md"


def main():
    if len(sys.argv) != 2:
        print("usage: readme.py http://127.0.0.1:PORT", file=sys.stderr)
        return 2
    endpoint = sys.argv[1]
    section = README.read_text(encoding="utf-8").split("\n## Quick start\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    blocks = [(language, text) for language, text in blocks if not text.startswith("cargo ")]
    languages = [language for language, _ in blocks]
    if languages != [language for language, *_ in EXPECTED]:
        return fail(f"README's quick start has blocks {languages}, expected is {EXPECTED}")
    for time in (0, 1):
        for (language, text), (_, *expected) in zip(blocks, EXPECTED):
            code, printed, said = run(language, text.replace(ADDRESS, endpoint), endpoint)
            if code != 0 or printed != expected[time]:
                return fail(f"time {time + 1}: {text}\nended with {code} and printed:\n{said}")
    print(f"{len(blocks)} blocks of README.md do what they say, twice")
    return 0


def run(language, text, endpoint):
    """The exit code of a block, the words it printed that count, and everything it said."""
    interpreter = {"sh": ["sh", "-eu"], "python": [sys.executable, "-"]}[language]
    # Files that a block writes are not the clone's.
    # `receive --ack` takes a terminal or a file for its output, and no pipe.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as stdout:
        result = subprocess.run(
            interpreter,
            input=text,
            env={**os.environ, "LOCKGATE_ENDPOINT": endpoint},
            cwd=folder,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        stdout.seek(0)
        output = stdout.read()
    printed = re.findall(r"\b(?:post|delete|created|unchanged)\b", output)
    return result.returncode, printed, output + result.stderr


def fail(why):
    print(why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
