"""Peak memory of one step of `contrastive` with a large batch, of labelled headings among their sections.

    python benchmarks/adaptation/memory.py --data DIR --batch 1024

Prints the peak of the process in MB, and the processor time of the run in seconds.
"""

from __future__ import annotations

import argparse
import json
import lzma
import resource
import tempfile
import time
from pathlib import Path

from embedkit.training.loop import RunControl
from embedkit.training.run import resolve, run


def main() -> None:
    """Make one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of text and test sets")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=3000, help="labelled headings")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with lzma.open(arguments.data / "questions/business-help.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][: arguments.rows]
    with tempfile.TemporaryDirectory() as folder:
        pairs = Path(folder) / "pairs.jsonl"
        pairs.write_text(
            "\n".join(json.dumps({name: row[name] for name in ("query", "passage")}) for row in rows),
            encoding="utf-8",
        )
        config = {
            "method": "contrastive",
            "cache": f"{folder}/cache",
            "threads": arguments.threads,
            "device": "cpu",
            "student": {"source": "tiny", "max_length": 256, "word_table": "int4"},
            "corpus": [{"path": str(pairs), "view_columns": ["query", "passage"]}],
            "optim": {"steps": 1, "batch_size": arguments.batch},
        }
        started = time.process_time()
        run(resolve(config), Path(folder) / "run", RunControl(show_progress=False))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"batch {arguments.batch:,}: {peak:,.0f} MB, {time.process_time() - started:.0f} s of processor time")


if __name__ == "__main__":
    main()
