"""Run the suite many times in random order, on a machine that is kept busy: `make test-stable`.

    python tests/stable.py [--runs 10] [--state FILE] [ARGUMENT...]

Each run has its own seed of the order and two loops beside it that use the processors. Results go to the state
file after every run, and a later call continues with the missing ones; other arguments or new code start again.
Arguments are those of pytest; default: the whole suite but for tests of time. Failed tests are printed by name,
with the seeds that repeat them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BUSY = "while True: pass"


def main() -> None:
    """Make the missing runs, and exit with 1 if any test failed in any of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--loops", type=int, default=2, help="busy loops beside the tests")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "stable.json")
    options, chosen = parser.parse_known_args()
    of = {"code": code_version(), "arguments": chosen or ["-m", "not release and not timing"]}
    state = json.loads(options.state.read_text()) if options.state.exists() else {}
    if state.get("of") != of:
        state = {"of": of, "runs": {}}
    for seed in range(1, options.runs + 1):
        if str(seed) not in state["runs"]:
            state["runs"][str(seed)] = run(seed, of["arguments"], options.loops)
            options.state.parent.mkdir(parents=True, exist_ok=True)
            options.state.write_text(json.dumps(state, indent=1))
        failed = state["runs"][str(seed)]
        sys.stdout.write(f"seed {seed}: {len(failed)} failed\n" + "".join(f"  {name}\n" for name in failed))
    sys.exit(any(state["runs"].values()))


def code_version() -> str:
    """Return the commit, and a digest of what differs from it."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "diff", "HEAD"], check=True, capture_output=True, text=True).stdout
    return f"{commit} and {hashlib.sha256(changed.encode()).hexdigest()[:16]}" if changed else commit


def run(seed: int, arguments: list[str], loops: int) -> list[str]:
    """Run the tests once, in the order of a seed; return the names of those that failed."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(loops)]
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            command += [f"--randomly-seed={seed}", f"--junitxml={report}"]
            if "-n" not in arguments and "--numprocesses" not in arguments:
                command += ["--numprocesses", str((os.cpu_count() or 1) + 1), "--dist", "loadfile"]
            code = subprocess.run([*command, *arguments], cwd=ROOT, check=False).returncode
            if not report.exists():
                sys.exit(f"pytest ended with code {code} and without a report")
            return failures(report)
    finally:
        for process in busy:
            process.kill()


def failures(report: Path) -> list[str]:
    """Return the names of the tests that failed, from pytest's report."""
    cases = ET.parse(report).iter("testcase")
    return [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]


if __name__ == "__main__":
    main()
