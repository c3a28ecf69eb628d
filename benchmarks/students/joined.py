"""Changes to students of the joined teachers, one at a time, in short runs.

    python benchmarks/students/joined.py --data DIR --teachers BGE MINILM --reranker RERANKER --seeds 1000 1001

A row is a run of one of the family's recipes with few steps and one change; its group's first row has none. Rows
of the last stage go on from the bundled `tiny`, in its space, at a quarter of the rate, on a third of the text;
lists are those of ranking.py, with a tenth of the queries held out, but all of `tiny` learns from them. Models are
scored in int8 with float32 words, on held-out text and on development sets; no test set is read. Results are saved
after every run, and a later call continues with the missing ones. Writes joined.json and joined.md next to this
file.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from development import InInt8, load_sets, score
from ranking import HELD_OUT, RECIPES, Row, agreement, divergence, embed, load_pairs
from torch import Tensor, nn
from trial import Trial

from embedkit.atomic import atomic_file
from embedkit.config import from_mapping, load_toml, setting
from embedkit.modeling.bundles import load_sentence_encoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.runtime.tokenization import Tokens
from embedkit.training.batches import chunk_view
from embedkit.training.config import RunConfig
from embedkit.training.loop import Control
from embedkit.training.method import Batch, StepOutput, pooled, unit_embeddings
from embedkit.training.methods import METHODS
from embedkit.training.methods.sct import SCTDistillation, SCTDistillationConfig
from embedkit.training.mining import Pairs
from embedkit.training.networks import round_tables
from embedkit.training.recipes.run import resolve
from embedkit.training.recipes.stage import HeldOut, Materials, Stage, prepare
from embedkit.training.run_folder import RunFolder
from embedkit.training.students import build_student

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
QUERIES, TOKENS = 8, 112  # queries in a batch, tokens of a candidate
LONGEST = 20_000  # lines of sources without a limit, of which a share is read
CHECKPOINTS = (0.8, 0.85, 0.9, 0.95, 1.0)  # shares of a run, after which weights are averaged


@dataclasses.dataclass(frozen=True)
class Change:
    """What a row changes.

    Attributes:
        settings: setting, such as ``optim.lr``, to its value.
        layers: layers that the student starts from, instead of the recipe's model, and where they are: a bundle
            in models/, or the number of a teacher.
        refitted: whether the layers are fitted by ridge regression to make up for those omitted, as `start =
            "layers"` does, or are taken unchanged.
        third: a model that is joined as a third teacher.
        averaged: whether the mean of the last checkpoints' weights is scored too.
    """

    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layers: tuple[str | int, list[int]] | None = None
    refitted: bool = True
    third: str | None = None
    averaged: bool = False


@dataclasses.dataclass(frozen=True)
class Group:
    """Rows that are compared.

    Attributes:
        recipe: name of the recipe.
        rows: changes to it, by name.
        steps: optimizer steps of each run.
        share: number by which the limit of each source is divided.
        space: space of the teachers, instead of one that is computed.
    """

    recipe: str
    rows: Mapping[str, Change]
    steps: int = 80
    share: int = 1
    space: str | None = None


LAST = {"student.source": str(REPOSITORY / "embedkit" / "bundled" / "tiny.onnx"), "optim.lr": 5e-4}
EVERY_FOURTH = 0, [4, 8, 12]
GROUPS: dict[str, Group] = {
    "a last stage of `tiny`": Group(
        "tiny",
        {
            "vectors alone": Change(LAST),
            "lists, a third of the weight": Change({**LAST, "settings.lists": 0.3}),
        },
        steps=600,
        share=3,
        space=str(REPOSITORY / "models" / "space.npz"),
    ),
    "`tiny` from `tiny-minilm`": Group(
        "tiny",
        {
            "the recipe": Change(averaged=True),
            "spread, weight 10": Change({"settings.spread": 10.0}),
        },
    ),
    "`tiny` from layers": Group(
        "tiny",
        {
            "layers 1 and 2 of `mini-minilm`": Change(layers=("mini-minilm", [1, 2])),
            "layers 1 and 12 of bge-small-en-v1.5": Change(layers=(0, [1, 12])),
        },
    ),
    "`static` from `static-minilm`": Group(
        "static",
        {
            "the recipe": Change(),
            "`static` as a third teacher": Change(third="models/static.onnx"),
        },
    ),
    "`small` from layers": Group(
        "small",
        {
            "the recipe": Change(),
            "layers 4, 8, 12 of bge-small-en-v1.5": Change(layers=EVERY_FOURTH, refitted=False),
            "the same, half the rate": Change({"optim.lr": 5e-4}, EVERY_FOURTH, refitted=False),
            "the same, refitted": Change(layers=EVERY_FOURTH),
            "layers 1, 3, 6 of all-MiniLM-L6-v2": Change(layers=(1, [1, 3, 6]), refitted=False),
        },
        steps=160,
    ),
}
SHAPES = {
    "tiny": {"layers": 2, "hidden": 192, "inner": 384, "memory": 128},
    "small": {"layers": 3, "hidden": 384, "inner": 1408},
}
LAYERED = {"start": "layers", "word_table": "int4", "max_length": 256, "dropout": 0.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtendedConfig(SCTDistillationConfig):
    """Settings of the recipes' method and of what is tried beside it."""

    spread: float = setting(0.0, "weight of the mean squared cosine of different texts of a batch", minimum=0)
    lists: float = setting(0.0, "weight of the loss of lists", minimum=0)
    checkpoints: tuple[int, ...] = setting((), "steps whose weights are averaged")
    mean: str = setting("", "folder of the model with the mean weights")


