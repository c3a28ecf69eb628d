"""Hostile clients on an open network, and their effect on a well-behaved client.

    python benchmarks/faults/hostile.py                   # all attacks, about five minutes
    python benchmarks/faults/hostile.py idle stop         # some of them

Each attack runs against its own server, `embedkit serve tiny`, with default settings except those that make
the attack small. Prints a line of JSON for each: its figures, and whether the server met its guarantees. Exits
with 1 if it did not. Searches are re-ranked by a cross-encoder with random weights, in the shape of MiniLM with 6
layers.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from embedkit.serving.http.settings import ServerSettings

KEY = "the-key-of-a-good-client"
DIMENSION, DOCUMENTS = 384, 20_000
WORDS = ["bees", "dance", "at", "noon", "and", "the", "sea", "is", "cold", "while", "nobody", "asks", "in", "rain"]
Figures = dict[str, Any]


class Server:
    """`embedkit serve` in a process of its own.

    Args:
        arguments: arguments of the command, after the model.
        files: limit on open files.
    """

    def __init__(self, *arguments: str, files: int | None = None) -> None:
        command = [sys.executable, "-m", "embedkit", "serve", "tiny", "--port", "0", *arguments]

        def limit() -> None:
            if files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit,  # noqa: PLW1509 - no thread runs yet
            env={**os.environ, "EMBEDKIT_API_KEY": KEY},
        )
        assert self.process.stderr is not None
        lines = []
        while '"listening"' not in (line := self.process.stderr.readline()):
            lines.append(line)
            if not line:
                raise SystemExit(f"the server did not start: {''.join(lines)}")
        self.port = int(json.loads(line)["url"].rpartition(":")[2])
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, method: str, path: str, content: Any = None, timeout: float = 60) -> tuple[int, Any]:
        """Send one well-behaved request; return the status, 0 without an answer, and the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        try:
            connection.request(method, path, None if content is None else json.dumps(content), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()

    def open(self, content: bytes = b"", receive_bytes: int | None = None) -> socket.socket:
        """Return a connection on which ``content`` was sent and nothing read."""
        connection = socket.socket()
        if receive_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(5)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(content)
        return connection

    def sockets(self) -> int:
        """Return the number of sockets that the process has open. Linux only."""
        files = Path(f"/proc/{self.process.pid}/fd").iterdir()
        return sum(str(file.readlink()).startswith("socket:") for file in files)

    def resident_mb(self) -> float:
        """Return the resident memory of the process. Linux only."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def head(method: str, path: str, length: int, *, key: bool = True) -> bytes:
    """Return the headers of a request with a body of a given length."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    lines += [f"content-length: {length}", *([f"authorization: Bearer {KEY}"] if key else [])]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(path: str, content: Any) -> bytes:
    """Return a complete request in wire format."""
    body = json.dumps(content).encode()
    return head("POST", path, len(body)) + body


def count_open(connections: Sequence[socket.socket]) -> int:
    """Return the number of connections that the server has not closed."""
    still = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            while connection.recv(65536):
                pass
        except BlockingIOError:
            still += 1
        except OSError:
            pass
    return still


def keyless() -> tuple[Figures, bool]:
    """Clients without a key occupy all slots with bodies that never end."""
    with Server("--set", "concurrent_requests=16") as server:
        half = [server.open(head("POST", "/health", 1000, key=False) + b"{") for _ in range(16)]
        half += [server.open(head("POST", "/v1/embeddings", 1000) + b"{") for _ in range(16)]
        time.sleep(0.5)
        statuses = Counter(server.ask("POST", "/v1/embeddings", {"input": "a"})[0] for _ in range(20))
        del half
    return {"good client": dict(statuses)}, statuses == {200: 20}


def idle() -> tuple[Figures, bool]:
    """More idle and half-sent connections than the process may have open files."""
    with Server(files=128) as server:
        idlers = [server.open(b"GET / HT" * (number % 2)) for number in range(140)]
        time.sleep(0.5)
        statuses = Counter(server.ask("GET", "/v1/models", timeout=5)[0] for _ in range(20))
        del idlers
    return {"good client": dict(statuses)}, statuses == {200: 20}


def slow() -> tuple[Figures, bool]:
    """Half-sent headers, which only a time limit ends."""
    with Server() as server:
        half = [server.open(b"POST /v1/embeddings HTTP/1.1\r\nhost: 127") for _ in range(200)]
        for _ in range(12):
            time.sleep(1)
            for connection in half:
                with contextlib.suppress(OSError):
                    connection.sendall(b".")  # a byte per second, so that the connection is never idle
        still = count_open(half)
    return {"opened": 200, "open after 12 s": still}, still == 0


def endless_headers() -> tuple[Figures, bool]:
    """A request whose headers never end."""
    with Server() as server:
        before, sent = server.resident_mb(), 0
        connection = server.open(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            for number in range(2000):
                sent += connection.send(b"x-%d: %s\r\n" % (number, b"a" * 65536))
        grown = server.resident_mb() - before
    return {"sent MB": round(sent / 1e6, 1), "grown MB": round(grown, 1)}, grown < 20


def unread() -> tuple[Figures, bool]:
    """Responses of 15 MB that are never read.

    They may take ``max_buffered_bytes``. The embeddings of requests in progress come on top, and a fifth is left
    to the allocator, which keeps freed memory.
    """
    texts, clients = 2000, 40
    bound = 1.2 * (ServerSettings().max_buffered_bytes + clients * texts * DIMENSION * 4) / 1e6
    with Server() as server:
        request = whole("/v1/embeddings", {"input": [" ".join(WORDS[:3])] * texts})
        began = time.monotonic()
        server.ask("POST", "/v1/embeddings", {"input": ["a"] * texts})
        seconds = 36 + 40 * (time.monotonic() - began)  # a slow processor computes the last response late
        before, largest, own = server.resident_mb(), 0.0, server.sockets()
        greedy = [server.open(request, receive_bytes=4096) for _ in range(clients)]
        began = time.monotonic()
        while (passed := time.monotonic() - began) < 36 or (server.sockets() > own and passed < seconds):
            time.sleep(1)
            largest = max(largest, server.resident_mb() - before)
        still = server.sockets() - own
        del greedy
    figures = {"grown MB": round(largest, 1), "allowed MB": round(bound), f"open after {passed:.0f} s": still}
    return figures, still == 0 and largest < bound


def searches() -> tuple[Figures, bool]:
    """Many expensive searches at once, next to cheap ones."""
    with (
        collection() as folder,
        tempfile.TemporaryDirectory() as models,
        Server("--collection", folder, "--rerank", str(write_reranker(Path(models)))) as server,
    ):
        long = " ".join(random.Random(1).choices(WORDS, k=400))
        costly = {"query": long, "rerank": True, "candidates": 200}
        done: list[tuple[int, float]] = []
        plain: list[float] = []

        def attack(_: int) -> None:
            began = time.monotonic()
            status, _answer = server.ask("POST", "/v1/search", costly, timeout=90)
            done.append((status, time.monotonic() - began))

        with ThreadPoolExecutor(60) as pool:
            attacks = [pool.submit(attack, number) for number in range(60)]
            time.sleep(0.5)
            until = time.monotonic() + 20
            while time.monotonic() < until:
                began = time.monotonic()
                status, _ = server.ask("POST", "/v1/search", {"query": "bees", "k": 3}, timeout=60)
                plain.append(time.monotonic() - began if status == 200 else 60.0)
                time.sleep(0.2)
            server.process.kill()
            for one in attacks:
                one.result()
    refused = [seconds for status, seconds in done if status == 429]
    figures = {
        "costly searches": 60,
        "refused": len(refused),
        "slowest refusal s": round(max(refused, default=0.0), 2),
        "plain searches answered": len(plain),
        "slowest plain search s": round(max(plain), 2),
    }
    return figures, len(refused) > 30 and max(plain) < 2


def filters() -> tuple[Figures, bool]:
    """Searches filtered by fields that no document has."""
    with collection() as folder, Server("--collection", folder) as server:
        server.ask("POST", "/v1/search", {"query": "bees", "filter": {"number": 3}})
        before = server.resident_mb()
        seconds = []
        for number in range(40):
            began = time.monotonic()
            server.ask("POST", "/v1/search", {"query": "bees", "filter": {f"field {number}": 3}})
            seconds.append(time.monotonic() - began)
        grown = server.resident_mb() - before
    slowest = sorted(seconds)[-4]  # tolerates outliers on a shared machine
    return {"slowest s": round(slowest, 3), "grown MB": round(grown, 1)}, slowest < 0.05 and grown < 10


def tokens() -> tuple[Figures, bool]:
    """Twenty requests at once for the tokens of a million characters, next to short texts to embed."""
    with Server() as server:
        before = largest = server.resident_mb()
        seconds: list[float] = []
        with ThreadPoolExecutor(20) as pool:
            content = {"inputs": "a b c d " * 125_000}
            attacks = [pool.submit(server.ask, "POST", "/tokenize", content, 120) for _ in range(20)]
            while not all(one.done() for one in attacks):
                began = time.monotonic()
                status, _ = server.ask("POST", "/v1/embeddings", {"input": "bees"})
                seconds.append(time.monotonic() - began if status == 200 else 60.0)
                largest = max(largest, server.resident_mb())
                time.sleep(0.05)
            statuses = Counter(one.result()[0] for one in attacks)
    grown = round(largest - before, 1)
    figures = {"tokenize": dict(statuses), "slowest embedding s": round(max(seconds), 2), "grown MB": grown}
    return figures, max(seconds) < 5 and grown < 1000


def guesses() -> tuple[Figures, bool]:
    """Wrong keys without pause, on eight connections, next to a client with a valid key."""
    with Server() as server:
        until, statuses, seconds = time.monotonic() + 5, Counter[int](), list[float]()
        server.ask("GET", "/v1/models")

        def guess(number: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            while time.monotonic() < until:
                connection.request("GET", "/v1/models", headers={"authorization": f"Bearer guess-{number}"})
                answer = connection.getresponse()
                answer.read()
                statuses[answer.status] += 1
            connection.close()

        with ThreadPoolExecutor(8) as pool:
            attacks = [pool.submit(guess, number) for number in range(8)]
            good = Counter[int]()
            while time.monotonic() < until:
                began = time.monotonic()
                good[server.ask("GET", "/v1/models")[0]] += 1
                seconds.append(time.monotonic() - began)
            for one in attacks:
                one.result()
    figures = {"guesses": dict(statuses), "good client": dict(good), "slowest s": round(max(seconds), 2)}
    return figures, set(statuses) == {401} and set(good) == {200}


def shapes() -> tuple[Figures, bool]:
    """Bodies of 8 MB with as many values as fit, next to a client that asks whether the server lives."""
    units = {"lists": b"[],", "texts": b'["a"],', "numbers": b"1.5,", "objects": b"{},"}
    slowest: dict[str, float] = {}
    with Server() as server, ThreadPoolExecutor(1) as pool:
        for name, unit in units.items():
            body = b'{"input":[0,' + unit * (8_000_000 // len(unit)) + b"0]}"
            attack = pool.submit(server.open, head("POST", "/v1/embeddings", len(body)) + body)
            slowest[name] = 0.0
            for _ in range(100):
                began = time.monotonic()
                server.ask("GET", "/health/live")
                slowest[name] = max(slowest[name], round(time.monotonic() - began, 2))
            attack.result().close()
    return {"slowest s": slowest}, max(slowest.values()) < 1


def pipelined() -> tuple[Figures, bool]:
    """Connections that each send 10,000 requests without waiting for answers."""
    request = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with Server() as server:
        before = server.resident_mb()
        slow = {"input": [" ".join(WORDS * 4)] * 2000, "dimensions": 1}
        many = [whole("/v1/embeddings", slow) + request * 10_000]
        until, grown = time.monotonic() + 8, 0.0
        with ThreadPoolExecutor(51) as pool:
            attacks = [pool.submit(server.open, one) for one in many * 50]
            while time.monotonic() < until:
                time.sleep(0.05)
                grown = max(grown, round(server.resident_mb() - before, 1))
        connections = [attack.result() for attack in attacks if attack.exception() is None]
        good = [server.ask("GET", "/v1/models")[0] for _ in range(20)]
        del connections
    return {"grown MB": grown, "good client": dict(Counter(good))}, grown < 150 and set(good) == {200}


def writes() -> tuple[Figures, bool]:
    """Upserts large enough to trigger merges of an approximate index, with a request for maps after each."""
    with (
        collection("hnsw", DOCUMENTS // 2) as folder,
        Server("--collection", folder, "--allow-writes") as server,
    ):
        upserts, maps = [], []
        for write in range(16):
            documents = [{"id": f"new-{write}-{n}", "text": f"{n} {' '.join(WORDS[:4])}"} for n in range(1000)]
            began = time.monotonic()
            server.ask("POST", "/v1/documents", {"documents": documents})
            upserts.append(time.monotonic() - began)
            began = time.monotonic()
            server.ask("GET", "/v1/collection/map")
            maps.append(time.monotonic() - began)
    middle = sorted(upserts)[len(upserts) // 2]
    figures = {"median upsert s": middle, "slowest upsert s": max(upserts), "slowest map s": max(maps)}
    held = max(upserts) < 2 + 3 * middle and max(maps) < 2
    return {name: round(value, 2) for name, value in figures.items()}, held


def stop() -> tuple[Figures, bool]:
    """SIGTERM under load, ten times: outcomes of requests, and results of a readiness probe."""
    outcomes: Counter[str] = Counter()
    probes: Counter[str] = Counter()
    for _ in range(10):
        one_stop(outcomes, probes)
    lost = outcomes["reset"] + outcomes["closed without an answer"]
    return {"requests": dict(outcomes), "probes after SIGTERM": dict(probes)}, lost == 0 and probes["503"] > 0


def one_stop(outcomes: Counter[str], probes: Counter[str]) -> None:
    """64 clients with persistent connections, some with 1,000 texts, while the server shuts down."""
    with Server() as server:
        threads = [threading.Thread(target=client, args=(server, number, outcomes)) for number in range(64)]
        for thread in threads:
            thread.start()
        time.sleep(2)
        server.process.send_signal(signal.SIGTERM)
        while server.process.poll() is None:
            status, _ = server.ask("GET", "/health/ready", timeout=5)
            probes[str(status) if status else "refused"] += 1
            time.sleep(0.05)
        for thread in threads:
            thread.join()


def client(server: Server, number: int, outcomes: Counter[str]) -> None:
    """Send requests on one connection, reconnecting when the server closes it, until connections are refused."""
    body = json.dumps({"input": [" ".join(WORDS[:6])] * (1000 if number % 8 == 0 else 1)})
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    while True:
        try:
            if connection.sock is None:
                connection.connect()
        except OSError:
            outcomes["refused to connect"] += 1
            return
        try:
            connection.request("POST", "/v1/embeddings", body, headers)
            status = connection.getresponse()
            status.read()
            outcomes[str(status.status)] += 1
        except ConnectionError as error:
            outcomes[
                "closed without an answer" if isinstance(error, http.client.RemoteDisconnected) else "reset"
            ] += 1
            return


@contextlib.contextmanager
def collection(index: str = "exact", count: int = DOCUMENTS) -> Iterator[str]:
    """Create a collection of documents with metadata, and yield its path."""
    from embedkit import Collection, Encoder  # noqa: PLC0415 - the clients need nothing of it

    generator = random.Random(0)
    documents = [
        {"id": str(n), "text": " ".join(generator.choices(WORDS, k=40)), "number": n % 10} for n in range(count)
    ]
    with tempfile.TemporaryDirectory() as name:
        path = f"{name}/idx"
        encoder = Encoder.load("tiny")
        Collection.build(documents, encoder=encoder, path=path, index=index, show_progress_bar=False)
        yield path


def write_reranker(folder: Path) -> Path:
    """Write a cross-encoder with random weights."""
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast  # noqa: PLC0415

    from embedkit.export.pipeline import export_source  # noqa: PLC0415
    from embedkit.runtime.bundle import read_bundle  # noqa: PLC0415
    from embedkit.runtime.find import find_model  # noqa: PLC0415

    shape = {
        "hidden_size": DIMENSION,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    }
    (folder / "tokenizer.json").write_text(read_bundle(find_model("tiny")).tokenizer_json, encoding="utf-8")
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **special).save_pretrained(
        folder / "cross"
    )
    BertForSequenceClassification(BertConfig(num_labels=1, **shape)).save_pretrained(folder / "cross")
    export_source(folder / "cross", folder / "cross.onnx", precision="fp32")
    return folder / "cross.onnx"


ATTACKS: dict[str, Callable[[], tuple[Figures, bool]]] = {
    "keyless": keyless,
    "idle": idle,
    "slow": slow,
    "endless-headers": endless_headers,
    "unread": unread,
    "searches": searches,
    "filters": filters,
    "tokens": tokens,
    "guesses": guesses,
    "shapes": shapes,
    "pipelined": pipelined,
    "writes": writes,
    "stop": stop,
}


def main() -> None:
    """Run the requested attacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS], default=[])
    broken = 0
    for name in parser.parse_args().attacks or ATTACKS:
        figures, held = ATTACKS[name]()
        broken += not held
        print(json.dumps({"attack": name, "held": held, **figures}), flush=True)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
