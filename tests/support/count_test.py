# SPDX-License-Identifier: Apache-2.0
"""The closing line is the true sum: count.py on Meson projects whose programs misbehave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNT = Path(__file__).with_name("count.py")


def case(name, inside="", status="run"):
    head = f'classname="Lattice" name="{name}" status="{status}"'
    return f"<testcase {head}>{inside}</testcase>"


PASS = case("Passes")
FAIL = case("Fails", '<failure message="1 is not 2"/>')
ERROR = case("test_teardown", '<error message="teardown"/>')
SKIP = case("Waits", '<skipped message="a.cpp:7&#x0A;waits for cpu"/>')
DISABLED = case("DISABLED_Off", status="notrun")
ABORT = '__import__("os").abort()'
TRUNCATED = "<testsuite><testcase"
NOTE = case("Counts", '<properties><property name="note" value="71 % feasible"/></properties>')


def run_count(folder, programs, arguments=(), environment=None):
    """Make a Meson project of (name, result file or None, exit status) and count it."""
    tests = []
    for name, cases, status in programs:
        code = "import pathlib, sys\\n"
        if cases is not None:
            text = cases if cases == TRUNCATED else f"<testsuite>{cases}</testsuite>"
            file = folder / "build" / "test-results" / f"{name}.xml"
            (folder / f"{name}.in").write_text(text)
            code += (
                f'f = pathlib.Path(r"{file}"); f.parent.mkdir(exist_ok=True)\\n'
                f'f.write_text(pathlib.Path(r"{folder / (name + ".in")}").read_text())\\n'
            )
        code += f'print("{name} ends")\\nsys.exit({status})'
        tests.append(f"test('{name}', python, args: ['-c', '{code}'], suite: 'reference')")
    project = ["project('sample')", "python = import('python').find_installation()", *tests]
    (folder / "meson.build").write_text("\n".join(project))
    meson = Path(sys.executable).with_name("meson")
    again = ["--reconfigure"] if (folder / "build").exists() else []
    # Meson looks for ninja on PATH; that of .venv may be the only one.
    path = f"{meson.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [meson, "setup", "build", *again],
        cwd=folder,
        check=True,
        capture_output=True,
        env={**os.environ, "PATH": path},
    )
    # A run that is itself counted must not find these counts in its sum.
    inherited = {name: value for name, value in os.environ.items() if name != "TX_TOTALS"}
    return subprocess.run(
        [sys.executable, COUNT, "--build", "build", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**inherited, **(environment or {})},
    )


def last_line(run):
    return run.stdout.splitlines()[-1]


def test_all_pass(tmp_path):
    run = run_count(tmp_path, [("a_test", PASS + PASS, 0), ("plain_test", None, 0)])
    assert (last_line(run), run.returncode) == ("3 passed, 0 failed, 0 skipped", 0)


@pytest.mark.parametrize(
    ("cases", "status", "line"),
    [
        pytest.param(PASS + FAIL, 1, "2 passed, 1 failed, 0 skipped", id="a failing case"),
        pytest.param(PASS + FAIL, 0, "2 passed, 1 failed, 0 skipped", id="exit status 0"),
        pytest.param(PASS + FAIL + ERROR, 1, "2 passed, 2 failed, 0 skipped", id="an error"),
        pytest.param(PASS, 1, "2 passed, 1 failed, 0 skipped", id="cases pass, program fails"),
        pytest.param(TRUNCATED, 0, "1 passed, 1 failed, 0 skipped", id="a truncated result file"),
        pytest.param("", 0, "1 passed, 1 failed, 0 skipped", id="no case at all"),
        pytest.param(None, 1, "1 passed, 1 failed, 0 skipped", id="a failing plain program"),
        pytest.param(None, ABORT, "1 passed, 1 failed, 0 skipped", id="a crash"),
    ],
)
def test_one_failure_is_counted(tmp_path, cases, status, line):
    run = run_count(tmp_path, [("bad_test", cases, status), ("good_test", None, 0)])
    assert last_line(run) == line
    assert run.returncode != 0
    assert "FAILED bad_test" in run.stdout


def test_skips_are_counted_and_named(tmp_path):
    run = run_count(tmp_path, [("a_test", PASS + SKIP + DISABLED, 0), ("b_test", None, 77)])
    assert (last_line(run), run.returncode) == ("1 passed, 0 failed, 3 skipped", 0)
    assert "skipped 1: waits for cpu (a_test: Lattice.Waits)" in run.stdout
    assert "skipped 1: disabled (a_test: Lattice.DISABLED_Off)" in run.stdout
    assert "skipped 1: b_test ends (b_test)" in run.stdout


def test_stale_results_do_not_count(tmp_path):
    run_count(tmp_path, [("old_test", PASS + PASS, 0)])
    stale = tmp_path / "build" / "test-results" / "a_test.xml"
    stale.write_text(f"<testsuite>{PASS * 9}</testsuite>")
    run = run_count(tmp_path, [("a_test", None, 1)])
    assert last_line(run) == "0 passed, 1 failed, 0 skipped"


def test_one_name_in_two_programs_fails(tmp_path):
    run = run_count(tmp_path, [("a_test", PASS, 0), ("a_test", PASS, 0)])
    assert run.returncode != 0
    assert "2 programs have this name" in run.stdout


def test_a_suite_alone(tmp_path):
    run = run_count(tmp_path, [("a_test", PASS, 0)], ["--suite", "reference"])
    assert (last_line(run), run.returncode) == ("1 passed, 0 failed, 0 skipped", 0)


def test_notes_are_repeated(tmp_path):
    run = run_count(tmp_path, [("a_test", NOTE, 0)])
    assert "note: a_test: Lattice.Counts: 71 % feasible" in run.stdout


def test_totals_are_left_for_a_sum(tmp_path):
    totals = tmp_path / "totals"
    run = run_count(tmp_path, [("a_test", PASS, 0)], environment={"TX_TOTALS": str(totals)})
    assert totals.read_text() == "1 passed, 0 failed, 0 skipped\n"
    assert last_line(run).startswith("so far, ")
