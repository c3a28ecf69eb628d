"""Teachers of documents without labels, and their vectors in the space of the model that they teach.

Any encoders teach any model: their vectors are joined as in a run with ``[join]``, and turned so that they lie as
near to the model's own vectors as a rotation can bring them (orthogonal Procrustes; Schoenemann, 1966). Cosines
between the teachers' vectors stay, and the model forgets little.

A rotation that fits the documents alone turns all other text away from where the model had it, which is then
forgotten. So it also fits random words of the model's vocabulary, which stand for text in general. Before labels,
and with them, these words are trained on as well, towards the vectors that the model had for them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.atomic import atomic_file, file_signature
from embedkit.errors import ExportError, GateError
from embedkit.export.pipeline import export_source
from embedkit.modeling.cross_encoder import is_cross_encoder
from embedkit.protocols import FloatArray
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import find_folder, find_known, find_model, is_local
from embedkit.runtime.joined import JoinedSpace, side_by_side
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.options import unit_rows
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus, Rows, SourceConfig
from embedkit.training.teacher_spaces import principal_axes
from embedkit.training.teachers import TeacherConfig, TeacherVectors, load_vectors

logger = logging.getLogger("embedkit")

WORDS = "words.jsonl"
"""Texts of random words, beside the file of the vectors."""

_SAMPLE = 20_000  # texts
_ROUNDS = 6
_RANDOM_TEXTS = 4000
_RANDOM_WORDS = 3, 13
_HEAD = 20  # ranks by which Zipf's law is flattened, so that texts do not consist of function words
_FEWEST_WORDS = 100
_START = "\u2581", "\u0120"  # marks of the first piece of a word, in tokenizers that have one


def family(path: Path, manifest: Manifest) -> list[str]:
    """Return the teachers of a model's family that are on this machine.

    All teachers of the model itself, else ``small`` if it has the model's space, else none.
    """
    record = manifest.teacher.get("joined", manifest.teacher)
    names = [each["name"] for each in record.get("teachers", [record]) if "name" in each]
    known = [find_known(name) for name in names]
    if known and all(known):
        return [str(each) for each in known]
    if not is_local("small") or find_model("small") == path:
        return []
    space = Encoder.load("small").manifest.teacher.get("fingerprint")
    return ["small"] if space is not None and space == manifest.teacher.get("fingerprint") else []


def scores_pairs(source: str) -> bool:
    """Return whether a teacher is a cross-encoder.

    Raises:
        ModelNotFoundError, BundleError: the teacher cannot be found or read.
    """
    if is_local(source) and not Path(source).is_dir():
        return read_bundle(find_model(source)).manifest.kind == "cross-encoder"
    return is_cross_encoder(find_folder(source))


def as_bundle(source: str, cache: Path) -> str:
    """Return an int8 bundle of a teacher, which encodes several times as fast, or its folder if it has none."""
    if is_local(source) and not Path(source).is_dir():
        return str(find_model(source))
    folder = find_folder(source).resolve()
    files = [(str(path), file_signature(path)) for path in sorted(folder.rglob("*")) if path.is_file()]
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]  # a run trained again is another model
    bundle = cache / "teachers" / f"{folder.name}-{digest}.onnx"
    if not bundle.exists():
        logger.info("export %s to int8, in which it encodes faster", source)
        try:
            export_source(str(folder), bundle, precision="int8")
        except (ExportError, GateError) as error:
            logger.warning("%s is used as it is: %s", source, error)
            return str(folder)
    return str(bundle)


def table(teacher: str) -> dict[str, Any]:
    """Return the table of a run's teacher."""
    return {"source": teacher, "name": Path(teacher).name.removesuffix(".onnx"), "dtype": "float16"}


