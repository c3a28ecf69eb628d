"""Two machines of a Ray cluster encode; one of them is lost in the middle.

    sudo python benchmarks/faults/lost_machine.py

The machines are network namespaces of this one, connected by a virtual cable: they have addresses of their own
and reach each other only over it. Ray is started on each as in docs/scale.md, `embedkit encode --engine ray`
runs on the first, and every process of the second is killed when some shards exist. The output must equal that of
a single process, byte for byte. Exits with 1 if it does not. Needs root on Linux, and `ip` of iproute2.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from lost_node import WORDS, digests
from pyarrow import parquet

ROWS, ROWS_PER_SHARD, LOST_AFTER = 8_000, 50, 20
HEAD, WORKER = "10.77.41.1", "10.77.41.2"
PORT = 6379
TIMEOUT_S = 500
IP = shutil.which("ip") or "/usr/sbin/ip"


def main() -> None:
    """Encode in one process and on two machines, and compare."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # the same on all machines
    with tempfile.TemporaryDirectory() as name, machines() as (head, worker):
        folder = Path(name)
        words = np.random.default_rng(0).choice(WORDS, size=(ROWS, 12))
        parquet.write_table(pa.table({"text": [" ".join(row) for row in words]}), folder / "in.parquet")
        subprocess.run(encode(folder, "alone"), check=True)
        run(
            head, ray("start", "--head", f"--node-ip-address={HEAD}", f"--port={PORT}", f"--temp-dir={folder}/ray")
        )
        run(worker, ray("start", f"--address={HEAD}:{PORT}", f"--node-ip-address={WORKER}"))
        environment = {**os.environ, "RAY_ADDRESS": f"{HEAD}:{PORT}"}
        command = [*inside(head), *encode(folder, "cluster"), "--engine", "ray"]
        with subprocess.Popen(command, env=environment) as encoding:
            shards = lose(worker, folder / "cluster", encoding)
            encoding.wait(TIMEOUT_S)
        same = encoding.returncode == 0 and digests(folder / "cluster") == digests(folder / "alone")
    print(f"one of 2 machines lost after {shards} of {ROWS // ROWS_PER_SHARD} shards; ", end="")
    print(f"the bytes are {'equal' if same else 'different'}")
    sys.exit(0 if same else 1)


@contextlib.contextmanager
def machines() -> Iterator[tuple[str, str]]:
    """Yield the names of two connected namespaces; kill their processes at the end."""
    name = f"ek{secrets.token_hex(3)}"
    head, worker = f"{name}h", f"{name}w"
    try:
        for machine in (head, worker):
            subprocess.run([IP, "netns", "add", machine], check=True)
        cable = ["type", "veth", "peer", "name", "cable", "netns", worker]
        subprocess.run([IP, "link", "add", "cable", "netns", head, *cable], check=True)
        for machine, address in ((head, HEAD), (worker, WORKER)):
            run(machine, [IP, "address", "add", f"{address}/24", "dev", "cable"])
            for device in ("lo", "cable"):
                run(machine, [IP, "link", "set", device, "up"])
        yield head, worker
    finally:
        for machine in (head, worker):
            kill_all(machine)
            subprocess.run([IP, "netns", "delete", machine], check=False)


def inside(machine: str) -> list[str]:
    """The beginning of a command that runs on a machine."""
    return [IP, "netns", "exec", machine]


def run(machine: str, command: Sequence[str]) -> None:
    """Run a command on a machine and wait for it."""
    subprocess.run([*inside(machine), *command], check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)


def ray(*arguments: str) -> list[str]:
    """A command of Ray, for a machine with one processor."""
    few = ["--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats"]
    more = ["--include-dashboard=false"] if "--head" in arguments else []
    return [sys.executable, "-m", "ray.scripts.scripts", *arguments, *few, *more]


def encode(folder: Path, output: str) -> list[str]:
    """The command that encodes into a folder."""
    options = ["-m", "tiny", "-o", str(folder / output), "--rows-per-shard", str(ROWS_PER_SHARD)]
    return [sys.executable, "-m", "embedkit", "encode", str(folder / "in.parquet"), *options]


def lose(machine: str, output: Path, encoding: subprocess.Popen[bytes]) -> int:
    """Kill a machine once some shards exist; return their number."""
    while len(list(output.glob("shard-*"))) < LOST_AFTER:
        if encoding.poll() is not None:
            raise SystemExit("the encoding ended before a machine could be lost")
        time.sleep(0.02)
    kill_all(machine)
    return len(list(output.glob("shard-*")))


def kill_all(machine: str) -> None:
    """Kill the processes on a machine; they were all started here."""
    found = subprocess.run([IP, "netns", "pids", machine], check=False, capture_output=True, text=True)
    for process in map(int, found.stdout.split()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
