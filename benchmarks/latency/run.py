"""Students and large teachers on a CPU: latency, throughput, size and, for trained models, quality.

    python benchmarks/latency/run.py --teacher FOLDER --data DIR

tiny, mini and small are timed as they are and in fp32, with the weights of the int8 bundle. --teacher is
all-MiniLM-L6-v2 and is exported in both precisions. BERT-Base and Large have random weights, for timing only. With
--data, STS sets are scored with the files that are timed. All are timed with one thread and with two; use an idle
machine. Needs 12 GB of memory and 2 GB for temporary files. Writes results.md and .json next to this file, and
results.html with charts, which the repository does not keep.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from embedkit import Encoder
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.speed.plan import Plan
from embedkit.evaluation.speed.process import Candidate
from embedkit.evaluation.speed.rounds import measure
from embedkit.evaluation.tasks import evaluate
from embedkit.export.pipeline import export, export_source
from embedkit.export.untrained import bert_tokenizer, write_untrained
from embedkit.modeling.bundles import from_bundle
from embedkit.modeling.sizes import ARCHITECTURES
from embedkit.reporting.speed_page import write_speed_page
from embedkit.runtime.location import find_model

HERE = Path(__file__).parent
PRECISIONS = ("int8", "fp32")
UNTRAINED = ("bert-base", "bert-large")
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
    parser.add_argument("--untrained", nargs="*", choices=ARCHITECTURES, default=UNTRAINED, metavar="NAME")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "results.html")
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
    title = "Students and teachers on a CPU"
    for path in write_speed_page(reports, output, evaluations=evaluations, title=title):
        print(path)


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


def write_all_untrained(names: tuple[str, ...]) -> Iterator[Candidate]:
    """Yield graphs of architectures with random weights."""
    tokenizer = bert_tokenizer()
    for name in names:
        for precision in PRECISIONS:
            logger.info("writing %s, %s", name, precision)
            path = Path(f"{name}-{precision}")
            write_untrained(ARCHITECTURES[name], tokenizer, path, precision=precision)
            yield Candidate(source=str(path), name=name, precision=precision, note=NOTE)


if __name__ == "__main__":
    main()
