#!/usr/bin/env python3
"""Runs the boto3 suite against a running server. See README.md beside this file."""

import argparse
import json
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

try:
    import boto3
    import botocore
    from botocore.exceptions import ClientError, EndpointConnectionError
except ImportError:
    sys.exit("boto3 is missing: pip install -r clients/python/requirements.txt")

from sqs_suite import support


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", required=True, help="the server, as http://127.0.0.1:9324")
    parser.add_argument("--region", default="us-east-1", help="the server's region")
    parser.add_argument(
        "--signed", action="store_true", help="the server checks signatures, with the keys of access-keys.toml"
    )
    parser.add_argument("--ca", help="for https: trust the authorities in this file (PEM)")
    parser.add_argument("-v", "--verbose", action="store_true", help="name every test")
    parser.add_argument("--failfast", action="store_true", help="stop at the first failure")
    parser.add_argument("names", nargs="*", help="only tests whose name has one of these in it")
    options = parser.parse_args()

    support.configure(options.endpoint, options.region, options.signed, options.ca)
    try:
        support.client().list_queues(MaxResults=1)
    except (EndpointConnectionError, ClientError) as error:
        print(f"{options.endpoint} does not serve: {error}", file=sys.stderr)
        return 2

    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{name}*" for name in options.names] or None
    suite = loader.discover(str(Path(__file__).parent / "sqs_suite"), top_level_dir=str(Path(__file__).parent))
    runner = unittest.TextTestRunner(
        verbosity=2 if options.verbose else 1, failfast=options.failfast, buffer=True
    )
    began = time.monotonic()
    result = runner.run(suite)
    bad = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    summary = {
        "suite": "boto3",
        "boto3": boto3.__version__,
        "botocore": botocore.__version__,
        "protocol": "query" if support.speaks_query() else "json",
        "signed": options.signed,
        "tests": result.testsRun,
        "failed": bad,
        "skipped": len(result.skipped),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(summary))
    # A filter that matches nothing must not look like success.
    return 0 if bad == 0 and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
