"""The scripts that write the text of the last stage of the encoders, and score them, on texts of their own."""

import json
import lzma
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from embedkit.config import load_toml, merge
from embedkit.modeling.bundles import from_bundle
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.runtime.find import find_model
from embedkit.training.run import resolve

RECIPES = Path(__file__).parents[3] / "recipes"
SITE, UNSEEN, OTHER = "beer_tentrr", "SMDMDataMiningOnStackExchange", "Elasticsearch-Coffee-Search-Engine-JS"
DRINKS = "stout", "cider", "ale", "porter", "mead", "lager", "wine", "rum"
CAPITALS = {
    "France": "Paris",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Cuba": "Havana",
    "Egypt": "Cairo",
    "Chile": "Santiago",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Peru": "Lima",
}
EVALUATED = "Peru"
PAPERS = 1210  # of which the last 1200 are for development


def write_table(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows))


def write(path, texts):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress("".join(f"{text}\n" for text in texts).encode()))


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def thread(site, drink):
    made = {"query": f"How do I brew a good {drink} at {site}?", "source": site}
    body = f"I have a kettle. Tips on the taste of {drink} from {site} are welcome. Thanks!"
    yield {**made, "kind": "body", "passage": body}
    yield {**made, "kind": "answer", "passage": f"Boil the {drink} at {site} slowly."}


def question(country):
    return f"what is the capital of {country}"


def sentence(country):
    return f"The capital of {country} is the city of {CAPITALS[country]}."


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    names = "asked.py", "sources.py", "development.py", "candidates.py", "titled.py"
    scripts = [(RECIPES / name).read_text(encoding="utf-8") for name in names]
    for name in [*re.findall(r'"([a-z0-9-]+)": \d', " ".join(scripts)), "wordnet-glosses", "stackexchange-posts"]:
        write(data / f"train/{name}.txt.xz", (f"Most {drink} of {name} is far from others." for drink in DRINKS))
    long = "{0} is a drink that people of all kinds of towns like to have in the evening."
    write(data / "train/digitalgov.txt.xz", (long.format(drink) for drink in DRINKS))
    write(data / "train/nq-open.txt.xz", map(question, CAPITALS))
    write(data / "train/wikipedia.txt.xz", map(sentence, CAPITALS))
    told = "We count yeast {0} in the beer that we all brew here"
    abstracts = (
        f"Measures of yeast {row} in beer. {told.format(row)}. It grows. It is sold." for row in range(PAPERS)
    )
    write(data / "train/pmc-abstracts.txt.xz", abstracts)
    threads = (row for site in (SITE, UNSEEN, OTHER) for drink in DRINKS for row in thread(site, drink))
    write(data / "questions/stackexchange.jsonl.xz", map(json.dumps, threads))
    for name in ("business-help", "powershell-docs", "medquad", "opensource-guide"):
        page = {"title": f"Brew with {name}", "query": "Boil the wort with hops", "passage": "Turn up the heat."}
        write(data / f"questions/{name}.jsonl.xz", [json.dumps(page)])
    evaluated = {"query": question(EVALUATED), "positive": [sentence(EVALUATED).upper()], "negative": []}
    (data / "evaluated.jsonl").write_text(json.dumps(evaluated))
    return data


MODELS = "--encoder", "tiny", "--cross-encoder", "reranker-tiny", "--threads", "1"


def run_script(name, *arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RECIPES)
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(RECIPES / name), run_name="__main__")


def run(data, output):
    run_script("asked.py", data, "--without", data / "evaluated.jsonl", "-o", output, *MODELS)
    return output


@pytest.fixture(scope="module")
def written(data):
    return run(data, data / "asked")


def test_texts_for_development_and_evaluation_are_left_out(written):
    texts = "".join((written / name).read_text() for name in ("pairs.jsonl", "passages.txt", "held.txt"))
    assert SITE in texts
    assert UNSEEN not in texts
    assert "France" in texts
    assert EVALUATED not in texts
    assert {int(row) for row in re.findall(r"yeast (\d+)", texts)} == {*range(PAPERS - 1200)}


def test_titles_in_other_words_are_answered_below_the_titles(written):
    rows = [row for row in read(written / "pairs.jsonl") if SITE in row["passage"]]
    assert len(rows) > len(DRINKS)
    for row in rows:
        title, _, answer = row["passage"].partition("? ")
        drink = re.search(r"good (\w+)", title)[1]
        assert answer == f"Boil the {drink} at {SITE} slowly."
        assert row["query"].rstrip("?").lower() != title.lower()
        assert row["label"] == 1


def test_questions_of_fact_have_the_sentence_that_answers_and_others(written):
    dev = {row["query"]: row["positive"] for row in read(written / "facts-dev.jsonl")}
    facts = [row for row in read(written / "pairs.jsonl") if "capital" in row["query"]]
    assert {row["label"] for row in facts} == {0, 1}
    for row in facts:
        is_answer = row["passage"] == sentence(row["query"].split()[-1])
        assert row["label"] == is_answer
        assert row["query"] not in dev
        assert [row["passage"]] not in dev.values() or not is_answer
    for query, positive in dev.items():
        assert "capital" not in query or positive == [sentence(query.split()[-1])]


