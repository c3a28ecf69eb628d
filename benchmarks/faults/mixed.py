"""A server under mixed load beyond its capacity, for any length of time: nothing is lost, mixed up or leaking.

    python benchmarks/faults/mixed.py --minutes 60

Serves two models and a collection with concurrent writes. In every round, closed-loop clients measure the server's
current capacity, because other programs may use part of the machine; for the rest of the round, requests arrive at
random at 1.2 times that rate: single texts, lists, searches, re-ranking, reads, upserts and deletions, in the
shares of ``MIX``. There are more clients than the server admits requests, so some are rejected.

- Lost: a request is neither answered nor rejected (429, 504), or an acknowledged write is missing at the end.
- Mixed up: an embedding does not belong to its text and model; a search for a document's own text, or a
  re-ranking, does not rank that text first.
- Leaking: after the first third, resident memory exceeds the previous peak by more than ``SLACK_MB``; or threads,
  files, admitted work or queues remain after the load has ended.

Prints one line of JSON, writes it to mixed.json next to this file with ``--keep``, and exits with 1 if any of
these was observed.
"""

from __future__ import annotations

import argparse
import base64
import collections
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, Encoder

MODELS = {"tiny": "tiny", "static": str(Path(__file__).parents[2] / "models" / "static.onnx")}
CLIENTS, AT_ONCE = 48, 32
OVERLOAD = 1.2
ROUND_S, CALIBRATION_S = 120.0, 10.0
SLACK_MB = 32.0
SETTLE_S = 5.0
IDLE_S = 15.0  # less than the server's keep_alive_s
SPARE = {"threads": 8, "files": 64}  # pools grow on demand; each unmerged segment has some files open
LEAST_COSINE = 0.98  # int8 embeddings depend slightly on their batch
DOCUMENTS, TEXTS = 500, 400
WORDS = (
    Path(__file__).with_name("hostile.py").read_text(encoding="utf-8").split()
)  # several hundred arbitrary words
MIX = {"one": 60, "list": 12, "search": 14, "rerank": 3, "get": 4, "upsert": 5, "delete": 2}


