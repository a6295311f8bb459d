"""docs/upstream-tests.md names every case of upstream's connector tests, and only tests of ours that exist."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UPSTREAM = ROOT / "build" / "upstream" / "vllm-0.32.0"
TABLE = ROOT / "docs" / "upstream-tests.md"
HOW = ("unchanged", "compared", "rewritten", "not applicable")
CASES = 363


def rows():
    """(file, test, cases, how, where) of every row."""
    found, file = [], ""
    for line in TABLE.read_text().splitlines():
        if line.startswith("## "):
            file = line[3:]
        elif match := re.fullmatch(r"\| `(test_\w+)` \| (\d+) \| ([a-z ]+) \| (.+) \|", line):
            found.append((file, match[1], int(match[2]), match[3], match[4]))
    return found


def collected():
    """Upstream's cases by (file, test), as pytest collects them."""
    fetched = subprocess.run([sys.executable, Path(__file__).with_name("fetch.py"), "--check"], capture_output=True, text=True)
    assert fetched.returncode == 0, fetched.stderr
    files = sorted(str(p) for p in (UPSTREAM / "tests/v1/kv_connector/unit").glob("test_mooncake_store_*.py"))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "--collect-only", *files],
        cwd=UPSTREAM,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-2000:]
    cases = Counter()
    for line in run.stdout.splitlines():
        if match := re.match(r"\S*/test_mooncake_store_(\w+)\.py::(?:\w+::)*(\w+)", line):
            cases[match[1], match[2]] += 1
    return cases


def test_every_case_is_in_the_table():
    table = {(file, test): cases for file, test, cases, _, _ in rows()}
    assert len(table) == len(rows())
    assert table == collected()
    assert sum(table.values()) == CASES


def test_the_sums_are_right():
    sums = Counter()
    for file, _, cases, how, _ in rows():
        assert how in HOW
        sums[file, how] += cases
        sums["all", how] += cases
    for line in TABLE.read_text().splitlines():
        if match := re.fullmatch(r"\| `?(\w+)`? \|((?: \d+ \|){5})", line):
            numbers = [int(n) for n in match[2].replace("|", " ").split()]
            wanted = [sums[match[1], how] for how in HOW]
            assert numbers == [sum(wanted), *wanted], line


def test_tests_of_ours_that_are_named_exist():
    sources = [*ROOT.glob("*/**/*_test.go"), *ROOT.glob("pyshim/tests/**/*.py"), *ROOT.glob("tests/e2e/*.py")]
    known = set(re.findall(r"^(?:def|func) (\w+)\(", "\n".join(map(Path.read_text, sources)), re.M))
    known.add("go_coordinator")
    named = {name for *_, where in rows() for name in re.findall(r"`(\w+)`|\b(Test[A-Z]\w+|test_\w+)", where)}
    missing = {name for pair in named for name in pair if name} - known
    assert not missing