class Extended(SCTDistillation):
    """The recipes' method with losses added."""

    settings_class: ClassVar[type[Any]] = ExtendedConfig
    config: ExtendedConfig
    pairs: ClassVar[Pairs | None] = None

    def __init__(
        self, encoder: SentenceEncoder, config: ExtendedConfig, *, seed: int, teacher_dimensions: Sequence[int]
    ) -> None:
        super().__init__(encoder, config, seed=seed, teacher_dimensions=teacher_dimensions)
        self._seed, self._step, self._sums = seed, 0, list[Tensor]()

    def distil(self, batch: Batch, embeddings: Sequence[Tensor]) -> StepOutput:
        """Return the recipes' loss and what is added."""
        output = super().distil(batch, embeddings)
        loss, rows = output.loss, unit_embeddings(self.encoder, embeddings[0])
        with torch.autocast(rows.device.type, enabled=False):
            if self.config.spread:
                loss = loss + self.config.spread * spread(rows)
        if self.config.lists:
            loss = loss + self.config.lists * self._rank()
        return dataclasses.replace(output, loss=loss)

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Fill the queues, and average the checkpoints."""
        super().after_step(outputs)
        self._step += 1
        if self._step in self.config.checkpoints:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        weights = list(self.encoder.parameters())
        copies = [weight.clone() for weight in weights]
        totals = self._sums or [torch.zeros_like(copy) for copy in copies]
        self._sums = [total + copy for total, copy in zip(totals, copies, strict=True)]
        if self._step == self.config.checkpoints[-1]:
            for weight, total in zip(weights, self._sums, strict=True):
                weight.copy_(total / len(self.config.checkpoints))
            self.encoder.save(Path(self.config.mean))
            for weight, copy in zip(weights, copies, strict=True):
                weight.copy_(copy)

    def _rank(self) -> Tensor:
        """Return the loss of the lists of a step's queries."""
        assert self.pairs is not None
        learned = np.flatnonzero(np.arange(len(self.pairs.queries)) % HELD_OUT)
        rows = np.random.default_rng([self._seed, self._step]).choice(learned, QUERIES, replace=False)
        scores = torch.from_numpy(self.pairs.scores[rows])
        queries = self._embed(self.pairs.queries.texts(rows))
        candidates = self.pairs.passages.texts(self.pairs.candidates[rows].ravel())
        passages = self._embed(candidates).view(*scores.shape, -1)
        with torch.autocast(queries.device.type, enabled=False):
            return divergence(torch.einsum("qd,qcd->qc", queries, passages), scores, Row())

    def _embed(self, texts: list[str]) -> Tensor:
        tokenizer = self.encoder.tokenizer.with_max_length(TOKENS)
        view = chunk_view(Tokens(tokenizer.tokenize(texts).ids, []), tokenizer.pad_id)
        return unit_embeddings(self.encoder, pooled(self.encoder, view))


