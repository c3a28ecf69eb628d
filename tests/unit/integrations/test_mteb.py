from __future__ import annotations

import pytest

from embedkit.errors import InputError
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder

mteb = pytest.importorskip("mteb")
pytestmark = pytest.mark.filterwarnings("ignore")  # MTEB and its dependencies emit many

TEXTS = ["a good dog", "the cat is asleep", "a red ship"]


@pytest.fixture
def encoder(toy_bundle):
    return Encoder.load(toy_bundle)


@pytest.fixture
def model(encoder):
    from embedkit.integrations.mteb import MtebEncoder

    return MtebEncoder(encoder)


def test_it_has_the_interface_of_mteb(model, encoder, toy_cross_bundle):
    from mteb.models.models_protocols import CrossEncoderProtocol, EncoderProtocol

    from embedkit.integrations.mteb import MtebCrossEncoder

    assert isinstance(model, EncoderProtocol)
    assert isinstance(MtebCrossEncoder(CrossEncoder.load(toy_cross_bundle)), CrossEncoderProtocol)
    about = model.mteb_model_meta
    assert (about.name, about.revision) == ("embedkit/toy", encoder.fingerprint)
    assert (about.max_tokens, about.embed_dim, about.model_type) == (12, 16, ["dense"])


def test_batches_become_rows(model, encoder):
    batches = [{"text": TEXTS[:2]}, {"text": TEXTS[2:], "title": ["unused"]}]
    rows = model.encode(batches, task_metadata=None, hf_split="test", hf_subset="default", batch_size=1)
    assert rows.tolist() == encoder.encode(TEXTS).tolist()
    cosines = rows @ rows.T
    assert model.similarity(rows, rows).numpy() == pytest.approx(cosines, abs=1e-6)
    assert model.similarity_pairwise(rows, rows).numpy() == pytest.approx(cosines.diagonal(), abs=1e-6)


def test_prompts_are_put_before_queries_and_documents(write_toy_bundle, tmp_path):
    from embedkit.integrations.mteb import MtebEncoder

    path = write_toy_bundle(tmp_path / "prompts.onnx", prompts={"query": "the sea "})
    encoder = Encoder.load(path)
    model = MtebEncoder(encoder)
    query, document, neither = (
        model.encode([{"text": TEXTS}], prompt_type=t) for t in ("query", "document", None)
    )
    assert query.tolist() == encoder.encode([f"the sea {text}" for text in TEXTS]).tolist()
    assert document.tolist() == neither.tolist() == encoder.encode(TEXTS).tolist()


def test_unsupported_uses_are_refused(model):
    with pytest.raises(InputError, match="expected texts from MTEB, got image"):
        model.encode([{"image": [None]}])
    with pytest.raises(InputError, match="expected the precision float32 from MTEB, got 'int8'"):
        model.encode([{"text": TEXTS}], precision="int8")


@pytest.mark.parametrize("name", ["STS", "PairClassification", "Retrieval", "Reranking", "Classification"])
def test_mteb_runs_on_it(model, name):
    from mteb import mocks

    task = getattr(mocks, f"Mock{name}Task")()
    results = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
    assert 0 <= results.task_results[0].get_score() <= 1


def test_mteb_runs_on_a_cross_encoder(toy_cross_bundle):
    from mteb import mocks

    from embedkit.integrations.mteb import MtebCrossEncoder

    model = MtebCrossEncoder(CrossEncoder.load(toy_cross_bundle))
    task = mocks.MockRerankingTask()
    results = mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False)
    assert 0 <= results.task_results[0].get_score() <= 1
