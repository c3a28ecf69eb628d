"""Requests lost when servers stop under load: clients open a connection for each request, until one is refused.

    git worktree add ../before REV
    python benchmarks/serve/stops.py ../before . --workers 2 --stops 40

Prints, for each version, the requests that were answered and those whose connection was accepted and then reset.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CLIENTS, ANSWERS = 16, 300
BODY = json.dumps({"input": "how do I reset my password"})
HEADERS = {"content-type": "application/json", "connection": "close"}


def stop_once(tree: Path, model: str, workers: int) -> tuple[int, int]:
    """Start a server, stop it under load, and return the numbers of answered and of lost requests."""
    command = [sys.executable, "-m", "embedkit", "serve", model, "--port", "0", "--workers", str(workers)]
    server = subprocess.Popen(
        [*command, "--threads", "1", "--set", "drain_delay_s=0"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"},
    )
    assert server.stderr is not None
    log = iter(server.stderr)
    listening = next(line for line in log if '"listening"' in line)
    port = int(json.loads(listening)["url"].rpartition(":")[2])
    threading.Thread(target=list, args=[log], daemon=True).start()  # a full pipe would stop the server
    answered: list[int] = []
    enough = threading.Event()

    def ask() -> int:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.connect()
            except (ConnectionRefusedError, ConnectionResetError):
                return 0
            try:
                connection.request("POST", "/v1/embeddings", BODY, HEADERS)
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                return 1
            answered.append(answer.status)
            if len(answered) > ANSWERS:
                enough.set()

    with ThreadPoolExecutor(CLIENTS) as pool:
        pending = [pool.submit(ask) for _ in range(CLIENTS)]
        enough.wait(60)
        server.send_signal(signal.SIGTERM)
        server.wait()
        return len(answered), sum(one.result() for one in pending)


def main() -> None:
    """Stop each version several times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", type=Path, help="folders that contain embedkit/")
    parser.add_argument("--model", default="tiny", help="a bundled name")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--stops", type=int, default=40)
    arguments = parser.parse_args()
    print("| version | stops | answered | lost |")
    print("| --- | ---: | ---: | ---: |")
    for tree in arguments.trees:
        found = [stop_once(tree, arguments.model, arguments.workers) for _ in range(arguments.stops)]
        answered, lost = map(sum, zip(*found, strict=True))
        print(f"| {tree} | {arguments.stops} | {answered} | {lost} |", flush=True)


if __name__ == "__main__":
    main()
