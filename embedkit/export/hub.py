"""Bundles as repositories of the Hugging Face hub, and their upload.

::

    onnx/model.onnx                           the bundle itself
    config.json                               its kind, for libraries that ask before they load a graph
    tokenizer.json, tokenizer_config.json     for transformers.js, which reads no metadata of a graph
    README.md                                 the model card

``Encoder.load("org/name")`` and transformers.js load such a repository.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, ModelCardData

from embedkit.atomic import atomic_folder
from embedkit.errors import ExportError, first_line
from embedkit.export.figures import describe_figures
from embedkit.modeling.vocabulary import write_tokenizer
from embedkit.runtime.bundle import Bundle, read_bundle
from embedkit.runtime.find import find_model, is_hub_id
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.model import BUNDLE_FOLDER_KEY
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

_REQUIRED = ("README.md", "onnx/model.onnx")
_TASKS = {"encoder": "sentence-similarity", "cross-encoder": "text-ranking"}
_USES = {
    "encoder": """```python
from embedkit import Encoder

encoder = Encoder.load("{name}")
embeddings = encoder.encode(["a text", "another"])  # (2, {dimension}) float32, unit rows
```

```js
import {{ AutoModel, AutoTokenizer }} from "@huggingface/transformers";

const tokenizer = await AutoTokenizer.from_pretrained("{name}");
const model = await AutoModel.from_pretrained("{name}");
const inputs = tokenizer(["a text", "another"], {{ padding: true, truncation: true }});
const {{ sentence_embedding }} = await model(inputs); // pooled, unit rows
```""",
    "cross-encoder": """```python
from embedkit import CrossEncoder

scores = CrossEncoder.load("{name}").predict([("a query", "a document")])  # (1,) float32
```""",
}


def save_repository(bundle: Bundle, folder: Path, *, repository: str = "", card: str = "") -> None:
    """Write the files of a repository; an older folder is replaced once the new one is complete.

    The model card's code loads ``repository``, ``org/name``, or the bundle's name. Its text is ``card``, in
    Markdown, or else the manifest's facts and gates.

    Raises:
        StorageError: the folder cannot be written.
    """
    manifest = bundle.manifest
    tokenizer_class = Tokenizer if manifest.kind == "encoder" else PairTokenizer
    tokenizer = tokenizer_class(bundle.tokenizer_json, manifest.max_length)
    with atomic_folder(folder) as temporary:
        (temporary / "onnx").mkdir()
        (temporary / "onnx" / "model.onnx").write_bytes(bundle.model)
        write_tokenizer(temporary, tokenizer)
        config = _describe(manifest, tokenizer)
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        text = model_card({"onnx/model.onnx": manifest}, "embedkit", name=repository or manifest.name, body=card)
        (temporary / "README.md").write_text(text, encoding="utf-8")


def push(
    source: str,
    repository: str,
    *,
    card: str = "",
    private: bool = False,
    revision: str | None = None,
    message: str | None = None,
    api: HfApi | None = None,
) -> str:
    """Upload a bundle, or a folder that is already laid out as a repository, and return its address.

    Args:
        source: the file or name of a bundle, or a folder with ``README.md`` and ``onnx/model.onnx``.
        repository: ``org/name`` on the hub; created if it does not exist.
        card: see :func:`save_repository`.
        private: whether a new repository is private.
        revision: branch to commit to; the main branch if None.
        message: of the commit.
        api: client of the hub; None for one with the token of ``hf auth login`` or the variable ``HF_TOKEN``.

    Raises:
        ModelNotFoundError, BundleError: the source cannot be read.
        ExportError: ``repository`` is not ``org/name``, the folder is not a repository, or the hub refuses.
    """
    if not is_hub_id(repository):
        raise ExportError(f"expected a repository org/name, found {repository!r}")
    api = api or HfApi()
    path = find_model(source)
    with tempfile.TemporaryDirectory() as place:
        folder = path
        if not path.is_dir():
            folder = Path(place) / "repository"
            save_repository(read_bundle(path), folder, repository=repository, card=card)
        elif card:
            raise ExportError(
                f"card: the folder {path} is uploaded as it is, with its own README.md", parameters=["card"]
            )
        elif missing := [name for name in _REQUIRED if not (path / name).is_file()]:
            raise ExportError(
                f"{path} lacks {' and '.join(missing)}; push a bundle, or a folder of `embedkit export`"
            )
        _refuse_links(folder)
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            if revision is not None:
                api.create_branch(repository, branch=revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                revision=revision,
                commit_message=message or f"Upload {path.name} with embedkit",
            )
        except (OSError, ValueError) as error:  # the hub's own errors derive from these two
            raise ExportError(f"the hub rejected {source} as {repository}: {first_line(error)}") from error
    return str(commit.repo_url)


def _refuse_links(folder: Path) -> None:
    """Raise an ExportError if a link in a folder, which would be uploaded, leads outside of it."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise ExportError(f"{path} is a link to {path.resolve()}, outside of the folder; copy or remove it")


def model_card(graphs: Mapping[str, Manifest], library: str, *, name: str, body: str = "") -> str:
    """A model card: metadata of the hub, how to load the model, what it is, and what its gates measured.

    ``graphs`` maps each file of the repository to the manifest of the bundle that it holds or was made of;
    ``library`` loads the repository. The ``name`` is the title, and in code the model to load; Markdown text in
    ``body`` replaces the manifest's facts.
    """
    manifest = next(iter(graphs.values()))
    data = ModelCardData(
        library_name=library,
        pipeline_tag=_TASKS[manifest.kind],
        license=manifest.licence.lower() or None,
        base_model=manifest.base if is_hub_id(manifest.base) else None,
        tags=["embedkit", "feature-extraction", "onnx", "sentence-embeddings", "transformers.js"],
    )
    parts = [f"---\n{data.to_yaml()}\n---"]
    if body:
        parts.append(body.strip())
    else:
        facts = {
            "base": manifest.base,
            "method": manifest.method,
            "teacher": manifest.teacher.get("name", ""),
            "maximum length": f"{manifest.max_length} tokens",
            "created by": manifest.created_by,
        }
        parts += [f"# {name}", "\n".join(f"- {fact}: {value}" for fact, value in facts.items() if value)]
    if library == "embedkit":
        parts += ["## Use", _USES[manifest.kind].format(name=name, dimension=manifest.dimension)]
    for file, of_graph in graphs.items():
        gates = "\n".join(f"- {gate}: {describe_figures(figures)}" for gate, figures in of_graph.gates.items())
        parts += [f"## {file}", f"Precision {of_graph.precision}. Measured at export:", gates]
    return "\n\n".join(part for part in parts if part) + "\n"


def _describe(manifest: Manifest, tokenizer: Tokenizer | PairTokenizer) -> dict[str, Any]:
    """The ``config.json``: enough for libraries that ask for the kind of a model before they load its graph."""
    return {
        BUNDLE_FOLDER_KEY: 1,
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": tokenizer.vocabulary_size,
        "max_position_embeddings": manifest.max_length,
        "pad_token_id": tokenizer.pad_id,
        # Which file transformers.js loads: onnx/model.onnx, whatever the precision inside.
        "transformers.js_config": {"dtype": "fp32"},
    }
