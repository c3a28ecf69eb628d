"""Labelled queries in every form in which people have them."""

import json

import pytest

from embedkit.errors import DataError
from embedkit.training.pairs import LabelledQueries, read_queries


def described(labelled: LabelledQueries):
    """Query -> its passages with weights, and its negatives."""
    return {
        query: (
            {labelled.passages[row]: weight for row, weight in zip(rows.tolist(), weights.tolist(), strict=True)},
            [labelled.passages[row] for row in negatives],
        )
        for query, rows, weights, negatives in zip(
            labelled.queries, labelled.positives, labelled.weights, labelled.negatives, strict=True
        )
    }


EXPECTED = {"reset password": ({"click on it": 1.0, "write to us": 1.0}, ["we open at nine"])}
ROWS = {
    "pairs with numbered negatives": [
        {
            "query": "reset  password",
            "passage": "click on it",
            "negative_1": "we open at nine",
            "negative_2": None,
        },
        {"query": "reset password", "passage": "write to us", "negative_1": "", "id": 7},
    ],
    "lists": [
        {"query": "reset password", "positive": ["click on it", "write to us"], "negative": ["we open at nine"]}
    ],
    "labels": [
        {"question": "reset password", "answer": answer, "label": label}
        for answer, label in [("click on it", 1), ("we open at nine", 0), ("write to us", 1)]
    ],
}


@pytest.mark.parametrize("form", ROWS)
def test_rows_of_every_form_are_read_alike(form, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS[form])))
    assert described(read_queries(path)) == EXPECTED


def test_a_table_of_two_columns_is_read(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("reset password\tclick on it\nreset password\twrite to us\n")
    assert described(read_queries(path)) == {"reset password": (EXPECTED["reset password"][0], [])}


def test_a_header_names_the_columns_of_a_table(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("query\tpassage\tlabel\nhours\twe open at nine\t1\nhours\tclick on it\t0\n")
    assert described(read_queries(path)) == {"hours": ({"we open at nine": 1.0}, ["click on it"])}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("when\tat nine\t0", "it has 3 columns; name them in a first line"),
        ("Q7\tMED-10", "text1, text2 holds ids"),
    ],
)
def test_a_table_without_names_holds_a_query_and_a_passage(row, message, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"{row}\n{row}\n")
    with pytest.raises(DataError, match=message):
        read_queries(path)


def test_a_column_names_the_split_of_each_row(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("query,passage,split\na,b,train\nc,d,test\ne,f,validation\n")
    assert (read_queries(path).queries, read_queries(path, split="dev").queries) == (["a"], ["e"])


def test_clicks_of_a_repeated_pair_add_up(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text("query,passage,clicks\nhours,we open at nine,3\nhours,we open at nine,2\nhours,home,1\n")
    assert described(read_queries(path)) == {"hours": ({"we open at nine": 5.0, "home": 1.0}, [])}


@pytest.fixture
def folder(tmp_path):
    documents = [{"_id": "a", "title": "Hours", "text": "We open at nine."}, {"_id": "b", "text": "Parcels."}]
    queries = [{"_id": "1", "text": "when"}, {"_id": "2", "text": "parcel"}]
    for name, rows in {"corpus": documents, "queries": queries}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "qrels").mkdir()
    for split, judgement in {"train": "1\ta\t1", "dev": "2\tb\t1"}.items():
        (tmp_path / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judgement}\n")
    return tmp_path


def test_a_set_in_beirs_form_is_read_by_split_with_all_its_documents(folder):
    train = read_queries(folder)
    assert described(train) == {"when": ({"Hours We open at nine.": 1.0}, [])}
    assert train.passages == ["Hours We open at nine.", "Parcels."]
    assert read_queries(folder / "qrels" / "dev.tsv").queries == ["parcel"]


def test_texts_of_another_file_keep_their_rows(folder):
    labelled = read_queries(folder)
    more = LabelledQueries.of(labelled.judgements(), [*labelled.passages, "Parcels.", "Lifts."])
    assert more.passages == [*labelled.passages, "Lifts."]
    assert described(more) == described(labelled)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "a", "text": "b"}, "expected a column passage"),
        ({"passage": "b"}, "expected a column query"),
        ({"query": "a", "passage": "b", "clicks": -1}, "at least 0"),
        ({"query": "a", "passage": "b", "label": 0}, "no query has a passage that answers it"),
    ],
)
def test_what_is_missing_is_named(row, message, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(DataError, match=message):
        read_queries(path)
