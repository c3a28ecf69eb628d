"""Back-translation by random networks over the toy vocabulary, from the command line."""

from __future__ import annotations

import pytest
import torch
from rewrite import BackTranslation, main
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration

from embedkit.errors import ModelError
from embedkit.modeling.initialisation import random
from embedkit.modeling.pretrained import quiet_transformers
from embedkit.modeling.sizes import Size
from embedkit.modeling.vocabulary import write_tokenizer
from embedkit.runtime.tokenization import Tokenizer

TEXTS = ["the old cat will sleep in the green garden by the sea", "a good dog", "my sister sings"]


@pytest.fixture(scope="session")
def tokenizer(toy_tokenizer_json):
    return Tokenizer(toy_tokenizer_json, 16)


@pytest.fixture(scope="session")
def translators(tokenizer, tmp_path_factory):
    """Return two networks of one direction each, which have learned no language."""
    sizes = {f"{part}_{what}": count for part in ("encoder", "decoder") for what, count in
             (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))}  # fmt: skip
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = BartConfig(
            vocab_size=tokenizer.vocabulary_size,
            d_model=16,
            max_position_embeddings=40,
            init_std=1.0,
            forced_eos_token_id=None,
            **sizes,
            **special,
        )
        folders.append(tmp_path_factory.mktemp("models") / f"way{seed}")
        with quiet_transformers():
            BartForConditionalGeneration(config).save_pretrained(folders[-1])
        write_tokenizer(folders[-1], tokenizer)
    return folders


def test_it_equals_the_models_one_after_the_other(translators):
    expected = []
    for text in TEXTS:
        for folder in translators:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model = BartForConditionalGeneration.from_pretrained(folder).eval()
            tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=12)
            ids = model.generate(
                tokens["input_ids"], attention_mask=tokens["attention_mask"], num_beams=2, max_new_tokens=12
            )
            text = tokenizer.decode(ids[0], skip_special_tokens=True)  # noqa: PLW2901 - there, then back
        expected.append(text)
    assert BackTranslation(*translators, beams=2, max_length=12).rewrite(TEXTS) == expected
    assert len(set(expected)) > 1


def test_texts_become_pairs(translators, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    main(["texts.txt", "-o", "pairs.tsv", "--translate", *map(str, translators), "--max-length", "12"])
    pairs = [line.split("\t") for line in (tmp_path / "pairs.tsv").read_text(encoding="utf-8").splitlines()]
    assert [first for first, _ in pairs] == TEXTS
    assert "pairs.tsv: 3 pairs" in capsys.readouterr().out


def test_a_model_of_another_kind_is_refused(translators, tokenizer, tmp_path):
    """transformers would initialise the missing weights randomly."""
    random(tokenizer, Size(1, 16, 2), max_length=16, seed=0).save(tmp_path / "encoder")
    with pytest.raises(ModelError, match=r"of another kind: it lacks|cannot load"):
        BackTranslation(translators[0], tmp_path / "encoder")