def test_a_run_makes_the_kinds_that_are_missing_and_is_deterministic(data, written):
    again = data / "again"
    (again / "parts").mkdir(parents=True)
    for name in ("titles", "facts"):
        (again / f"parts/{name}.jsonl").write_bytes((written / f"parts/{name}.jsonl").read_bytes())
    own = {"query": "mine?", "positive": ["yes"], "negative": []}
    (again / "parts/titles.jsonl").write_text(json.dumps(own) + "\n")
    run(data, again)
    assert {"query": "mine?", "passage": "yes", "label": 1} in read(again / "pairs.jsonl")
    for name in ("held.txt", "facts-dev.jsonl", "parts/papers.jsonl", "parts/bodies.jsonl"):
        assert (again / name).read_bytes() == (written / name).read_bytes()


@pytest.mark.parametrize("name", ["tiny", "mini", "small", "static"])
def test_the_recipes_of_the_last_stage_read_what_the_script_writes(written, name):
    recipe = merge(load_toml(RECIPES / "asked.toml"), load_toml(RECIPES / f"{name}-asked.toml"))
    config = resolve({**recipe, "data": str(written)})
    before = "titled" if name == "static" else "long"
    assert (config.name, config.student.source) == (name, f"{name}-{before}.onnx")
    (corpus,) = config.corpus
    for path in (corpus.path, *config.settings.pairs, config.settings.general):
        assert Path(config.resolve(path)).parent == written


def test_passages_below_titles_are_no_text_for_development_or_evaluation(data):
    output = data / "titled"
    run_script("titled.py", data, "--without", data / "evaluated.jsonl", "--threads", "1", "-o", output)
    titled, general = ((output / f"{name}.txt").read_text().splitlines() for name in ("titled", "general"))
    answers = [text for text in titled if SITE in text and "Boil" in text]
    assert answers
    for text in answers:
        drink = re.search(r"a good (\w+)", text)[1]
        assert text == f"How do I brew a good {drink} at {SITE}? Boil the {drink} at {SITE} slowly."
    assert "Boil the wort with hops Turn up the heat." in titled
    assert any(text.startswith(question(country)) for country in CAPITALS for text in titled)
    texts = "\n".join(titled + general)
    assert UNSEEN not in texts
    assert question(EVALUATED) not in texts
    recipe = merge(load_toml(RECIPES / "titled.toml"), load_toml(RECIPES / "static-titled.toml"))
    config = resolve({**recipe, "data": str(output)})
    assert {Path(config.resolve(corpus.path)) for corpus in config.corpus} == {*output.glob("*.txt")}


def test_the_mean_of_a_run_and_the_model_before(tmp_path):
    before, finished = find_model("tiny"), tmp_path / "run"
    model = from_bundle(before)
    start = {name: weights.clone() for name, weights in model.state_dict().items()}
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(1.0)
    model.save(finished / "model")
    run_script("mean.py", before, finished, "--share", "0.25")
    for name, weights in SentenceEncoder.load(finished / "model").state_dict().items():
        torch.testing.assert_close(weights, start[name] + 0.75)


def test_candidates_of_the_re_ranker_are_no_text_for_development_or_evaluation(data, written):
    output = data / "candidates"
    arguments = data, "--asked", written, "--without", data / "evaluated.jsonl", "-o", output
    run_script("candidates.py", *arguments)
    found = {path.relative_to(output).as_posix(): path.read_text() for path in output.glob("*/*.txt")}
    texts = "".join(found.values())
    assert SITE in found["queries/asked.txt"]
    assert found["queries/business-help.txt"] == "Boil the wort with hops\n"
    assert (
        found["passages/business-help.txt"]
        == "Brew with business-help Boil the wort with hops Turn up the heat.\n"
    )
    assert UNSEEN not in texts
    assert EVALUATED not in texts
    for row in read(written / "facts-dev.jsonl"):
        assert row["query"] + "\n" not in texts
        assert not any(text in texts for text in row["positive"])
    recipe = load_toml(RECIPES / "reranker-asked.toml")
    config = resolve(recipe)
    named = [source.path for source in (*config.corpus, *config.settings.queries)]
    assert sorted(named) == sorted(found)


def test_encoders_are_scored_on_what_is_not_trained_on(data, written, capsys):
    sentences = [question(country) for country in CAPITALS], [sentence(country) for country in CAPITALS]
    pairs = [(f"{row % 6}", *both) for row, both in enumerate(zip(*sentences, strict=True))]
    write_table(
        data / "sts/STSBenchmark/sts-dev.csv",
        [("genre", "file", "year", str(row), *pair) for row, pair in enumerate(pairs)],
    )
    header = "pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"
    trial = [(str(row), *both, score, "NEUTRAL") for row, (score, *both) in enumerate(pairs)]
    write_table(data / "sts/SICK/SICK_trial.txt", [header, *trial])
    reranked = {"query": question("Peru"), "positive": [sentence("Peru")], "negative": [sentence("Italy")]}
    for name in ("trecqa-dev", "semeval2016-cqa-dev"):
        path = data / f"rerank/{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(reranked) + "\n")
    run_script("development.py", data, "tiny", "tiny", "--asked", written, *MODELS)
    *_, heading, first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert len(first.split("|")) == len(heading.split("|"))
    *retrieval, _, _, _, _ = (float(cell) for cell in first.split("|")[2:-1])
    assert all(0 < score <= 100 for score in retrieval)
    for documents in ("tiny", RECIPES.parent / "models/static.onnx"):
        run_script("development.py", data, "tiny", "--asked", written, "--documents", documents, *MODELS)
        *_, row = capsys.readouterr().out.splitlines()
        scores = [float(cell) for cell in row.split("|")[2:-1]]
        assert (scores == retrieval) is (documents == "tiny")
    trained = (written / "pairs.jsonl").read_text()
    for path in (written / "development").glob("*.json"):
        made = json.loads(path.read_text())
        assert all(json.dumps(query["text"]) not in trained for query in made["queries"])
