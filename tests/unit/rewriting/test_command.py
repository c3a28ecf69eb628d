from __future__ import annotations

import json

import pytest
from rewrite import main

TEXTS = ["the cat will sleep in the garden", "my sister sings by the sea", "a good dog"]


@pytest.fixture
def command(masked_lm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return ["texts.txt", "-o", "pairs.tsv", "--masked-lm", str(masked_lm)]


def test_texts_become_pairs(command, tmp_path, capsys):
    main(command)
    pairs = [line.split("\t") for line in (tmp_path / "pairs.tsv").read_text(encoding="utf-8").splitlines()]
    assert [first for first, _ in pairs] == TEXTS
    assert all(first != second for first, second in pairs)
    assert capsys.readouterr().out == "pairs.tsv: 3 pairs, 0 of them equal; 0 texts lost\n"


def test_the_share_counts_and_json_tells_the_same(command, tmp_path, capsys):
    main(command)
    once = (tmp_path / "pairs.tsv").read_text(encoding="utf-8")
    capsys.readouterr()
    main([*command, "--share", "1", "--json"])
    assert json.loads(capsys.readouterr().out) == {"output": "pairs.tsv", "rows": 3, "unchanged": 0, "lost": 0}
    assert (tmp_path / "pairs.tsv").read_text(encoding="utf-8") != once


def test_one_word_of_a_text_becomes_a_synonym(command, wordnet_folder, tmp_path, capsys):
    main([*command[:3], "--synonyms", str(wordnet_folder)])
    pairs = [line.split("\t") for line in (tmp_path / "pairs.tsv").read_text(encoding="utf-8").splitlines()]
    assert pairs[0] == [TEXTS[0], "the cat will slumber in the garden"]
    assert capsys.readouterr().out == "pairs.tsv: 3 pairs, 1 of them equal; 0 texts lost\n"


def test_a_folder_without_wordnet_is_reported(command, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*command[:3], "--synonyms", str(tmp_path)])
    assert caught.value.code == 1
    assert "is not a WordNet database: expected data.noun" in capsys.readouterr().err


def test_another_ending_is_refused_before_a_model_is_loaded(command, capsys):
    command[2] = "pairs.csv"
    with pytest.raises(SystemExit) as caught:
        main([*command[:-1], "no/such/model"])
    assert caught.value.code == 1
    assert "ends in .tsv, got pairs.csv" in capsys.readouterr().err


@pytest.mark.parametrize("ways", [[], ["--masked-lm", "a", "--translate", "b", "c"]], ids=["none", "both"])
def test_one_kind_of_rewriter(ways, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["texts.txt", "-o", "pairs.tsv", *ways])
    assert caught.value.code == 2
    assert "--masked-lm" in capsys.readouterr().err
