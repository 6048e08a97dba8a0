#!/usr/bin/env python3
"""Runs what README.md's quick start tells a newcomer to type, word for word.

    readme.py http://127.0.0.1:PORT

Needs a running server, and `lockgate` on the PATH. Only the server's address is replaced. Commands
of cargo, and the server itself, are left to the caller. Each block must succeed and print what the
text says.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ADDRESS = "http://127.0.0.1:9324"
# The blocks, and the words that each prints.
EXPECTED = [("sh", ["post", "delete"]), ("sh", ["created", "created"]), ("python", ["post"])]
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
    if languages != [language for language, _ in EXPECTED]:
        return fail(f"README's quick start has blocks {languages}, expected is {EXPECTED}")
    interpreters = {"sh": ["sh", "-eu"], "python": [sys.executable, "-"]}
    for (language, text), (_, expected) in zip(blocks, EXPECTED):
        # Files that a block writes are not the clone's.
        # `receive --ack` takes a terminal or a file for its output, and no pipe.
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as stdout:
            result = subprocess.run(
                interpreters[language],
                input=text.replace(ADDRESS, endpoint),
                env={**os.environ, "LOCKGATE_ENDPOINT": endpoint},
                cwd=folder,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            stdout.seek(0)
            output = stdout.read()
        printed = re.findall(r"\b(?:post|delete|created)\b", output)
        if result.returncode != 0 or printed != expected:
            said = output + result.stderr
            return fail(f"{text}\nended with {result.returncode} and printed:\n{said}")
    print(f"{len(blocks)} blocks of README.md do what they say")
    return 0


def fail(why):
    print(why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
