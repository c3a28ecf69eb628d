from __future__ import annotations

import contextlib
import datetime as dt
import json
import operator
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from embedkit.errors import InputError
from embedkit.serving.retrieval import Collection
from embedkit.serving.retrieval.filters import parse_filter, read_filter
from embedkit.serving.retrieval.store import columns
from embedkit.serving.retrieval.store.columns import ColumnBuilder, ColumnFiles, ColumnsBuilder
from embedkit.serving.retrieval.store.files import Arrays, ArrayWriter

ABSENT: list = []
VALUES = [
    1,
    2.5,
    True,
    None,
    "a",
    "b",
    ["a", 3],
    [],
    {"x": 1},
    ABSENT,
    -4,
    "1",
    False,
    1.0,
    [None, "z"],
    "2020-05",
]


def matching(values, condition):
    """Return the matching rows, equal in memory and in files."""
    (parsed,) = parse_filter({"field": condition})
    builder = ColumnBuilder()
    for row, value in enumerate(values):
        if value is not ABSENT:
            builder.add(row, value)
    with tempfile.TemporaryDirectory() as folder:
        columns = ColumnsBuilder()
        for value in values:
            columns.add({} if value is ABSENT else {"field": value})
        with ArrayWriter(Path(folder) / "arrays.bin") as arrays:
            columns.save(arrays)
        files = ColumnFiles(Arrays(Path(folder) / "arrays.bin"), len(values))
        stored = parsed.rows(files.column("field")) if values else np.empty(0)
    found = np.flatnonzero(parsed.rows(builder.column(len(values)))).tolist()
    assert np.flatnonzero(stored).tolist() == found
    return found


def obvious(values, name, wanted):
    """The same by hand: JSON's types do not mix, lists match by their items."""

    def kind(value):
        return "number" if type(value) in (int, float) else type(value)

    def same(one, other):
        return kind(one) == kind(other) and one == other

    def holds(value):
        items = [item for item in (value if isinstance(value, list) else [value]) if not isinstance(item, dict)]
        if name in ("eq", "ne"):
            return any(same(item, wanted) for item in items) == (name == "eq")
        if name in ("in", "not_in"):
            return any(same(item, one) for item in items for one in wanted) == (name == "in")
        if name == "exists":
            return (value is not ABSENT) == wanted
        compare = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}[name]
        return any(kind(item) == kind(wanted) and compare(item, wanted) for item in items)

    return [row for row, value in enumerate(values) if holds(value)]


@pytest.mark.parametrize("name", ["eq", "ne", "gt", "gte", "lt", "lte"])
@pytest.mark.parametrize("wanted", [1, 2.5, -100, 100, "a", "aa", "", "2020", True, None])
def test_a_condition_selects_the_expected_rows(name, wanted):
    if name not in ("eq", "ne") and (wanted is None or wanted is True):
        with pytest.raises(InputError, match="a number or a text"):
            parse_filter({"field": {name: wanted}})
        return
    assert matching(VALUES, {name: wanted}) == obvious(VALUES, name, wanted)


@pytest.mark.parametrize("name", ["in", "not_in"])
@pytest.mark.parametrize("wanted", [[], ["a"], [1, "b", None], [True, 7], ["nothing"]])
def test_lists_of_values(name, wanted):
    assert matching(VALUES, {name: wanted}) == obvious(VALUES, name, wanted)


def test_existence_and_the_short_form():
    assert matching(VALUES, {"exists": True}) == obvious(VALUES, "exists", True)
    assert matching(VALUES, {"exists": False}) == obvious(VALUES, "exists", False)
    assert matching(VALUES, "a") == matching(VALUES, {"eq": "a"})
    assert matching([], "a") == []


def test_random_values_and_conditions():
    chance = random.Random(0)
    pool = [*range(-3, 4), 0.5, "a", "b", "ab", True, False, None]
    for _ in range(300):
        values = [chance.choice([chance.choice(pool), chance.sample(pool, 2), ABSENT]) for _ in range(30)]
        name = chance.choice(["eq", "ne", "gt", "gte", "lt", "lte", "in", "not_in"])
        wanted = chance.choice([-1, 0.5, "a", "az"])
        wanted = [wanted, chance.choice(pool)] if name in ("in", "not_in") else wanted
        assert matching(values, {name: wanted}) == obvious(values, name, wanted)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([("lang", "en")], "expected a mapping from fields to values, got list"),
        ({3: "en"}, "name of a field"),
        ({"lang": {"is": "en"}}, "'lang' has no operator 'is'; the operators are eq, ne, in"),
        ({"lang": ["en", "de"]}, "'lang': expected a value for eq"),
        ({"lang": {"in": "en"}}, "expected a list of values for in"),
        ({"year": {"gt": None}}, "a number or a text for gt"),
        ({"year": {"exists": 1}}, "true or false for exists"),
    ],
)
def test_the_error_of_a_malformed_filter_names_its_field(conditions, message):
    with pytest.raises(InputError, match=f"filter: .*{message}|filter: {message}"):
        parse_filter(conditions)


