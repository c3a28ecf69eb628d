"""Static models of other libraries become bundles that embedkit's kernel runs."""

import numpy as np
import pytest

from embedkit.errors import ExportError, GateError, ModelError
from embedkit.export.folder import export_folder
from embedkit.export.pipeline import export_source
from embedkit.modeling.bundles import from_bundle
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.kernel_backend import NATIVE, native_instructions

TEXTS = ["the cat is asleep", "", "\u6771", "a good dog [CLS] " * 30]
FORMS = {"fp32": 1e-6, "fp16": 1e-3, "int8": 0.02, "int4": 0.2}


@pytest.mark.parametrize("library", ["model2vec", "sentence-transformers"])
@pytest.mark.parametrize("words", FORMS)
def test_each_precision_gives_the_mean_of_words(make_static_folder, tmp_path, library, words):
    folder = make_static_folder(library)
    precision = "int8" if words == "int4" else words
    options = {"word_table": "int4"} if words == "int4" else {}
    target = "gpu" if precision == "fp16" else "cpu-avx2"

    report = export_source(str(folder.path), tmp_path / "s.onnx", precision=precision, target=target, **options)

    expected = TorchEncoder(SentenceEncoder.load(folder.path)).encode(TEXTS)
    for provider in ["CPUExecutionProvider"] + [NATIVE] * bool(native_instructions() and precision != "fp16"):
        encoder = Encoder.load(tmp_path / "s.onnx", providers=[provider])
        found = encoder.encode(TEXTS)
        np.testing.assert_allclose(found, expected, atol=FORMS[words])
        np.testing.assert_array_equal(encoder.encode(""), np.zeros(64, dtype=np.float32))
    assert report.manifest.gates["texts"]["differently_tokenized"] == 0
    assert report.manifest.pooling == "mean"


@pytest.mark.skipif(not native_instructions(), reason="no kernel")
def test_the_kernel_is_chosen_and_has_no_longest_text(make_static_folder, tmp_path):
    folder = make_static_folder("sentence-transformers")

    export_source(str(folder.path), tmp_path / "s.onnx", precision="int8")

    encoder = Encoder.load(tmp_path / "s.onnx")
    assert encoder.provider == NATIVE
    assert encoder.max_length == 1_000_000
    np.testing.assert_allclose(encoder.encode("a good dog " * 9000), encoder.encode("a good dog"), atol=1e-3)


def test_a_misread_unknown_word_fails_the_gates(make_static_folder, tmp_path, monkeypatch):
    folder = make_static_folder("model2vec")
    monkeypatch.setattr("embedkit.runtime.folder_layout._MODEL2VEC_LENGTH", 300)

    with pytest.raises(GateError, match="texts"):
        export_source(str(folder.path), tmp_path / "s.onnx", precision="fp32")


def test_folders_and_training_refuse_static_models(make_static_folder, tmp_path):
    folder = make_static_folder("model2vec")
    export_source(str(folder.path), tmp_path / "s.onnx", precision="fp32")

    with pytest.raises(ExportError, match="static"):
        export_folder(str(folder.path), tmp_path / "folder", precision="int8")
    with pytest.raises(ModelError, match="static"):
        from_bundle(tmp_path / "s.onnx")
