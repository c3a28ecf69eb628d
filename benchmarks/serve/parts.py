"""Processor time of the parts of a request that are more than its HTTP: tokens, embeddings, JSON.

    python benchmarks/serve/parts.py --texts texts.txt

Prints the least of many tries in µs, for 1 and 16 texts. What a server takes beyond their sum (versions.py) is for
sockets, HTTP, scheduling and the log.
"""

from __future__ import annotations

import argparse
import base64
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from embedkit import Encoder
from embedkit.serving.http.protocols.openai import EmbeddingsRequest

TRIES = 200


def least_us(work: Callable[[], object]) -> float:
    """Return the least processor time of many tries in µs."""
    found = []
    for _ in range(TRIES):
        began = time.process_time_ns()
        work()
        found.append(time.process_time_ns() - began)
    return min(found) / 1e3


def main() -> None:
    """Time the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--texts", required=True, type=Path, help="one text per line")
    arguments = parser.parse_args()
    encoder = Encoder.load(arguments.model, threads=1)
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    print("| texts | reading the request | tokens | tokens and embeddings | JSON of numbers | base64 |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for count in (1, 16):
        texts = lines[:count]
        body = orjson.dumps({"input": texts, "model": arguments.model})
        rows = encoder.encode(texts)
        data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
        parts = (
            lambda body=body: EmbeddingsRequest.model_validate_json(body),
            lambda texts=texts: encoder.tokenize(texts),
            lambda texts=texts: encoder.encode(texts),
            lambda data=data: orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY),
            lambda rows=rows: [base64.b64encode(row.tobytes()) for row in rows],
        )
        print(f"| {count} | {' | '.join(f'{least_us(part):.0f}' for part in parts)} |")


if __name__ == "__main__":
    main()
