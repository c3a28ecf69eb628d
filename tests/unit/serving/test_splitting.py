"""Folders of documents as windows: sections, places in the file, and what a browser shows of HTML."""

from __future__ import annotations

import codecs
import itertools
import json
import time
from pathlib import Path

import pytest

from embedkit import Collection, Encoder
from embedkit.cli.main import main
from embedkit.errors import DataError, InputError
from embedkit.serving.retrieval.documents import Columns, named_records, to_documents
from embedkit.serving.retrieval.pages import read_html
from embedkit.serving.retrieval.splitting import split_documents

GUIDE = """Before any heading.

# The house

About the house. It is old.

## The *garden*

A dog in the garden.

```
# not a heading
```

> # quoted

Sea
===

Music and the sea.
"""

PAGE = """<!DOCTYPE html><html><head><title>Not shown</title><style>p { color: red }</style></head>
<body><h1>The  house</h1><p>About &amp; in the
   house.</p><script>if (a < b) "no";</script>
<h3>The <em>garden</em></h3><ul><li>A dog<li>A &#233;tat<br>two</ul>
<pre>one
  two</pre>
<h1>Sea<p>Music <b>and</b> the sea.<img alt="A bird"></p></body></html>
"""


@pytest.fixture
def encoder(write_toy_bundle, tmp_path_factory) -> Encoder:
    return Encoder.load(write_toy_bundle(tmp_path_factory.mktemp("wide") / "toy.onnx", max_length=48))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "guide").mkdir(parents=True)
    (tmp_path / "docs" / "guide" / "house.md").write_text(GUIDE, encoding="utf-8")
    (tmp_path / "docs" / "page.html").write_text(PAGE, encoding="utf-8")
    (tmp_path / "docs" / "notes.txt").write_text("A bird.\n\nA tree.\n", encoding="utf-8")
    (tmp_path / "docs" / ".hidden.txt").write_text("no", encoding="utf-8")
    (tmp_path / "docs" / "data.bin").write_bytes(b"\xff")
    return tmp_path / "docs"


def of(windows: list[dict], document: str) -> list[dict]:
    return [window for window in windows if window["document"] == document]


class TestMarkdown:
    def test_sections_and_places(self, folder, encoder):
        windows = of(list(split_documents(folder, encoder)), "guide/house.md")
        found = [(window["section"], window["text"].splitlines()[0]) for window in windows]
        assert found[:3] == [
            ("", "Before any heading."),
            ("The house", "About the house. It is old."),
            ("The house > The garden", "A dog in the garden."),
        ]
        assert found[-1] == ("Sea", "Music and the sea.")
        assert [window["id"] for window in windows] == [f"guide/house.md#{n}" for n in range(len(windows))]
        assert all(window["text"] == GUIDE[window["start"] : window["end"]] for window in windows)

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_front_matter_is_no_heading(self, tmp_path, encoder, end):
        text = "---\ntitle: sea\n---\nA bird.\n\n## Sea\n\nMusic.\n".replace("\n", end)
        (tmp_path / "a.md").write_bytes(text.encode())
        windows = list(split_documents(tmp_path / "a.md", encoder))
        assert {window["section"] for window in windows} == {"", "Sea"}
        assert windows[0]["text"].startswith("---")
        assert "A bird." in [window["text"] for window in windows]
        assert all(window["text"] == text[window["start"] : window["end"]] for window in windows)

    @pytest.mark.parametrize(
        "front",
        [
            "\n\n---\n# a comment\ntitle: 'The sea'\n---\n",
            "---\nlast update: 2024-05-06\ntitle: The sea\ntags: [one, two]\n---\n",
            '---\n"title": "The sea"\n...\n',
            "---\nsummary: one: two\ntitle: The sea\n---\n",  # no YAML, but meant as such
        ],
    )
    def test_front_matter_is_read_as_yaml(self, tmp_path, encoder, front):
        (tmp_path / "a.md").write_text(f"{front}A bird.\n", encoding="utf-8")
        windows = list(split_documents(tmp_path / "a.md", encoder))
        assert {(window["title"], window["section"]) for window in windows} == {("The sea", "")}
        assert windows[-1]["text"] == "A bird."
        if "tags" in front:
            assert windows[-1]["tags"] == ["one", "two"]
            assert windows[-1]["last update"] == "2024-05-06"

    def test_front_matter_cannot_grow(self, tmp_path, encoder):
        lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
        (tmp_path / "a.md").write_text("---\n{}\n---\nA bird.\n".format("\n".join(lines)), encoding="utf-8")
        windows = list(split_documents(tmp_path / "a.md", encoder))
        assert "a1" not in windows[-1]
        assert windows[-1]["text"] == "A bird."

    def test_a_heading_without_text_is_a_window_unless_another_is_below_it(self, tmp_path, encoder):
        text = "# House\n\n## Garden\n\n## Kitchen\n\nBread.\n\n# Sea\n"
        (tmp_path / "a.md").write_text(text, encoding="utf-8")
        windows = list(split_documents(tmp_path / "a.md", encoder))
        assert [(window["section"], window["text"]) for window in windows] == [
            ("House > Garden", "## Garden"),
            ("House > Kitchen", "Bread."),
            ("Sea", "# Sea"),
        ]
        assert all(window["text"] == text[window["start"] : window["end"]] for window in windows)

    def test_a_rule_is_no_front_matter(self, tmp_path, encoder):
        (tmp_path / "a.md").write_text("---\nA bird: it sings.\n\n# Sea\n\nMusic.\n\n---\n", encoding="utf-8")
        windows = list(split_documents(tmp_path / "a.md", encoder))
        assert [window["section"] for window in windows] == ["", "Sea"]

    @pytest.mark.parametrize("heading", ["The\nsea\n===", '# The <a id="sea"></a> sea', "# The  `sea`"])
    def test_a_heading_is_its_words(self, tmp_path, encoder, heading):
        (tmp_path / "a.md").write_text(f"{heading}\n\nMusic.\n", encoding="utf-8")
        assert [window["section"] for window in split_documents(tmp_path / "a.md", encoder)] == ["The sea"]


