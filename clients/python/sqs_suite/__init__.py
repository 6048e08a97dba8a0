"""Tests of the SQS API as boto3 sees it. Run by ../run.py."""
