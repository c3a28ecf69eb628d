"""Describe the networks of bundles that were exported before bundles held a description, in place.

    python recipes/describe.py models/*.onnx embedkit/bundled/*.onnx

Each file gets the metadata entry ``embedkit.network``, and thereby another fingerprint and SHA-256. Both are
replaced wherever a JSON file below the working directory records them, and so are teachers' fingerprints in the
manifests of the other bundles. A file is replaced only if embedkit's kernel returns the bits that it records.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from embedkit import CrossEncoder, Encoder
from embedkit.errors import EmbedkitError, ModelError
from embedkit.runtime import network
from embedkit.runtime.bundle import Bundle, read_bundle, write_bundle
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.network import NETWORK_KEY, LayerNames, NetworkNames
from embedkit.runtime.protobuf import encode_bytes

_TABLE = Path(network.__file__).resolve().with_name("networks.json")
_EMBEDDINGS, _LAYER = "embeddings", "encoder.layer"


def describe(bundle: Bundle) -> NetworkNames:
    """Return the description of a BERT, found by the names that the exporter gives to weights and nodes.

    Raises:
        ModelError: it is another network.
    """
    graph = onnx.load_from_string(bundle.model).graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes = {node.name: node for node in graph.node}
    operators = {node.op_type: node for node in graph.node}
    optional = {"types": f"{_EMBEDDINGS}.token_type_embeddings.weight", "memory": "memory.rows"}
    optional |= {"head": "head.linear"} if bundle.manifest.kind == "encoder" else {"head": "pooler.dense"}
    found = {part: name for part, name in optional.items() if any(key.startswith(name) for key in weights)}
    if f"{_EMBEDDINGS}.position_embeddings.weight" not in weights or "padding_id" in weights:
        raise ModelError(f"{bundle.path} holds no BERT; export the model that it was made from")
    count = sum(re.fullmatch(rf"{_LAYER}\.\d+\.output\.dense\.bias", name) is not None for name in weights)
    heads = 1
    if count:
        shape = nodes[f"{_LAYER}.0.attention.self.query_heads"].input[1]
        heads = int(numpy_helper.to_array(weights[shape])[2])
    epsilon = helper.get_node_attr_value(operators["LayerNormalization"], "epsilon")
    gelu = helper.get_node_attr_value(operators["Gelu"], "approximate") if "Gelu" in operators else b"none"
    return NetworkNames(
        heads=heads,
        epsilon=float(str(np.float32(epsilon))),  # 1e-12, not its nearest float32
        gelu="tanh" if gelu == b"tanh" else "erf",
        pooling="cls" if "first" in weights else "mean",
        activation="tanh" if "Tanh" in operators else "linear",
        words=f"{_EMBEDDINGS}.word_embeddings",
        positions=f"{_EMBEDDINGS}.position_embeddings.weight",
        norm=f"{_EMBEDDINGS}.LayerNorm",
        layers=[_layer(f"{_LAYER}.{index}") for index in range(count)],
        score="classifier" if bundle.manifest.kind == "cross-encoder" else None,
        **found,
    )


def _layer(name: str) -> LayerNames:
    return LayerNames(
        qkv=f"{name}.attention.self.projection",
        attention_output=f"{name}.attention.output.dense",
        attention_norm=f"{name}.attention.output.LayerNorm",
        ffn_in=f"{name}.intermediate.dense",
        ffn_out=f"{name}.output.dense",
        norm=f"{name}.output.LayerNorm",
    )


def rewrite(bundle: Bundle, changed: dict[str, str]) -> dict[str, str]:
    """Replace a bundle by one with a description; return its old and new fingerprint and SHA-256.

    ``changed`` are fingerprints of other bundles, which its record of a teacher may hold.
    """
    entry = encode_bytes(1, NETWORK_KEY.encode()) + encode_bytes(2, describe(bundle).to_json().encode())
    manifest = Manifest.from_json(_replace(bundle.manifest.to_json(), changed))
    with tempfile.TemporaryDirectory(dir=bundle.path.parent) as folder:
        path = Path(folder) / bundle.path.name
        model = bundle.model + encode_bytes(14, entry)
        fingerprint = write_bundle(path, model, manifest, bundle.tokenizer_json, bundle.golden)
        kind = Encoder if manifest.kind == "encoder" else CrossEncoder
        if kind.load(path).verify()["same_bits"] is not True:
            raise ModelError(f"the kernel does not return the bits that {bundle.path} records")
        path.replace(bundle.path)
    old, new = hashlib.sha256(bundle.model), hashlib.sha256(bundle.path.read_bytes())
    return {bundle.fingerprint: fingerprint, old.hexdigest(): new.hexdigest()}


def _replace(text: str, changed: dict[str, str]) -> str:
    return re.sub("[0-9a-f]{64}", lambda found: changed.get(found[0], found[0]), text)


def _rewrite_all(paths: list[Path]) -> dict[str, str]:
    """Rewrite bundles, teachers before their students."""
    changed: dict[str, str] = {}
    waiting = [read_bundle(path) for path in paths]
    waiting = [bundle for bundle in waiting if network.find_metadata(bundle.model, NETWORK_KEY) is None]
    while waiting:
        teachers = {bundle.fingerprint for bundle in waiting}
        ready = [one for one in waiting if not any(name in one.manifest.to_json() for name in teachers)]
        for bundle in ready:
            changed |= rewrite(bundle, changed)
            print(f"{bundle.path}: {bundle.fingerprint[:12]} -> {changed[bundle.fingerprint][:12]}")
            waiting.remove(bundle)
    return changed


def _update_records(changed: dict[str, str], sizes: dict[str, int]) -> None:
    """Replace digests and sizes in JSON files, and remove the bundles from the table of the runtime.

    ``sizes`` are bytes by the SHA-256 of a file.
    """
    for path in Path().rglob("*.json"):
        text = path.read_text(encoding="utf-8") if path.resolve() != _TABLE else ""
        updated = _replace(text, changed)
        for digest, size in sizes.items():
            updated = re.sub(rf'(?<="size_bytes": )\d+(?=,\s+"sha256": "{digest}")', str(size), updated)
        if updated != text:
            path.write_text(updated, encoding="utf-8")
    table = json.loads(_TABLE.read_text(encoding="utf-8")) if _TABLE.is_file() else {}
    rest = {name: described for name, described in table.items() if name not in changed}
    if rest and len(rest) < len(table):
        _TABLE.write_text(json.dumps(rest, indent=1) + "\n", encoding="utf-8")
    elif table and not rest:
        _TABLE.unlink()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path)
    try:
        paths = parser.parse_args().bundles
        changed = _rewrite_all(paths)
        contents = [path.read_bytes() for path in paths]
        _update_records(changed, {hashlib.sha256(content).hexdigest(): len(content) for content in contents})
    except EmbedkitError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
