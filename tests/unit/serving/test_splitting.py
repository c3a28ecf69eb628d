"""Folders of documents as windows: sections, places in the file, and what a browser shows of HTML."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from embedkit import Collection, Encoder
from embedkit.cli.main import main
from embedkit.errors import DataError, InputError
from embedkit.serving.retrieval.splitting import is_documents, split_documents

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
def encoder(toy_bundle: Path) -> Encoder:
    return Encoder.load(toy_bundle)


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

    def test_line_ends_of_windows_keep_the_places(self, tmp_path, encoder):
        text = GUIDE.replace("\n", "\r\n")
        (tmp_path / "a.md").write_bytes(text.encode())
        windows = list(split_documents(tmp_path / "a.md", encoder))
        assert {window["section"] for window in windows} == {"", "The house", "The house > The garden", "Sea"}
        assert all(window["text"] == text[window["start"] : window["end"]] for window in windows)

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_front_matter_is_no_heading(self, tmp_path, encoder, end):
        text = "---\ntitle: sea\n---\nA bird.\n\n## Sea\n\nMusic.\n".replace("\n", end)
        (tmp_path / "a.md").write_bytes(text.encode())
        windows = list(split_documents(tmp_path / "a.md", encoder))
        assert {window["section"] for window in windows} == {"", "Sea"}
        assert windows[0]["text"].startswith("---")
        assert "A bird." in [window["text"] for window in windows]
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

    def test_places_are_in_the_file(self, folder, encoder):
        for window in of(list(split_documents(folder, encoder)), "page.html"):
            part = PAGE[window["start"] : window["end"]]
            assert part.startswith(window["text"].split()[0])
        sea = of(list(split_documents(folder, encoder)), "page.html")[-1]
        assert PAGE[sea["start"] :].startswith("Music <b>and</b> the sea.")

    @pytest.mark.parametrize(
        "part",
        ["A dog &hellip;", "A dog &amp;", "A dog &#233", "A dog <img alt='a b' src=x>", "A&amp;amp", "&lt;b>"],
    )
    def test_what_is_longer_in_the_file_ends_there(self, tmp_path, encoder, part):
        page = f"<p>A bird.</p><h1>Sea</h1><p>{part}</p>"
        (tmp_path / "a.html").write_text(page, encoding="utf-8")
        window = list(split_documents(tmp_path / "a.html", encoder))[-1]
        assert page[window["start"] : window["end"]] == part

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

    def test_another_encoding_is_an_error(self, tmp_path, encoder):
        (tmp_path / "a.md").write_bytes("one\nnaïve".encode("latin-1"))
        with pytest.raises(DataError, match=r"a\.md:2 is not UTF-8 text"):
            list(split_documents(tmp_path, encoder))

    def test_a_missing_file_is_an_error_without_a_number(self, tmp_path, encoder):
        with pytest.raises(DataError, match=r"nothing\.txt cannot be read: No such file or directory$"):
            list(split_documents(tmp_path / "nothing.txt", encoder))

    def test_a_folder_without_documents_is_an_error(self, tmp_path, encoder):
        (tmp_path / "scan.pdf").write_bytes(b"%PDF")
        with pytest.raises(DataError, match=r"has no text, Markdown or HTML: \.txt"):
            list(split_documents(tmp_path, encoder))

    def test_which_sources_are_documents(self, folder, tmp_path):
        assert is_documents(folder)
        assert is_documents(str(folder / "page.html"))
        assert not is_documents(tmp_path / "a.jsonl")
        assert not is_documents(["a text"])


class TestCommand:
    @pytest.fixture(autouse=True)
    def faiss(self) -> None:
        pytest.importorskip("faiss")

    def test_a_folder_is_built_searched_and_changed(self, folder, toy_bundle, tmp_path, capsys):
        index = str(tmp_path / "idx")
        assert main(["index", "build", str(folder), "--split", "-m", str(toy_bundle), "-o", index]) == 0
        (hit,) = Collection.open(index, encoder=Encoder.load(toy_bundle)).search("Music and the sea.", k=1)
        assert hit.metadata["document"] in {"guide/house.md", "page.html"}
        assert hit.metadata["section"] == "Sea"
        (folder / "notes.txt").write_text("Only a bird. " * 9, encoding="utf-8")
        assert main(["index", "add", str(folder), index, "--split"]) == 0
        (folder / "notes.txt").write_text("Only a bird.", encoding="utf-8")
        capsys.readouterr()
        assert main(["index", "add", str(folder), index, "--split"]) == 0
        assert "removed" in capsys.readouterr().out
        collection = Collection.open(index)
        assert collection.get("notes.txt#0").text == "Only a bird."
        assert collection.get("notes.txt#1") is None
        (folder / "notes.txt").write_text("", encoding="utf-8")
        assert main(["index", "add", str(folder), index, "--split"]) == 0
        assert Collection.open(index).get("notes.txt#0") is None

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