class TestHtml:
    def test_what_a_browser_shows(self, folder, encoder):
        windows = of(list(split_documents(folder, encoder)), "page.html")
        by_section = {}
        for window in windows:
            by_section.setdefault(window["section"], []).append(window["text"])
        assert by_section == {
            "The house": ["About & in the house."],
            "The house > The garden": ["A dog\nA état\ntwo\n\none\n  two"],
            "Sea": ["Music and the sea.A bird"],
        }

    def test_windows_have_no_place_in_the_file(self, folder, encoder):
        windows = of(list(split_documents(folder, encoder)), "page.html")
        assert {tuple(window)[-3:] for window in windows} == {("document", "section", "text")}

    @pytest.mark.parametrize(
        "page",
        ["", "<p>", "<h1>Only", "<script>a", "<p>a</b></p></div>&nosuch; <", "<![if]>a", "<![x[a]]>", "<![>"],
    )
    def test_broken_pages_are_read(self, tmp_path, encoder, page):
        (tmp_path / "a.html").write_text(page + "<p>music", encoding="utf-8")
        found = list(split_documents(tmp_path / "a.html", encoder))
        assert page.startswith("<script") or "music" in found[-1]["text"]

    @pytest.mark.parametrize(
        ("page", "text"),
        [
            ("AT&T and R&D", "AT&T and R&D"),
            ("a&#233t&eacute; &copy 2020 &amp", "aété © 2020 &"),
            ("a?b=1&c=2", "a?b=1&c=2"),
            ("<table><tr><th>dog</th><td>2</td></tr><tr><td>bird<td>3</table>", "dog 2\nbird 3"),
        ],
    )
    def test_references_and_cells_are_as_a_browser_shows_them(self, tmp_path, encoder, page, text):
        (tmp_path / "a.html").write_text(page, encoding="utf-8")
        assert [window["text"] for window in split_documents(tmp_path / "a.html", encoder)] == [text]

    def test_the_title_is_a_field_of_all_windows(self, tmp_path, encoder):
        page = "<title>The\n sea &amp; birds</title><svg><title>no</title></svg><h1>One</h1><p>A bird.<h2>Two</h2>"
        (tmp_path / "a.html").write_text(page, encoding="utf-8")
        windows = list(split_documents(tmp_path / "a.html", encoder))
        assert {window["title"] for window in windows} == {"The sea & birds"}
        assert [(window["section"], window["text"]) for window in windows] == [
            ("One", "A bird."),
            ("One > Two", "Two"),
        ]

    @pytest.mark.parametrize(
        "part",
        ["<a/", "<!--", "<svg>", "<a b='", '<a b="', "</", "<![", "&#", "<title>", "< ", "<a b=c ", "&a", "<pre>"],
    )
    def test_hostile_pages_take_seconds_at_most(self, part):
        started = time.process_time()
        for end in ("", "</title>" * 100_000):
            read_html(part * 100_000 + end)
        assert time.process_time() - started < 20  # in quadratic time: hours

    def test_lines_of_a_heading_are_apart(self, tmp_path, encoder):
        (tmp_path / "a.html").write_text("<h1>The<br>sea</h1><p>Music.", encoding="utf-8")
        assert [window["section"] for window in split_documents(tmp_path / "a.html", encoder)] == ["The sea"]