# In collections


@pytest.fixture
def library(tmp_path, encoder):
    """Two hundred documents in several segments, some replaced and some deleted."""
    chance = random.Random(1)

    def document(number):
        return {
            "id": f"d{number}",
            "text": " ".join(chance.choices(["bee", "ant", "tea", "sea", "sky", "fly"], k=4)),
            "year": 1990 + number % 40,
            "lang": chance.choice(["en", "de", "sw"]),
            "tags": chance.sample(["x", "y", "z"], chance.randrange(3)),
        }

    collection = Collection.build(map(document, range(150)), encoder=encoder, path=tmp_path / "lib")
    collection.upsert(map(document, range(130, 170)))
    collection.upsert(map(document, range(170, 180)))
    collection.delete([f"d{number}" for number in range(0, 60, 7)])
    assert collection.manifest.tail
    return collection


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({"lang": "en"}, lambda m: m["lang"] == "en"),
        ({"year": {"gte": 2000, "lt": 2010}}, lambda m: 2000 <= m["year"] < 2010),
        ({"lang": {"in": ["en", "de"]}, "year": {"lte": 2000}}, lambda m: m["lang"] != "sw" and m["year"] <= 2000),
        ({"tags": "x"}, lambda m: "x" in m["tags"]),
        ({"tags": {"exists": False}}, lambda m: False),
        ({"or": [{"lang": "de"}, {"lang": "en", "year": {"lt": 2000}}]}, lambda m: (
            m["lang"] == "de" or (m["lang"] == "en" and m["year"] < 2000)
        )),
        ({"not": {"lang": "en", "tags": "x"}}, lambda m: not (m["lang"] == "en" and "x" in m["tags"])),
        ({"and": [{"tags": "x"}, {"tags": "y"}]}, lambda m: {"x", "y"} <= set(m["tags"])),
        ({"lang": {"contains": "e"}, "tags": {"prefix": "x"}}, lambda m: "e" in m["lang"] and "x" in m["tags"]),
        ({"year": 1}, lambda m: False),
        ({"no such field": {"ne": 3}}, lambda m: True),
        ({"no such field": 3}, lambda m: False),
        ({}, lambda m: True),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",  # an address would differ between processes
)  # fmt: skip
@pytest.mark.parametrize("k", [3, 1000])
def test_a_filtered_search_is_a_search_among_matching_documents(library, conditions, holds, k):
    for query in ("bee tea", "sky sky fly"):
        expected = [hit for hit in library.search(query, k=1000, mode="dense") if holds(hit.metadata)][:k]
        assert library.search(query, k=k, mode="dense", filter=conditions) == expected


NESTED = [
    {"id": "a", "text": "bee", "address": {"city": "Bern", "at": []}, "when": "2024-05-01T10:00:00+02:00"},
    {"id": "b", "text": "ant", "address": {"city": "Bonn"}, "when": "2024-05-01T09:00:00Z", "tags": []},
    {"id": "c", "text": "tea", "address": [{"city": "Bern"}, {"city": "Rome"}], "when": "2024-05-01", "name": ""},
    {"id": "d", "text": "sea", "address.city": "Rome", "when": "not a date", "name": "a%_b"},
]


@pytest.mark.parametrize("written", ["segment", "tail"])
@pytest.mark.parametrize(
    ("conditions", "ids"),
    [
        ({"address.city": "Bern"}, "ac"),
        ({"address.city": {"ne": "Rome"}}, "ab"),
        ({"address": {"exists": True}}, "abc"),
        ({"address.at": {"exists": True}}, "a"),
        ({"tags": {"exists": True}}, "b"),
        ({"name": {"exists": True}}, "cd"),
        ({"name": {"contains": "%_"}}, "d"),
        ({"when": {"lt": "2024-05-01T09:00:00+00:00"}}, "ac"),
        ({"when": {"gte": dt.datetime(2024, 5, 1, 9, tzinfo=dt.UTC)}}, "b"),
        ({"when": "2024-05-01T08:00Z"}, "a"),
        ({"when": {"in": ("2024-05-01T11:00+02:00", np.str_("not a date"))}}, "bd"),
        ({"when": {"prefix": "2024-05"}}, "abc"),
        ({"id": {"exists": False}, "address.city": np.array(["Bonn"])[0]}, "b"),
        ({"or": [{"address.city": "Bonn"}, {"not": {"when": {"prefix": "2024"}}}]}, "bd"),
    ],
)  # fmt: skip
def test_nested_values_times_and_parts_of_texts(tmp_path, encoder, conditions, ids, written):
    first = {"id": "z", "text": "sky", "address": {"city": 1}, "when": 1, "name": 1, "tags": 1}
    documents = [first, *NESTED] if written == "segment" else [first]
    collection = Collection.build(documents, encoder=encoder, path=tmp_path / "idx")
    if written == "tail":
        collection.upsert(NESTED)
    assert {hit.id for hit in collection.search("bee", filter=conditions)} - {"z"} == set(ids)


