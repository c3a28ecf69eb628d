"""Students and large teachers on a CPU: latency, throughput, size and, for trained models, quality.

    python benchmarks/latency/run.py --teacher FOLDER --data DIR

tiny, mini and small are timed as they are and in fp32, with the weights of the int8 bundle. --teacher is
all-MiniLM-L6-v2 and is exported in both precisions. BERT-Base and Large have random weights, for timing only. With
--data, STS sets are scored with the files that are timed. All are timed with one thread and with two; use an idle
machine. Needs 12 GB of memory and 2 GB for temporary files. Writes results.md and results.json next to this file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from embedkit import Encoder
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.comparison import match_by_fingerprint, quality_table
from embedkit.evaluation.speed.figures import to_markdown
from embedkit.evaluation.speed.measure import Candidate, measure
from embedkit.evaluation.speed.plan import Plan
from embedkit.evaluation.tasks import evaluate
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import export, export_source
from embedkit.export.quantize import Int8Arithmetic, largest_weight
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.bundles import from_bundle
from embedkit.modeling.initialisation import Size, random
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.find import find_model
from embedkit.runtime.tokenization import Tokenizer

HERE = Path(__file__).parent
PRECISIONS = ("int8", "fp32")
UNTRAINED = {"bert-base": Size(12, 768, 12), "bert-large": Size(24, 1024, 16)}
MAX_LENGTH = 512
MODELS = HERE.parents[1] / "models"
STUDENTS = {"tiny": "tiny", "mini": str(MODELS / "mini.onnx"), "small": str(MODELS / "small.onnx")}
NOTE = "random weights, for timing only"

logger = logging.getLogger("embedkit")


def main() -> None:
    """Export, evaluate, time, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="model folder of all-MiniLM-L6-v2")
    parser.add_argument("--data", type=Path, help="folder of the STS test sets; without it there is no quality")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.15, help="of a turn")
    parser.add_argument("--untrained", nargs="*", choices=UNTRAINED, default=[*UNTRAINED], metavar="NAME")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results.md")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    data = arguments.data.resolve() if arguments.data else None
    task = load_task("sts", data=data) if data else None
    teacher, output = (Path(each).resolve() for each in (arguments.teacher, arguments.output))
    # Relative file names keep temporary folders out of the results.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        trained = list(export_trained(teacher))
        untrained = list(write_all_untrained(arguments.untrained))
        reports = []
        for threads in arguments.threads:
            plan = Plan(
                threads=threads,
                rounds=arguments.rounds,
                seconds=arguments.seconds,
                starts=1,
                patience_seconds=1.0,
                batches=(1, 8, 32),
            )
            reports.append(measure([*trained, *untrained], plan))
        found = [evaluate(Encoder.load(each.source), task).to_json() for each in trained if task]
    evaluations = json.loads(json.dumps(found).replace(str(data), "DATA"))
    quality = match_by_fingerprint(
        {model.label: model.about["fingerprint"] for model in reports[0].models}, evaluations
    )
    text = to_markdown(reports, "Students and teachers on a CPU")
    if quality:
        text += f"\n{quality_table(quality, [model.label for model in reports[0].models]).to_markdown()}\n"
    output.write_text(text, encoding="utf-8")
    content = {"reports": [report.to_json() for report in reports], "evaluations": evaluations}
    output.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def export_trained(teacher: Path) -> Iterator[Candidate]:
    """Yield the students, and bundles exported with all gates: the same weights in fp32, and the teacher."""
    for name, source in STUDENTS.items():
        bundle = Path(f"{name}.onnx")
        shutil.copy(find_model(source), bundle)
        yield Candidate(source=str(bundle))
        path = Path(f"{name}-fp32.onnx")
        export(from_bundle(bundle), path, precision="fp32")
        yield Candidate(source=str(path))
    for precision in PRECISIONS:
        path = Path(f"minilm-l6-{precision}.onnx")
        export_source(str(teacher), path, precision=precision, name="minilm-l6")
        yield Candidate(source=str(path))


def write_all_untrained(names: Iterable[str]) -> Iterator[Candidate]:
    """Yield folders with graphs of random weights: the cost of a network depends on its shape alone."""
    tokenizer = Tokenizer(read_bundle(find_model("tiny")).tokenizer_json, MAX_LENGTH)
    for name in names:
        model = random(tokenizer, UNTRAINED[name], max_length=MAX_LENGTH, seed=0)
        for precision in PRECISIONS:
            logger.info("writing %s, %s", name, precision)
            folder = Path(f"{name}-{precision}")
            folder.mkdir()
            arithmetic = FloatArithmetic() if precision == "fp32" else Int8Arithmetic(largest_weight("cpu-avx2"))
            (folder / "model.onnx").write_bytes(build_graph(model, arithmetic).SerializeToString())
            (folder / "tokenizer.json").write_text(tokenizer.json, encoding="utf-8")
            lengths = {"hidden_size": UNTRAINED[name].hidden, "max_position_embeddings": MAX_LENGTH}
            (folder / "config.json").write_text(json.dumps(lengths), encoding="utf-8")
            yield Candidate(source=str(folder), name=name, precision=precision, note=NOTE)


if __name__ == "__main__":
    main()
