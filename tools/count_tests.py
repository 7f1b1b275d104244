#!/usr/bin/env python3
"""Prints how many tests passed and failed, from the XML reports under a bazel-testlogs folder.

Usage: count_tests.py BAZEL_TESTLOGS NAME=STATUS...
Each NAME=STATUS adds one test that ran outside Bazel, with its exit status. The last line is
"N passed, N failed"; the exit status is 1 when one failed or none ran.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count(report):
    """(passed, failed) of one report: test cases, skipped ones not counted."""
    passed = failed = 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.get("status") == "notrun" or case.find("skipped") is not None:
            continue
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        else:
            passed += 1
    return passed, failed


def main():
    passed = failed = 0
    for report in sorted(pathlib.Path(sys.argv[1]).rglob("test.xml")):
        report_passed, report_failed = count(report)
        passed += report_passed
        failed += report_failed
    for outside in sys.argv[2:]:
        name, status = outside.rsplit("=", 1)
        if status == "0":
            passed += 1
        else:
            failed += 1
            print(f"failed: {name}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