def test_documents_are_found_counted_changed_and_deleted_by_a_filter(library):
    old = {"year": {"lt": 1995}}
    ids = [document.id for document in library.find(old)]
    assert 0 < len(ids) == library.count(old) < library.count() == len(library)
    assert [document.id for document in library.find(old, limit=2)] == ids[:2]
    assert library.update({ids[0]: {"year": 2050, "new": [1]}, "nothing": {}}) == 1
    assert library.get(ids[0]).metadata.keys() == {"year", "lang", "tags", "new"}
    assert library.delete(filter=old) == len(ids) - 1
    assert library.count(old) == 0
    with pytest.raises(InputError, match="no document has the field 'yaer'"):
        library.delete(filter={"yaer": {"ne": 1}})
    for arguments in ({}, {"filter": {}}, {"ids": ["a"], "filter": old}):
        with pytest.raises(InputError):
            library.delete(**arguments)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"or": []}, "or has no filters"),
        ({"or": [{"lang": "en"}, {}]}, "a filter in or has no conditions"),
        ({"and": [{}]}, "a filter in and has no conditions"),
        ({"not": {}}, "a filter in not has no conditions"),
        ({"not": {"lang": {}}}, "'lang' has no operator"),
        ({"not": {"lang": {"like": "x"}}}, "'lang' has no operator 'like'"),
        ({"lang": {"contains": 3}}, "expected a text for contains"),
        ({"lang": {"prefix": ""}}, "expected a text for prefix"),
    ],
)
def test_errors_of_combined_filters(conditions, message):
    with pytest.raises(InputError, match=message):
        parse_filter(conditions)


def test_a_filter_nested_without_end_is_an_error():
    conditions: dict = {"lang": "en"}
    for _ in range(100_000):
        conditions = {"not": conditions}
    with pytest.raises(InputError, match="nested too deeply"):
        parse_filter(conditions)


def test_other_kinds_are_exact_under_a_filter(tmp_path, encoder):
    pytest.importorskip("faiss")
    documents = [{"id": str(n), "text": f"{n} bee {n % 7}", "even": n % 2 == 0} for n in range(900)]
    queries = [f"{n} bee" for n in range(20)]
    other, exact = (
        Collection.build(documents, encoder=encoder, path=tmp_path / kind, index=kind) for kind in ("sq8", "exact")
    )
    assert other.search(queries, filter={"even": True}) == exact.search(queries, filter={"even": True})


def test_a_comparison_that_can_never_hold_is_reported(library):
    with pytest.raises(
        InputError, match=r"'year' holds values of kind number \(\d+\), none of kind text as '2020'"
    ):
        library.search("bee", filter={"year": {"gte": "2020"}})
    with pytest.raises(
        InputError, match=r"'lang' holds values of kind text \('\w+'\), none of kind number as 5; \"5\" in"
    ):
        library.search("bee", filter={"lang": {"in": ["en", 5]}})
    assert library.search("bee", filter={"lang": None}) == []


def test_csv_holds_texts(tmp_path, encoder):
    (tmp_path / "docs.csv").write_text("text,year\nbee,2020\nant,1999\n")
    collection = Collection.build(tmp_path / "docs.csv", encoder=encoder, path=tmp_path / "idx")
    assert [hit.text for hit in collection.search("bee", filter={"year": {"gte": "2000"}})] == ["bee"]
    with pytest.raises(InputError, match="kind text"):
        collection.search("bee", filter={"year": {"gte": 2000}})


# Mistakes


def test_a_field_that_no_document_has_is_reported(library):
    (warning,) = library.search("a", k=1, filter={"lnag": {"exists": False}}).warnings
    assert warning == "filter: no document has the field 'lnag'; did you mean 'lang'?"
    warnings = library.search("a", k=1, filter={"quite_different": 1}).warnings
    assert "the fields are" in warnings[0]
    assert warnings[1:] == ["no hits: no document meets the filter"]
    assert library.search("a", k=1, filter={"lang": {"exists": True}}).warnings == []


