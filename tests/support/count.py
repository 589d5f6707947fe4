#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run `meson test` and say how many cases passed, failed and were skipped.

Meson counts programs, people count cases. A program that writes BUILD/test-results/NAME.xml
(GoogleTest and pytest do) counts as the cases in it, any other program as one case. The sum cannot
hide a failure: results of an earlier run are removed first, and each of these counts as one failed
case:

- a program that failed although none of its cases did (it crashed, leaked, or ran out of time),
- a result file that cannot be read or that holds no case,
- a program that Meson knows and did not run, or two programs of one name.

A line of a program that begins with `note: `, and a property called `note` in a result file, is
printed again before the sum: the place for shares and counts that a reader should see.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_CASES = "200"


@dataclass
class Tally:
    """What has been counted so far."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # by reason
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the closing line."""
        skipped = sum(map(len, self.skipped.values()))
        return f"{self.passed} passed, {len(self.failed)} failed, {skipped} skipped"


def count_cases(tally: Tally, name: str, results: Path) -> int:
    """Add the cases of one result file; return how many of them failed."""
    failed_before = len(tally.failed)
    try:
        cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    except ElementTree.ParseError as error:
        tally.failed.append(f"{name}: {results.name} cannot be read ({error})")
        return 1
    if not cases:
        tally.failed.append(f"{name}: ran no case")
    for case in cases:
        title = f"{name}: {case.get('classname', '')}.{case.get('name', '')}"
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed.append(title)
        elif skip is not None:
            # GoogleTest puts the place on a line before the reason.
            reason = (skip.get("message") or "no reason given").strip().splitlines()[-1]
            tally.skipped[reason].append(title)
        elif case.get("status") == "notrun":
            tally.skipped["disabled"].append(title)
        else:
            tally.passed += 1
        properties = case.iterfind("properties/property[@name='note']")
        tally.notes.extend(f"{title}: {note.get('value')}" for note in properties)
    return len(tally.failed) - failed_before


def count_program(tally: Tally, record: dict[str, str], results: Path) -> None:
    """Add one program of Meson's log."""
    name, result = short_name(record["name"]), record["result"]
    lines = record.get("stdout", "").splitlines()
    tally.notes.extend(f"{name}: {line[6:]}" for line in lines if line.startswith("note: "))
    file = results / f"{name}.xml"
    if file.exists():
        failed_cases = count_cases(tally, name, file)
        if result not in ("OK", "SKIP") and not failed_cases:
            tally.failed.append(f"{name}: no case failed, but the program did ({result})")
    elif result == "OK":
        tally.passed += 1
    elif result == "SKIP":
        tally.skipped[lines[-1] if lines else "no reason given"].append(name)
    else:
        tally.failed.append(f"{name}: {result}")


def short_name(name: str) -> str:
    """Return `a_test` of `project:suite / a_test` or of newer Meson's `suite - project:a_test`."""
    return re.split(r" / |:", name)[-1]


def count(build: Path, known: list[str]) -> Tally:
    """Count a finished run of the programs called `known`."""
    tally = Tally()
    log = build / "meson-logs" / "testlog.json"
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    records = [json.loads(line) for line in text.splitlines()]
    for record in records:
        count_program(tally, record, build / "test-results")
    ran = {short_name(record["name"]) for record in records}
    for name, times in Counter(known).items():
        if name not in ran:
            tally.failed.append(f"{name}: was not run")
        if times > 1:
            tally.failed.append(f"{name}: {times} programs have this name")
    return tally


def report(tally: Tally) -> None:
    """Print notes, what was skipped and why, failures, and the closing line."""
    print()
    for note in tally.notes:
        print(f"note: {note}")
    for reason, names in tally.skipped.items():
        shown = ", ".join(names[:4]) + (f", and {len(names) - 4} more" if len(names) > 4 else "")
        print(f"skipped {len(names)}: {reason} ({shown})")
    for name in tally.failed:
        print(f"FAILED {name}")
    # With TX_TOTALS, several runs are added up elsewhere and this is not the closing line.
    totals = os.environ.get("TX_TOTALS")
    if totals:
        with Path(totals).open("a", encoding="utf-8") as file:
            print(tally.line(), file=file)
    print(f"so far, {tally.line()}" if totals else tally.line(), flush=True)


def main() -> int:
    """Run the tests of a build directory and count them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=Path("build"), help="the build directory")
    parser.add_argument("--suite", action="append", default=[], help="run these suites only")
    options = parser.parse_args()
    meson = [str(Path(sys.executable).with_name("meson"))]

    shutil.rmtree(options.build / "test-results", ignore_errors=True)
    (options.build / "meson-logs" / "testlog.json").unlink(missing_ok=True)

    suites = [f"--suite={suite}" for suite in options.suite]
    cases = os.environ.get("TX_CASES", DEFAULT_CASES)
    environment = {"RC_PARAMS": f"max_success={cases}", "TX_CASES": cases, **os.environ}
    run = [*meson, "test", "-C", str(options.build), "--no-rebuild", "--print-errorlogs", *suites]
    status = subprocess.run(run, env=environment, check=False).returncode

    introspect = [*meson, "introspect", "--tests", str(options.build)]
    listing = subprocess.run(introspect, capture_output=True, text=True, check=True)
    tests = json.loads(listing.stdout)
    # Meson lists a suite as `project:suite`.
    wanted = [
        test["name"]
        for test in tests
        if not suites or any(s.rsplit(":", 1)[-1] in options.suite for s in test["suite"])
    ]
    tally = count(options.build, wanted)
    if status != 0 and not tally.failed:
        tally.failed.append(f"meson test: exit status {status}")
    report(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