def random_texts(tokenizer_json: str) -> Iterator[str]:
    """Yield texts of random whole words of a vocabulary, whose order stands for their frequency (Zipf's law).

    A vocabulary without words yields nothing.
    """
    found = json.loads(tokenizer_json)["model"]["vocab"]
    pieces = sorted(found, key=found.__getitem__) if isinstance(found, dict) else [piece for piece, _ in found]
    marked = [piece[1:] for piece in pieces if piece.startswith(_START)]
    words = [word for word in marked or pieces if len(word) > 1 and word.isalpha()]
    if len(words) < _FEWEST_WORDS:
        return
    shares = np.cumsum(1 / (np.arange(len(words)) + _HEAD))
    shares /= shares[-1]
    generator = np.random.default_rng(0)
    for length in generator.integers(*_RANDOM_WORDS, _RANDOM_TEXTS):
        places = np.searchsorted(shares, generator.random(length), side="right")
        yield " ".join(words[place] for place in places)


def write_vectors(config: RunConfig, teachers: Sequence[TeacherConfig], student: Encoder, path: Path) -> None:
    """Write the vector that the student learns for each row of a run's text.

    For the first source it is the teachers', in a space as near as possible to the student's, which is fitted to
    these texts and to the random words in ``WORDS`` beside ``path``. For random words it is the student's own.

    Raises:
        ModelNotFoundError, ModelError: a teacher cannot be loaded.
        CacheError: the cache of vectors is damaged.
    """
    cache, words = Path(config.cache), path.with_name(WORDS)
    corpus = Corpus.prepare(config.sources, cache)
    vectors = [load_vectors(teacher, corpus, cache) for teacher in teachers]
    first, others = np.split(np.arange(len(corpus)), [corpus.cards[0].rows])
    samples = [_sample(student, corpus, vectors, first)]
    if words.stat().st_size:
        general = Corpus.prepare([SourceConfig(path=str(words))], cache)
        of_general = [load_vectors(teacher, general, cache) for teacher in teachers]
        samples.append(_sample(student, general, of_general, np.arange(len(general))))
    own, *theirs = (np.concatenate(parts) for parts in zip(*samples, strict=True))
    space = fit_space(theirs, own, config.every_teacher[0].name or "")
    learned = np.zeros((sum(card.read for card in corpus.cards), space.dimension), dtype=np.float32)
    learned[corpus.source_rows[first]] = space.join([part.read(first, 0) for part in vectors])
    learned[corpus.source_rows[others]] = student.encode_document(corpus.texts(others), show_progress_bar=False)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, learned)


def _sample(student: Encoder, corpus: Corpus, vectors: Sequence[TeacherVectors], rows: Rows) -> list[FloatArray]:
    """Return the vectors of some rows: the student's own, and each teacher's."""
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLE)).astype(np.int64))]
    own = student.encode_document(corpus.texts(rows), show_progress_bar=False)
    return [own, *(part.read(rows, 0) for part in vectors)]


def fit_space(vectors: Sequence[FloatArray], own: FloatArray, name: str) -> JoinedSpace:
    """Return the space that brings teachers' vectors of some texts, ``(N, D_i)``, nearest to ``own``, ``(N, D)``.

    The axes are principal components, turned by a rotation. The means that are taken off are those with which the
    means of both agree: centring on the texts' own mean would remove what they have in common.
    """
    means = [part.mean(axis=0) for part in vectors]
    space = _turned(vectors, means, own, name)
    for _ in range(_ROUNDS):
        apart = space.axes @ (own - space.join(vectors)).mean(axis=0)
        moved = np.split(apart, np.cumsum([part.shape[1] for part in vectors])[:-1])
        means = [mean - move for mean, move in zip(means, moved, strict=True)]
        space = _turned(vectors, means, own, name)
    return space


def _turned(vectors: Sequence[FloatArray], means: Sequence[FloatArray], own: FloatArray, name: str) -> JoinedSpace:
    """Return the space of principal components after the means are taken off, turned towards ``own``."""
    weights = np.ones(len(vectors), dtype=np.float32)
    rows = side_by_side(vectors, means, weights)
    axes = principal_axes(rows.T.astype(np.float64) @ rows / len(rows))[:, : own.shape[1]].astype(np.float32)
    left, _, right = np.linalg.svd(unit_rows(rows @ axes).T @ own, full_matrices=False)
    turned: FloatArray = (axes @ (left @ right)).astype(np.float32)
    return JoinedSpace(name=name, means=tuple(means), weights=weights, axes=turned)