def test_a_field_with_a_column_is_known_beside_fields_without(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(columns, "_MOST_FIELDS", 1)
    rows = [{"text": "a", "year": 1}, {"text": "b", "year": 2, "other": 1}]
    collection = Collection.build(rows, encoder=encoder, path=tmp_path / "idx")
    assert collection.search("a", filter={"year": 2}).warnings == []


def test_keywords_without_a_hit_say_so(tmp_path, encoder):
    collection = Collection.build([{"text": "a", "year": 1}], encoder=encoder, path=tmp_path / "idx")
    said = ["no hits: no document has a word of the query"]
    for query in ("zebra", "", "!?"):
        assert collection.search(query, mode="lexical").warnings == said
    filtered = collection.search("zebra", mode="lexical", filter={"year": 1})
    assert filtered.warnings == ["no hits: no document meets the filter and has a word of the query"]


def test_an_empty_collection_says_so(tmp_path, encoder):
    collection = Collection.build(["a"], encoder=encoder, path=tmp_path / "idx")
    collection.delete("0")
    assert collection.search("a").warnings == ["no hits: the collection is empty"]
    assert collection.search("a", filter={"x": 1}).warnings == ["no hits: the collection is empty"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("lang = en", {"lang": {"eq": "en"}}),
        ("lang=en,year>=2020", {"lang": {"eq": "en"}, "year": {"gte": 2020}}),
        ("year >= 2019, year < 2021, lang != en", {"year": {"gte": 2019, "lt": 2021}, "lang": {"ne": "en"}}),
        ('place = "Berlin, \\"Mitte\\"", year > 3', {"place": {"eq": 'Berlin, "Mitte"'}, "year": {"gt": 3}}),
        ("new = true, old = null, code = 007, share = 0.5", {
            "new": {"eq": True}, "old": {"eq": None}, "code": {"eq": "007"}, "share": {"eq": 0.5}
        }),
        ("a = [1], b = NaN, c = {x", {"a": {"eq": "[1]"}, "b": {"eq": "NaN"}, "c": {"eq": "{x"}}),
        ("Ticket No = 5, café à >= 1, true = 1e3", {
            "Ticket No": {"eq": 5}, "café à": {"gte": 1}, "true": {"eq": 1000.0}
        }),
        ('"a, b = c" = 1, "1" != x, "\\"no\\""<2', {"a, b = c": {"eq": 1}, "1": {"ne": "x"}, '"no"': {"lt": 2}}),
        ('{"lang": "en", "year": {"gte": 2020}}', {"lang": "en", "year": {"gte": 2020}}),
        ("title contains 12, path prefix a/b c", {"title": {"contains": "12"}, "path": {"prefix": "a/b c"}}),
        ("not lang = en, not x = 1", {"and": [{"not": {"lang": {"eq": "en"}}}, {"not": {"x": {"eq": 1}}}]}),
        ('a = 1, b = 2 | c = "x|y"', {"or": [{"a": {"eq": 1}, "b": {"eq": 2}}, {"c": {"eq": "x|y"}}]}),
    ],
)  # fmt: skip
def test_filters_are_read_as_people_write_them(text, wanted):
    assert read_filter(text) == wanted
    parse_filter(read_filter(text))


@pytest.mark.parametrize(
    "text", ["year 2019", "= en", "lang =", "lang = en, year", '{"lang": ', "year >=", "lang == en", "lang => en"]
)
def test_what_is_not_a_condition_is_named(text):
    with pytest.raises(InputError, match=r"is not a condition|not JSON"):
        read_filter(text)


@pytest.mark.parametrize(
    "text", ['lang = "en', 'lang = "en, year = 3', 'size = 5", year = 3', 'lang = "en\\', 'a = "\\"']
)
def test_an_open_quotation_mark_is_an_error(text):
    with pytest.raises(InputError, match="a quotation mark is not closed"):
        read_filter(text)


@pytest.mark.parametrize(
    "text",
    ['"a\\' * 100_000, '"' * 300_001, f"a = b{' ' * 300_000}c", f"a{' ' * 300_000}b", f"a = b{' b' * 150_000}"],
    ids=["escapes", "quotes", "spaces", "no sign", "words"],
)
def test_the_time_to_read_a_filter_is_linear_in_its_length(text):
    began = time.process_time()
    with contextlib.suppress(InputError):
        read_filter(text)
    assert time.process_time() - began < 2.0  # with backtracking, minutes


@pytest.mark.parametrize(
    "text",
    [
        "year > 2019, year > 2020",
        "lang = en, lang = de",
        '{"year": {"gte": 2020}, "year": {"lt": 2024}}',
        '{"year": {"gte": 2020, "gte": 2024}}',
    ],
)
def test_a_condition_given_twice_is_an_error(text):
    with pytest.raises(InputError, match="occurs twice"):
        read_filter(text)


def test_reading_takes_time_in_proportion_to_the_number_of_fields():
    """Each field was compared with all before it: a request of 900 KB kept a server busy for minutes."""
    fields = {f"field{number}": number for number in range(30_000)}
    began = time.process_time()
    assert read_filter(json.dumps(fields)) == fields
    assert time.process_time() - began < 5
