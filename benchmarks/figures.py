"""Measure the figures of README and docs again: every script of benchmarks, one after the other.

    python benchmarks/figures.py --data DIR --teachers DIR [--peers DIR] [NAME ...]
    python benchmarks/figures.py --list

figures.toml has the commands. The expected time is printed first. figures.json records the version, date, sources
and machine of each measurement, and figures.md lists them. Figures that were measured with the current sources are
skipped, so an interrupted run continues. With --peers, missing virtual environments of the other libraries are
created in that folder; without it, commands that need them are skipped.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from embedkit.atomic import atomic_file
from embedkit.evaluation.speed.plan import describe_machine

HERE = Path(__file__).parent
ROOT = HERE.parent
RECORD = HERE / "figures.json"
PAGE = HERE / "figures.md"
Figure = dict[str, str]


def main() -> None:
    """Measure what today's sources have not measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures of figures.toml; default: all")
    parser.add_argument("--list", action="store_true", help="print when each was measured, and its command")
    parser.add_argument("--data", type=Path, help="folder of the test sets (docs/evaluation.md)")
    parser.add_argument("--teachers", type=Path, help="folder of the teachers' folders")
    parser.add_argument("--peers", type=Path, help="folder of virtual environments of other libraries")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "figures", help="folder of exported teachers")
    arguments = parser.parse_args()
    plan = tomllib.loads((HERE / "figures.toml").read_text(encoding="utf-8"))
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if unknown := set(arguments.names) - {figure["name"] for figure in plan["figure"]}:
        parser.error(f"figures.toml has no {', '.join(sorted(unknown))}")
    if arguments.list:
        print("\n".join(listed(plan["figure"], record)))
        return
    if arguments.data is None or arguments.teachers is None:
        parser.error("--data and --teachers are required: make figures DATA=DIR TEACHERS=DIR")
    if changed := git("status", "--porcelain", "--", "embedkit", "models"):
        parser.error(f"commit first, so that figures belong to a version:\n{changed}")
    places = {key: str(getattr(arguments, key)) for key in ("data", "teachers", "peers", "work")}
    chosen = [
        figure
        for figure in plan["figure"]
        if (not arguments.names or figure["name"] in arguments.names)
        and (arguments.peers is not None or "{peers}" not in figure["command"])
        and record.get(figure["name"], {}).get("sources") != sources(figure)
    ]
    announce(chosen, record)
    arguments.work.mkdir(parents=True, exist_ok=True)
    for step in plan["preparation"]:
        needed = any(f"{{work}}/{step['makes']}" in figure["command"] for figure in chosen)
        if needed and not (arguments.work / step["makes"]).exists():
            execute(step["command"], places)
    if arguments.peers is not None:
        make_peers(plan["peers"], arguments.peers, chosen)
    failed = [figure["name"] for figure in chosen if not measured(figure, places, record)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the same command tries them again")


def sources(figure: Mapping[str, str]) -> str:
    """Return a digest of the package, the models and the scripts beside the figure's, as they are in git."""
    scripts = [word for word in figure["command"].split() if word.startswith("benchmarks/")]
    folders = [f"{Path(script).parent}/*.py" for script in scripts]
    return hashlib.sha256(git("ls-files", "-s", "embedkit", "models", *folders).encode()).hexdigest()[:16]


def announce(chosen: list[Figure], record: Mapping[str, Any]) -> None:
    """Print what will be measured, and how long it took before."""
    known = [row["seconds"] for figure in chosen if "seconds" in (row := record.get(figure["name"], {}))]
    unknown = len(chosen) - len(known)
    print(
        f"{len(chosen)} figures, about {sum(known) / 3600:.1f} hours"
        + (f" and {unknown} unknown" if unknown else "")
    )


def make_peers(peers: Mapping[str, str], folder: Path, chosen: list[Figure]) -> None:
    """Make the missing environments that the chosen figures need."""
    for name, requirements in peers.items():
        needed = any(f"{{peers}}/{name}/" in figure["command"] for figure in chosen)
        if needed and not (folder / name).exists():
            subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
            python = folder / name / "bin" / "python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements.split()], check=True)


def measured(figure: Figure, places: Mapping[str, str], record: dict[str, Any]) -> bool:
    """Run a figure's command and record it; return whether it succeeded."""
    began, before = time.time(), sources(figure)
    if not execute(figure["command"], places):
        return False
    record[figure["name"]] = {
        "sources": before,
        "version": git("rev-parse", "--short", "HEAD").strip(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "processor": describe_machine()["processor"],
        "seconds": round(time.time() - began),
    }
    with atomic_file(RECORD) as temporary:
        temporary.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    return True


def page() -> str:
    """Return a table of the version and date of each measurement with results in this folder."""
    plan = tomllib.loads((HERE / "figures.toml").read_text(encoding="utf-8"))
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = (
        f"| {figure['shows']} | [{figure['results']}]({figure['results']}) | {row['version']} | {row['date']} |"
        for figure in plan["figure"]
        if "results" in figure and (row := record[figure["name"]])
    )
    return "\n".join(["| figures | results | version | date |", "|---|---|---|---|", *rows, ""])


def execute(command: str, places: Mapping[str, str]) -> bool:
    """Run a command in the checkout with this environment's programs; return whether it succeeded."""
    words = [word.format(**places) for word in shlex.split(command)]
    if words[0] in {"python", "embedkit"}:
        words[:1] = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "embedkit"]
    print(f"\n$ {shlex.join(words)}", flush=True)
    return subprocess.run(words, cwd=ROOT, check=False).returncode == 0


def listed(figures: list[Figure], record: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines with the name, the time and the command of each figure."""
    for figure in figures:
        found = record.get(figure["name"])
        when = f"{found['date']}, version {found['version']}" if found else "before figures.json"
        yield f"{figure['name']}: {figure['shows']} ({when})\n  {figure['command']}"


def git(*words: str) -> str:
    """Return the output of git in this checkout."""
    return subprocess.run(
        [shutil.which("git") or "git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    main()
