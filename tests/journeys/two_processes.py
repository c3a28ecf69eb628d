"""Run `embedkit train` several times in two processes that share their batches, as torchrun starts them.

    python two_processes.py FOLDER PORT

``FOLDER/cases.json`` holds the arguments of each run. Both processes share one import of torch and one group, and
leave what each run returned and wrote to stderr in ``FOLDER/outcomes-RANK.json``.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import sys
import traceback
from pathlib import Path

import torch
from torch import distributed

from embedkit.cli.main import main


def run_cases(folder: Path, port: str, rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    outcomes = []
    distributed.init_process_group("gloo")
    for arguments in json.loads((folder / "cases.json").read_text(encoding="utf-8")):
        with contextlib.redirect_stderr(io.StringIO()) as written:
            try:
                code = main(arguments)
            except Exception:  # noqa: BLE001 - the test shows it
                code = traceback.format_exc()
        outcomes.append((code, written.getvalue()))
    distributed.destroy_process_group()
    (folder / f"outcomes-{rank}.json").write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    running = [
        context.Process(target=run_cases, args=(Path(sys.argv[1]), sys.argv[2], rank), daemon=True)
        for rank in range(2)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join(780)
    sys.exit(any(process.exitcode != 0 for process in running))
