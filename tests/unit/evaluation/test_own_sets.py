from __future__ import annotations

import numpy as np
import pytest
from toys import write_parquet

from embedkit.errors import DataError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.pairs import LabelledPairs, Triplets
from embedkit.evaluation.reranking import RerankingSet, load_lists
from embedkit.evaluation.retrieval import RetrievalSet
from embedkit.evaluation.sts import ScoredPairs, load_scored_pairs
from embedkit.evaluation.tasks import EmbeddingCache, evaluate
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.tokenization import Tokenizer

FORMS = {
    ScoredPairs: [
        {"sentence1": "a b", "sentence2": "a b", "score": 5},
        {"sentence1": "a", "sentence2": "b", "score": 1},
    ],
    LabelledPairs: [{"text1": "a b", "text2": "a b", "label": 1}, {"text1": "a", "text2": "b", "label": 0}],
    Triplets: [{"anchor": "a b", "positive": "a b", "negative": "c"}],
    RetrievalSet: [
        {"query": "a b", "document": "a b c", "score": 2},
        {"query": "a b", "document": "c d", "score": 0},
    ],
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".parquet", ".csv.gz"])
def test_the_kind_of_a_file_is_recognized_by_its_columns(
    words, write_lines, write_json_lines, tmp_path, kind, suffix
):
    rows = FORMS[kind]
    if suffix == ".jsonl":
        path = write_json_lines("mine.jsonl", *rows)
    elif suffix == ".parquet":
        path = tmp_path / "mine.parquet"
        write_parquet(path, rows)
    else:
        mark = "\t" if suffix == ".tsv" else ","
        path = write_lines(
            f"mine{suffix}", mark.join(rows[0]), *(mark.join(map(str, row.values())) for row in rows)
        )
    task = load_task(str(path))
    assert isinstance(task.sets[0], kind)
    (result,) = evaluate(words, task).results
    assert (result.name, result.value) == ("mine", pytest.approx(1))


def test_lists_among_the_positives_make_it_reranking(write_json_lines):
    row = {"query": "a", "positive": ["a"], "negative": ["b"]}
    assert isinstance(load_task(str(write_json_lines("mine.jsonl", row))).sets[0], RerankingSet)


def test_columns_of_no_known_form_are_named(write_lines):
    path = write_lines("mine.csv", "left,right,gold", "a,b,c")
    with pytest.raises(DataError) as caught:
        load_task(str(path))
    found, _, expected = str(caught.value).partition("; expected ")
    assert found == f"{path}:2: found the columns left, right, gold"
    assert expected.split("; ") == [
        "sentence1 or sentence_A, sentence2 or sentence_B, score or relatedness_score (scored pairs)",
        "sentence1 or text1, sentence2 or text2, label or labels (labelled pairs)",
        "anchor or query, positive, negative (triplets)",
        "query, document, score (judged documents)",
    ]


def test_an_empty_file_is_refused(write_lines):
    with pytest.raises(DataError, match=r"mine\.csv: expected rows, found none"):
        load_task(str(write_lines("mine.csv", "sentence1,sentence2,label")))


def test_triplets_of_equal_likeness_are_not_in_order(words, write_lines):
    lines = ["anchor,positive,negative", "a b,a b,c", "a b,c,a b", "a b,a c,a d"]
    (result,) = evaluate(words, load_task(str(write_lines("mine.csv", *lines)))).results
    assert (result.measure, result.value) == ("accuracy", pytest.approx(1 / 3))
    assert (result.rows, result.unit) == (3, "triplets")


def test_documents_of_all_queries_are_one_corpus(words, write_lines):
    lines = ["query,document,score", "a,a b,1", "a,c d,0", "c,c,1"]
    task = load_task(str(write_lines("mine.csv", *lines)))
    assert list(task.sets[0].documents) == ["a b", "c d", "c"]
    (result,) = evaluate(words, task).results
    assert (result.rows, result.measures["recall_at_100"]) == (2, 1)


SCORED = ["split,sentence1,sentence2,score", "train,a b,c,5", "test,a b,a b,5", "test,a,b,1", "dev,a b,a b,5"]


def test_a_column_names_the_split_of_each_row(write_lines):
    path = write_lines("mine.csv", *SCORED)
    assert load_task(str(path)).sets[0].first == ["a b", "a"]
    assert load_task(str(path), split="validation").sets[0].first == ["a b"]
    assert load_scored_pairs(str(path), split="validation").first == ["a b"]
    with pytest.raises(DataError, match="the column `split` names train, test, but no row of validation"):
        load_task(str(write_lines("two.csv", *SCORED[:-1])), split="validation")


@pytest.mark.parametrize("kind", [LabelledPairs, Triplets, RetrievalSet])
def test_every_form_has_splits(write_json_lines, kind):
    rows = [{"split": "test", **row} for row in FORMS[kind]] + [{"split": "dev", **row} for row in FORMS[kind]]
    (one,) = load_task(str(write_json_lines("mine.jsonl", *rows))).sets
    (whole,) = load_task(str(write_json_lines("whole.jsonl", *FORMS[kind]))).sets
    assert [*one.texts()] == [*whole.texts()]