class TestWindows:
    def test_windows_have_at_most_the_requested_tokens(self, tmp_path, encoder):
        text = "a dog and a bird. " * 20
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        windows = list(split_documents(tmp_path / "a.txt", encoder, max_tokens=6, overlap=2))
        assert all(len(ids) <= 8 for ids in encoder.tokenize([window["text"] for window in windows]).ids)
        assert windows[0]["start"] == 0
        assert windows[-1]["end"] == len(text.rstrip())
        assert all(one["end"] >= other["start"] - 1 for one, other in itertools.pairwise(windows))

    def test_records_keep_their_columns_and_ids(self, encoder):
        rows = [{"id": 7, "body": "a dog. " * 10, "lang": "en"}, {"id": 8, "body": "the sea", "lang": "de"}]
        windows = list(split_documents(rows, encoder, text_column="body"))
        assert [window["id"] for window in windows] == [*(f"7#{n}" for n in range(len(windows) - 1)), "8#0"]
        assert {window["document"] for window in windows if window["lang"] == "en"} == {"7"}
        assert all(rows[0]["body"][window["start"] : window["end"]] == window["body"] for window in windows[:-1])

    def test_fields_of_windows_replace_columns_with_a_warning(self, encoder, caplog):
        rows = [{"id": 7, "url": "a", "start": "2020", "text": "a dog"}, {"id": 7, "url": "b", "text": "the sea"}]
        windows = list(split_documents(rows, encoder, id_column="url"))
        assert [(window["id"], window["document"]) for window in windows] == [("a#0", "a"), ("b#0", "b")]
        assert windows[0]["start"] == 0
        assert [record.message for record in caplog.records] == [
            "windows replace the columns id, start of documents; rename these to keep them"
        ]
        with pytest.raises(InputError, match="'document' is a field of windows; rename the column"):
            list(split_documents([{"document": "a dog"}], encoder, text_column="document"))

    def test_a_file_without_text_is_reported(self, tmp_path, encoder, caplog):
        (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")
        assert list(split_documents(tmp_path, encoder)) == []
        assert "empty.txt has no text" in caplog.text

    def test_files_of_other_kinds_are_counted(self, tmp_path, encoder, caplog):
        for name in ("a.txt", "b.pdf", "c.pdf", "sub/LICENSE", ".git/d.pdf"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("a dog", encoding="utf-8")
        caplog.set_level("INFO", logger="embedkit")
        assert [window["document"] for window in split_documents(tmp_path, encoder)] == ["a.txt"]
        assert "left out files that are not text, Markdown or HTML: 2 .pdf, 1 LICENSE" in caplog.text

    def test_records_without_text(self, encoder):
        rows = [{"text": "a dog"}, {"text": " "}]
        assert [window["id"] for window in split_documents(rows, encoder, skip_empty=True)] == ["0#0"]
        with pytest.raises(DataError, match="document 2: the text is empty"):
            list(split_documents(rows, encoder))

    def test_a_file_that_cannot_be_decoded_is_left_out_and_counted(self, tmp_path, encoder, caplog):
        (tmp_path / "a.md").write_bytes("one\nnaïve".encode("latin-1"))
        (tmp_path / "b.txt").write_bytes("no mark".encode("utf-16-le"))
        (tmp_path / "c.txt").write_text("A bird.", encoding="utf-8")
        assert [window["document"] for window in split_documents(tmp_path, encoder)] == ["c.txt"]
        assert "a.md:2 is not UTF-8 text" in caplog.text
        assert "left out 2 files that cannot be read" in caplog.text
        with pytest.raises(DataError, match=r"a\.md:2 is not UTF-8 text"):
            list(split_documents(tmp_path, encoder, strict=True))
        with pytest.raises(DataError, match=r"a\.md:2 is not UTF-8 text"):
            list(split_documents(tmp_path / "a.md", encoder))

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("a.txt", "naïve".encode("utf-16")),
            ("a.md", codecs.BOM_UTF16_BE + "naïve".encode("utf-16-be")),
            ("a.txt", "naïve".encode("utf-32")),
            ("a.txt", "naïve".encode("utf-8-sig")),
            ("a.html", "<meta charset=iso-8859-1><p>naïve".encode("latin-1")),
            ("a.html", b"<meta charset=utf-8 /><p>na\xc3\xafve"),
            ("a.html", b"<META http-equiv=x content='text/html; charset=\"Windows-1252\"'>na\xefve"),
            ("a.htm", b"<?xml version='1.0' encoding='latin1'?><p>na\xefve</p>"),
        ],
    )
    def test_files_are_decoded_as_they_say(self, tmp_path, encoder, name, content):
        (tmp_path / name).write_bytes(content)
        assert [window["text"] for window in split_documents(tmp_path / name, encoder)] == ["naïve"]

    def test_links_out_of_the_folder_are_left_out(self, tmp_path, encoder, caplog):
        for name in ("docs/a.md", "docs/sub/b.md", "other/c.md", "other/d.md"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("a bird", encoding="utf-8")
        docs = tmp_path / "docs"
        (docs / "inside.md").symlink_to("sub/b.md")
        (docs / "secret.md").symlink_to(tmp_path / "other" / "c.md")
        (docs / "folder").symlink_to(tmp_path / "other")
        (docs / "loop").symlink_to(docs)

        def found(**options: bool) -> list[str]:
            return [window["document"] for window in split_documents(docs, encoder, **options)]

        assert found() == ["a.md", "inside.md", "sub/b.md"]
        assert "left out links that lead outside of the folder: folder, secret.md;" in caplog.text
        outside = ["folder/c.md", "folder/d.md", "secret.md"]
        assert found(follow_links=True) == sorted(["a.md", "inside.md", "sub/b.md", *outside])

    def test_windows_leave_room_for_the_headings_that_are_embedded_with_them(self, tmp_path, encoder):
        text = "# The dog and the bird\n\n" + "a dog in the garden. " * 40
        (tmp_path / "a.md").write_text(text, encoding="utf-8")
        documents = list(
            to_documents(named_records(split_documents(tmp_path / "a.md", encoder)), Columns(id="id"))
        )
        assert len(documents) > 1
        assert documents[0].content == f"The dog and the bird\n{documents[0].text}"
        assert not encoder.tokenize([document.content for document in documents]).overflowing

    def test_headings_and_titles_are_found_by_both_rankings(self, encoder, tmp_path):
        rows = [
            {"id": n, "text": f"a tree {n}", "title": title} for n, title in enumerate(["bread", "the moon", ""])
        ]
        rows.append({"id": 3, "text": "music", "title": 4, "section": "Kitchen > milk"})
        collection = Collection.build(rows, encoder=encoder, path=tmp_path / "idx", lexical=True)
        assert [hit.id for hit in collection.search("moon", k=1, mode="lexical")] == ["1"]
        (hit,) = collection.search("Kitchen > milk\nmusic", k=1, mode="dense")
        assert hit.text == "music"
        assert hit.score == pytest.approx(1, abs=1e-5)
        copied = Collection.build(collection, encoder=encoder, path=tmp_path / "copy")
        given = encoder.encode([row["text"] for row in rows])
        Collection.build(rows, encoder=encoder, path=tmp_path / "given", embeddings=given)
        assert len(copied) == len(rows)

    def test_a_missing_file_is_an_error_without_a_number(self, tmp_path, encoder):
        with pytest.raises(DataError, match=r"nothing\.txt cannot be read: No such file or directory$"):
            list(split_documents(tmp_path / "nothing.txt", encoder))

    def test_a_folder_without_documents_is_an_error(self, tmp_path, encoder):
        (tmp_path / "scan.pdf").write_bytes(b"%PDF")
        with pytest.raises(DataError, match=r"has no text, Markdown or HTML: \.htm"):
            list(split_documents(tmp_path, encoder))


class TestCommand:
    @pytest.fixture(autouse=True)
    def faiss(self) -> None:
        pytest.importorskip("faiss")

    @pytest.mark.parametrize("columns", [[], ["--metadata-columns", "section"], ["--metadata-columns", ""]])
    def test_all_windows_of_a_shorter_document_are_removed(self, folder, toy_bundle, tmp_path, columns):
        index = str(tmp_path / "idx")
        (folder / "notes.txt").write_text("Only a bird. " * 90, encoding="utf-8")
        build = ["index", "build", str(folder), "--split", "-m", str(toy_bundle), "-o", index, *columns]
        assert main(build) == 0
        before = Collection.open(index)
        assert main(["index", "delete", index, "notes.txt#1", "notes.txt#3"]) == 0
        (folder / "notes.txt").write_text("Only a bird.", encoding="utf-8")
        assert main(["index", "add", str(folder), index, "--split", *columns]) == 0
        left = {document.id for document in Collection.open(index).store.source().documents}
        assert left == {
            document.id
            for document in before.store.source().documents
            if document.metadata["document"] != "notes.txt" or document.id == "notes.txt#0"
        }

    def test_windows_beyond_many_that_were_deleted_are_removed(self, folder, toy_bundle, tmp_path):
        index = str(tmp_path / "idx")
        (folder / "notes.txt").write_text("Only a bird. " * 900, encoding="utf-8")
        assert main(["index", "build", str(folder), "--split", "-m", str(toy_bundle), "-o", index]) == 0
        collection = Collection.open(index)
        ids = {document.id for document in collection.store.source().documents}
        assert collection.delete([f"notes.txt#{number}" for number in range(1, 120)]) == 119
        assert "notes.txt#120" in ids
        (folder / "notes.txt").write_text("Only a bird.", encoding="utf-8")
        assert main(["index", "add", str(folder), index, "--split"]) == 0
        left = {document.id for document in Collection.open(index).store.source().documents}
        assert left == {id_ for id_ in ids if not id_.startswith("notes.txt#")} | {"notes.txt#0"}

    def test_an_empty_document_leaves_a_collection_with_numbers_of_documents_unchanged(self, toy_bundle, tmp_path):
        index, records, empty = str(tmp_path / "idx"), tmp_path / "records.jsonl", tmp_path / "a.txt"
        records.write_text('{"id": "a.txt#0", "text": "a bird", "document": 3}\n', encoding="utf-8")
        assert main(["index", "build", str(records), "-m", str(toy_bundle), "-o", index]) == 0
        empty.write_text("", encoding="utf-8")
        assert main(["index", "add", str(empty), index, "--split"]) == 0
        assert len(Collection.open(index)) == 1

    def test_documents_with_the_id_of_a_window_are_kept(self, toy_bundle, tmp_path):
        index, records = str(tmp_path / "idx"), tmp_path / "records.jsonl"
        rows = [
            {"id": "bird"},
            {"id": "bird#1"},
            {"id": "bird#2", "document": "cat"},
            {"id": "bird#x", "document": "bird"},
        ]
        records.write_text("".join(json.dumps({**row, "text": "a bird"}) + "\n" for row in rows), encoding="utf-8")
        assert main(["index", "build", str(records), "-m", str(toy_bundle), "-o", index]) == 0
        records.write_text(json.dumps({"id": "bird", "text": "a bird"}) + "\n", encoding="utf-8")
        assert main(["index", "add", str(records), index, "--split"]) == 0
        assert None not in Collection.open(index).get(["bird", "bird#0", "bird#1", "bird#2", "bird#x"])

    def test_a_folder_without_parquet_names_the_option(self, folder, toy_bundle, tmp_path, capsys):
        assert main(["index", "build", str(folder), "-m", str(toy_bundle), "-o", str(tmp_path / "idx")]) == 1
        assert "embedkit index build --split reads .txt, .md and .html" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--overlap", "3"], "--max-tokens and --overlap are for --split"),
            (["--split", "--max-tokens", "99"], "--max-tokens must be a whole number from 1 to 10"),
            (["--split", "--embeddings", "vector"], "--split makes new texts"),
        ],
    )
    def test_errors(self, folder, toy_bundle, tmp_path, options, message, capsys):
        command = ["index", "build", str(folder), "-m", str(toy_bundle), "-o", str(tmp_path / "idx")]
        assert main([*command, *options]) == 1
        assert message in capsys.readouterr().err