class Client:
    """Sends requests of all kinds over one connection, and checks each answer.

    Args:
        port: the server's port.
        number: number of this client, which owns its documents.
        known: model -> embeddings of ``texts``, ``(N, D) float32``.
        texts: N texts; those of the collection's permanent documents come first.
    """

    def __init__(self, port: int, number: int, known: dict[str, np.ndarray], texts: list[str]) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.known, self.texts, self.number = known, texts, number
        self.random = random.Random(number)
        self.counts: collections.Counter[str] = collections.Counter()
        self.crossed: list[str] = []
        self.lost: list[str] = []
        self.there: dict[str, str] = {}
        self.gone: set[str] = set()
        self.written, self.used = 0, time.monotonic()

    def act(self) -> None:
        """Send one request."""
        kind = self.random.choices(list(MIX), list(MIX.values()))[0]
        try:
            status = getattr(self, f"_{kind}")()
        except (OSError, http.client.HTTPException) as error:
            self.lost.append(f"{kind}: {error!r}")
            self.connection.close()
            return
        self.counts[f"{kind} {status}"] += 1
        if status not in {200, 429, 504}:
            self.lost.append(f"{kind}: {status}")

    def ask(self, method: str, path: str, content: Any = None) -> tuple[int, Any]:
        """Send a request; return its status and its answer."""
        if time.monotonic() - self.used > IDLE_S:
            self.connection.close()  # reconnects automatically; the server may have closed its end
        self.used = time.monotonic()
        body = None if content is None else json.dumps(content)
        self.connection.request(method, path, body, {"content-type": "application/json"})
        answer = self.connection.getresponse()
        return answer.status, json.loads(answer.read())

    def _embed(self, count: int) -> int:
        model, rows = self.random.choice(list(MODELS)), self.random.sample(range(len(self.texts)), count)
        content = {"input": [self.texts[row] for row in rows], "model": model, "encoding_format": "base64"}
        status, answer = self.ask("POST", "/v1/embeddings", content)
        if status == 200:
            found = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in answer["data"]]
            if (np.einsum("nd,nd->n", np.array(found), self.known[model][rows]) < LEAST_COSINE).any():
                self.crossed.append(f"embeddings of {model}")
        return status

    def _one(self) -> int:
        return self._embed(1)

    def _list(self) -> int:
        return self._embed(16)

    def _search(self) -> int:
        row = self.random.randrange(DOCUMENTS // 2)
        content = {"query": self.texts[row], "k": 5, "mode": self.random.choice(["dense", "hybrid"])}
        status, answer = self.ask("POST", "/v1/search", content)
        if status == 200 and answer["hits"][0]["text"] != self.texts[row]:
            self.crossed.append("search")
        return status

    def _rerank(self) -> int:
        rows = self.random.sample(range(len(self.texts)), 8)
        texts = [self.texts[row] for row in rows]
        status, answer = self.ask("POST", "/v1/rerank", {"query": texts[3], "documents": texts})
        if status == 200 and answer["results"][0]["index"] != 3:
            self.crossed.append("rerank")
        return status

    def _get(self) -> int:
        row = self.random.randrange(DOCUMENTS)
        status, answer = self.ask("GET", f"/v1/documents/doc-{row}")
        if status == 200 and answer["text"] != self.texts[row]:
            self.crossed.append("document")
        return status

    def _upsert(self) -> int:
        self.written += 1
        id_ = f"client-{self.number}-{self.written % 4}"  # replaces its own, so that the collection stays small
        text = f"client {self.number} writes {self.written}"
        status, _ = self.ask("POST", "/v1/documents", {"documents": [{"id": id_, "text": text}]})
        if status == 200:
            self.there[id_] = text
            self.gone.discard(id_)
        elif status == 504:  # the write may or may not have happened
            self.there.pop(id_, None)
            self.gone.discard(id_)
        return status

    def _delete(self) -> int:
        id_ = next(iter(self.there), None)
        if id_ is None:
            return self._upsert()
        status, _ = self.ask("POST", "/v1/documents/delete", {"ids": [id_]})
        if status != 429:
            del self.there[id_]
        if status == 200:
            self.gone.add(id_)
        return status

    def check_writes(self) -> None:
        """Check that every acknowledged write exists."""
        for id_, text in self.there.items():
            status, answer = self.ask("GET", f"/v1/documents/{id_}")
            if status != 200 or answer["text"] != text:
                self.lost.append(f"write of {id_}: {status}")
        for id_ in self.gone:
            if self.ask("GET", f"/v1/documents/{id_}")[0] != 404:
                self.lost.append(f"deletion of {id_}")


def load(clients: list[Client], seconds: float, rate: float | None = None) -> float:
    """Let clients send requests; return the answers per second.

    Args:
        clients: each gets a thread.
        seconds: duration.
        rate: total requests per second, at random moments; if None, each client waits for its answer.
    """
    ends = time.monotonic() + seconds
    before = answered(clients)

    def run(client: Client) -> None:
        due = time.monotonic()
        while time.monotonic() < ends:
            if rate is not None:
                due += client.random.expovariate(rate / len(clients))
                time.sleep(max(0.0, min(due, ends) - time.monotonic()))
            client.act()

    threads = [threading.Thread(target=run, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (answered(clients) - before) / seconds


def answered(clients: list[Client]) -> int:
    """Return the number of requests answered with 200."""
    return sum(count for client in clients for what, count in client.counts.items() if what.endswith(" 200"))


def usage(pid: int) -> dict[str, float]:
    """Return resident megabytes, threads and open files of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "mb": int(fields["VmRSS"].split()[0]) / 1024,
        "threads": int(fields["Threads"]),
        "files": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
    }


def watch(pid: int, every_s: float, stop: threading.Event) -> list[tuple[float, float]]:
    """Return a list that a thread fills with times and resident megabytes until ``stop`` is set."""
    sizes: list[tuple[float, float]] = []

    def run() -> None:
        while not stop.wait(every_s):
            sizes.append((time.monotonic(), usage(pid)["mb"]))

    threading.Thread(target=run, daemon=True).start()
    return sizes


def gauges(client: Client) -> dict[str, float]:
    """Return the server's gauges of pending work."""
    client.connection.request("GET", "/metrics")
    lines = client.connection.getresponse().read().decode().splitlines()
    names = ("embedkit_admitted_work_seconds", "embedkit_queue_tokens", "embedkit_requests_in_flight")
    return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith(names)}


def make_texts() -> list[str]:
    """Return distinct texts of 4 to 60 words."""
    source = random.Random(7)
    return [
        f"number {n} " + " ".join(source.choices(WORDS, k=source.randint(3, 58))) for n in range(DOCUMENTS + TEXTS)
    ]


def load_in_rounds(clients: list[Client], seconds: float) -> tuple[list[float], float]:
    """Alternate between measuring the capacity and exceeding it; return capacities, and answers per second."""
    capacities, answers, spent = [], 0.0, 0.0
    rounds = max(1, round(seconds / ROUND_S))
    for _ in range(rounds):
        capacities.append(load(clients[:AT_ONCE], CALIBRATION_S))
        beyond = max(1.0, seconds / rounds - CALIBRATION_S)
        answers += beyond * load(clients, beyond, OVERLOAD * capacities[-1])
        spent += beyond
    return capacities, answers / spent


def soak(minutes: float, start: Callable[[Path], tuple[subprocess.Popen[str], int]]) -> dict[str, Any]:
    """Run the whole test; return its figures."""
    texts = make_texts()
    encoders = {name: Encoder.load(source, threads=1) for name, source in MODELS.items()}
    known = {name: encoder.encode(texts) for name, encoder in encoders.items()}
    with tempfile.TemporaryDirectory() as folder:
        documents = [(f"doc-{n}", text) for n, text in enumerate(texts[:DOCUMENTS])]
        Collection.build(documents, encoder=encoders["tiny"], path=Path(folder) / "idx", lexical=True)
        process, port = start(Path(folder) / "idx")
        try:
            clients = [Client(port, number, known, texts) for number in range(CLIENTS)]
            load(clients[:AT_ONCE], CALIBRATION_S)
            before = usage(process.pid)
            stop = threading.Event()
            began, sizes = time.monotonic(), watch(process.pid, 2.0, stop)
            capacities, rate = load_in_rounds(clients, 60 * minutes)
            stop.set()
            time.sleep(SETTLE_S)
            for client in clients:
                client.check_writes()
            after, left = usage(process.pid), gauges(clients[0])
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    settled = max(size for moment, size in sizes if moment - began <= 60 * minutes / 3)
    grown = max(size for _, size in sizes) - settled
    counts = sum((client.counts for client in clients), collections.Counter())
    lost = [each for client in clients for each in client.lost]
    crossed = [each for client in clients for each in client.crossed]
    idle = (
        left["embedkit_requests_in_flight"] == 1 and sum(left.values()) == 1
    )  # the request for the metrics itself
    steady = all(after[what] <= before[what] + spare for what, spare in SPARE.items())
    return {
        "passed": not lost and not crossed and grown <= SLACK_MB and idle and steady and code == 0,
        "minutes": minutes,
        "capacity_per_s": [round(min(capacities), 1), round(max(capacities), 1)],
        "offered_per_s": round(OVERLOAD * sum(capacities) / len(capacities), 1),
        "answered_per_s": round(rate, 1),
        "requests": sum(counts.values()),
        "refused": sum(count for what, count in counts.items() if what.endswith(" 429")),
        "late": sum(count for what, count in counts.items() if what.endswith(" 504")),
        "lost": [len(lost), *lost[:5]],
        "crossed": [len(crossed), *crossed[:5]],
        "writes_checked": sum(len(client.there) + len(client.gone) for client in clients),
        "settled_mb": round(settled, 1),
        "grown_mb": round(grown, 1),
        "threads": [before["threads"], after["threads"]],
        "files": [before["files"], after["files"]],
        "left": left,
        "exit_code": code,
    }


def start_server(collection: Path) -> tuple[subprocess.Popen[str], int]:
    """Start `embedkit serve` with two models and a collection; return its process and port."""
    command = [sys.executable, "-m", "embedkit", "serve", *MODELS.values(), "--port", "0", "--threads", "1"]
    command += ["--collection", str(collection), "--allow-writes", "--set", "refresh_s=0"]
    command += ["--set", f"concurrent_requests={AT_ONCE}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if '"listening"' in line:
            threading.Thread(target=collections.deque, args=[process.stderr, 0], daemon=True).start()
            return process, int(json.loads(line)["url"].rpartition(":")[2])
    raise SystemExit("the server did not start")


def main() -> int:
    """Print the figures; return 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long; default: 60")
    parser.add_argument("--keep", action="store_true", help="write mixed.json")
    arguments = parser.parse_args()
    figures = soak(arguments.minutes, start_server)
    print(json.dumps(figures))
    if arguments.keep:
        Path(__file__).with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0 if figures["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