def test_lists_of_candidates_have_splits(write_json_lines):
    rows = [{"split": split, "query": split, "positive": ["a"], "negative": ["b"]} for split in ("test", "dev")]
    path = write_json_lines("mine.jsonl", *rows)
    assert [query.text for query in load_task(str(path)).sets[0].queries] == ["test"]
    assert [query.text for query in load_lists(path, name="mine", split="validation").queries] == ["dev"]


def test_a_column_of_another_meaning_selects_nothing(write_lines):
    path = write_lines("mine.csv", "split,sentence1,sentence2,score", "7,a,b,5", "8,a,b,1")
    assert len(load_task(str(path)).sets[0]) == 2


@pytest.fixture
def corpus(write_json_lines):
    write_json_lines("set/corpus.jsonl", {"_id": 1, "text": "a b"}, {"_id": "2", "text": "c"})
    return write_json_lines("set/queries.jsonl", {"_id": "q", "text": "a"}).parent


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("test.tsv", ["query-id\tcorpus-id", "q\t1"]),
        ("test.tsv", ["q 0 1 1", "q 0 2 0"]),
        ("test.txt", ["q\t0\t1\t1"]),
        ("test.jsonl", ['{"query-id": "q", "corpus-id": 1.0}']),
        ("train.tsv", ["query-id\tcorpus-id\tscore", "q\t1\t2"]),
    ],
)
def test_judgements_have_many_forms(corpus, write_lines, words, name, lines):
    write_lines(f"set/qrels/{name}", *lines)
    (result,) = evaluate(words, load_task(str(corpus))).results
    assert result.value == pytest.approx(1)
    assert ("the judgements are those of the split train, the only one" in result.notes) == (name == "train.tsv")


def test_nano_beirs_folders_have_one_split(tmp_path, words):
    write_parquet(tmp_path / "nano" / "corpus" / "train-00000-of-00001.parquet", [{"_id": "d", "text": "a"}])
    write_parquet(tmp_path / "nano" / "queries" / "train-00000-of-00001.parquet", [{"_id": "q", "text": "a"}])
    write_parquet(
        tmp_path / "nano" / "qrels" / "train-00000-of-00001.parquet", [{"query-id": "q", "corpus-id": "d"}]
    )
    (result,) = evaluate(words, load_task(str(tmp_path / "nano"))).results
    assert (result.value, result.rows) == (pytest.approx(1), 1)


def test_judgements_of_another_corpus_are_refused(corpus, write_lines):
    write_lines("set/qrels/test.tsv", "query-id\tcorpus-id\tscore", "q\t1.0\t1", "q\tX2\t1")
    with pytest.raises(DataError, match=r"the corpus has none of the 2 relevant documents, such as '1\.0'"):
        load_task(str(corpus))


def test_queries_and_documents_get_their_prompts_as_in_a_search(write_toy_bundle, tmp_path, corpus, write_lines):
    prompts = {"query": "where is ", "document": "the page says ", "default": "good "}
    encoder = Encoder.load(write_toy_bundle(tmp_path / "toy.onnx", prompts=prompts, default_prompt="default"))
    write_lines("set/qrels/test.tsv", "query-id\tcorpus-id\tscore", "q\t1\t1")
    cache = EmbeddingCache(encoder, load_task(str(corpus)).texts(), label="mine", progress=False)
    np.testing.assert_allclose(cache.embeddings(["a"], "query"), encoder.encode_query(["a"]), atol=1e-6)
    np.testing.assert_allclose(cache.embeddings(["a b"], "document"), encoder.encode_document(["a b"]), atol=1e-6)

    pairs = load_task(str(write_lines("mine.csv", *SCORED)))
    cache = EmbeddingCache(encoder, pairs.texts(), label="mine", progress=False)
    np.testing.assert_allclose(cache.embeddings(["a"]), encoder.encode(["a"]), atol=1e-6)


def test_torch_applies_the_same_prompts(toy_tokenizer_json):
    prompts = {"query": "where is ", "passage": "the page says ", "default": "good "}
    model = random(Tokenizer(toy_tokenizer_json, 12), Size(1, 16, 2), max_length=12, seed=0)
    model.prompts, model.default_prompt = prompts, "default"
    encoder = TorchEncoder(model)
    plain = TorchEncoder(random(model.tokenizer, Size(1, 16, 2), max_length=12, seed=0))
    np.testing.assert_allclose(encoder.encode_query(["a"]), plain.encode(["where is a"]), atol=1e-6)
    np.testing.assert_allclose(encoder.encode_document(["a"]), plain.encode(["the page says a"]), atol=1e-6)
    np.testing.assert_allclose(encoder.encode(["a"]), plain.encode(["good a"]), atol=1e-6)