METHODS["extended"] = Extended


def spread(rows: Tensor) -> Tensor:
    """The mean squared cosine of different rows ``(B, D)``, as in EmbeddingGemma (arXiv 2509.20354)."""
    squares = (rows @ rows.T).square()
    return (squares.sum() - squares.diagonal().sum()) / (len(rows) * (len(rows) - 1))


def take_layers(source: str, layers: Sequence[int], folder: Path) -> str:
    """Write an encoder of some of a BERT encoder's layers, counted from 1, to a folder, and return that."""
    encoder = load_sentence_encoder(source)
    network: Any = encoder.backbone
    network.encoder.layer = nn.ModuleList([network.encoder.layer[number - 1] for number in layers])
    network.config.num_hidden_layers = len(layers)
    encoder.pooling = "mean"
    encoder.save(folder)
    return str(folder)


def main() -> None:
    """Train the runs missing in joined.json, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of text and evaluation sets")
    parser.add_argument("--text", help="folder of the text of recipes/english-quarter.toml; default: --data")
    parser.add_argument("--teachers", nargs=2, required=True, metavar="MODEL", help="of the recipe, also bundles")
    parser.add_argument("--reranker", required=True, help="ms-marco-MiniLM-L12-v2, also as a bundle")
    parser.add_argument("--cache", default=".embedkit-cache", help="text, vectors, candidates and scores")
    parser.add_argument("--runs", type=Path, default=Path("runs/joined"), help="run folders")
    parser.add_argument("--groups", nargs="+", type=int, default=[*range(1, len(GROUPS) + 1)], help="numbers")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="rows of these groups; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1000])
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    saved = HERE / "joined.json"
    report: dict[str, Any] = json.loads(saved.read_text(encoding="utf-8")) if saved.exists() else {}
    bench = Bench(arguments)
    names = list(GROUPS)
    for group in (names[number - 1] for number in arguments.groups):
        steps = GROUPS[group].steps
        found = report.setdefault(group, {"steps": steps, "rows": {}})
        if found["steps"] != steps:
            parser.error(f"{group} has {found['steps']} steps in {saved}: move it away")
        rows = found["rows"]
        for name in GROUPS[group].rows:
            for seed in arguments.seeds if arguments.rows is None or name in arguments.rows else ():
                if str(seed) in rows.get(name, {}):
                    continue
                for shown, figures in bench.run(group, name, seed).items():
                    rows.setdefault(shown, {})[str(seed)] = figures
                    print(group, shown, seed, figures, flush=True)
                with atomic_file(saved) as temporary:
                    temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
                (HERE / "joined.md").write_text(tables(report), encoding="utf-8")


class Bench:
    """Trains and scores rows; what they share is loaded once."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.sets = load_sets(arguments.data)
        self.materials = functools.cache(self._materials)

    @functools.cached_property
    def pairs(self) -> Pairs:
        """Queries and candidates with the cross-encoder's scores."""
        return load_pairs(self.arguments.data, self.arguments.cache, self.arguments.reranker)

    def run(self, group: str, name: str, seed: int) -> dict[str, dict[str, float]]:
        """Return the figures of a row, and those of its mean weights if they are asked for."""
        change = GROUPS[group].rows[name]
        folder = self.arguments.runs / "".join(letter if letter.isalnum() else "-" for letter in f"{group} {name}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config = self.configure(GROUPS[group], change, seed, folder)
        settings = from_mapping(ExtendedConfig, config.settings)
        Extended.pairs = self.pairs if settings.lists else None
        materials = self.materials(change.third, GROUPS[group].share, GROUPS[group].space)
        stage = Stage(config, materials, RunFolder(folder), Control(show_progress=False))
        stage.train(config.method, settings, build_student(config))
        models = {name: SentenceEncoder.load(stage.folder.model)}
        if change.averaged:
            models[f"{name}, mean of five checkpoints"] = averaged = SentenceEncoder.load(folder / "mean")
            round_tables(averaged)
        ranked = change.settings.get("student.source") == LAST["student.source"]
        held_out = None if change.third else materials  # a third teacher has other vectors
        return {shown: self.score(model, held_out, ranked=ranked) for shown, model in models.items()}

    def configure(self, group: Group, change: Change, seed: int, folder: Path) -> RunConfig:
        """Return the recipe of a group with a change."""
        paths = [RECIPES / "english-quarter.toml", RECIPES / f"{group.recipe}.toml"]
        sources, written = self.arguments.teachers, load_toml(paths[1])
        teachers = [{**each, "source": source} for each, source in zip(written["teachers"], sources, strict=True)]
        if change.third:
            named = {"source": str(REPOSITORY / change.third), "name": Path(change.third).stem, "dtype": "float16"}
            teachers.append(named)
        student = {**written["student"], "source": str(REPOSITORY / written["student"]["source"])}
        if change.layers:
            model, layers = change.layers
            source = sources[model] if isinstance(model, int) else str(REPOSITORY / "models" / f"{model}.onnx")
            if change.refitted:
                student = {**LAYERED, **SHAPES[group.recipe], "tokenizer": source, "teacher_layers": layers}
            else:
                student = {**student, "source": take_layers(source, layers, folder / "start")}
        changes: dict[str, Any] = {
            "method": "extended",
            "seed": seed,
            "cache": self.arguments.cache,
            "student": student,
            "teachers": teachers,
            **({"join": {"space": group.space}} if group.space else {"join.weights": [1.0] * len(teachers)}),
            "optim.steps": group.steps,
            "dev.every": group.steps,
        }
        if change.averaged:
            changes["settings.mean"] = str(folder / "mean")
            changes["settings.checkpoints"] = [round(share * group.steps) for share in CHECKPOINTS]
        data = Path(self.arguments.text or self.arguments.data)
        mapping = Trial(paths, {**changes, **change.settings}, data, folder).mapping
        if group.share > 1:
            limited = [{**each, "limit": each.get("limit", LONGEST) // group.share} for each in mapping["corpus"]]
            mapping = {**mapping, "corpus": limited}
        return resolve(mapping)

    def score(self, model: SentenceEncoder, materials: Materials | None, *, ranked: bool) -> dict[str, float]:
        """Score a model on held-out text of materials, on development sets and, if asked to, on held-out lists."""
        encoder = InInt8(model)
        figures = dict[str, float]()
        if materials is not None:
            held_out = HeldOut(materials.corpus, materials.split.held_out, materials.teachers[0])
            distances = held_out.distances(encoder)
            figures["held-out cosine"] = 100 * (1 - float(np.mean(list(distances.values()))))
        figures |= score(encoder, self.sets)
        if ranked:
            lists = embed(self.pairs, np.arange(0, len(self.pairs.queries), HELD_OUT), encoder.encode)
            figures |= agreement(lists, torch.eye(encoder.dimension))
        return figures

    def _materials(self, third: str | None, share: int, space: str | None) -> Materials:
        group = Group("tiny", {}, share=share, space=space)
        return prepare(self.configure(group, Change(third=third), 0, Path()), Control(), teacher=True)


def tables(report: dict[str, Any]) -> str:
    """Return a table for each group: the mean and deviation of its first row, and differences from it."""
    lines = [
        "Scores x 100. The first row of a table has the mean over seeds and, for several, the standard deviation;",
        "other rows are mean differences from it over the same seeds. `same order` is the share of pairs of a",
        "held-out query's candidates that embeddings order as the cross-encoder does.",
    ]
    for group, found in report.items():
        rows = found["rows"]
        base = next(iter(rows.values()))
        columns = list(next(iter(base.values())))
        heading = f"| {group}, {found['steps']} steps | seeds | {' | '.join(columns)} |"
        lines += ["", heading, "|---|" + "---:|" * (len(columns) + 1)]
        for name, runs in rows.items():
            seeds = [seed for seed in runs if seed in base]
            cells = [_cell(runs, base, seeds, column) for column in columns]
            lines.append(f"| {name} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(runs: dict[str, Any], base: dict[str, Any], seeds: list[str], column: str) -> str:
    if any(column not in runs[seed] for seed in seeds):
        return ""
    values = np.array([runs[seed][column] for seed in seeds])
    if runs is not base:
        return f"{np.mean(values - [base[seed][column] for seed in seeds]):+.2f}"
    return f"{values.mean():.2f}" + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
