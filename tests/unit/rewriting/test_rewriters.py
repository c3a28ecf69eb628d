"""Rewriters, followed text by text on random networks over the toy vocabulary."""

from __future__ import annotations

import pytest
import torch
from rewrite import BackTranslation, MaskedRefill
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration, BertForMaskedLM

from embedkit.errors import ModelError

from .conftest import save

TEXT = "the old cat will sleep in the green garden by the sea"


@pytest.fixture(scope="session")
def translators(tokenizer, tmp_path_factory):
    """Return two networks of one direction each, which have learned no language."""
    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = BartConfig(
            vocab_size=tokenizer.vocabulary_size,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            max_position_embeddings=40,
            init_std=1.0,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
        )
        folder = tmp_path_factory.mktemp("models") / f"way{seed}"
        folders.append(save(BartForConditionalGeneration(config), folder, tokenizer))
    return folders


class TestMaskedRefill:
    def test_equals_the_model_asked_for_one_text(self, masked_lm):
        rewriter = MaskedRefill(masked_lm)
        tokenizer, model = (
            AutoTokenizer.from_pretrained(masked_lm),
            BertForMaskedLM.from_pretrained(masked_lm).eval(),
        )
        ids = tokenizer(TEXT)["input_ids"]
        special = torch.tensor([number in tokenizer.all_special_ids for number in ids])
        places = rewriter._places(TEXT, special).nonzero().flatten().tolist()
        masked = [tokenizer.mask_token_id if place in places else number for place, number in enumerate(ids)]
        logits = model(torch.tensor([masked])).logits[0]
        for place in places:
            ranked = logits[place].argsort(descending=True).tolist()
            ids[place] = next(number for number in ranked if number not in tokenizer.all_special_ids)
        assert rewriter.rewrite([TEXT]) == [tokenizer.decode(ids, skip_special_tokens=True)]
        assert rewriter.rewrite([TEXT]) != [TEXT]

    def test_other_texts_and_their_order_do_not_matter(self, masked_lm):
        rewriter = MaskedRefill(masked_lm)
        texts = [TEXT, "a good dog", "", *(f"the cat number {word}" for word in ["one", "two", "three"] * 12)]
        together = rewriter.rewrite(texts)
        assert together == [rewriter.rewrite([text])[0] for text in texts]
        assert together[::-1] == rewriter.rewrite(texts[::-1])
        assert together[2] == ""

    def test_an_encoder_without_the_head_is_refused(self, make_encoder, tmp_path):
        """transformers would initialise a head randomly."""
        make_encoder().save(tmp_path / "encoder")
        with pytest.raises(ModelError, match="of another kind: it lacks"):
            MaskedRefill(tmp_path / "encoder")


class TestBackTranslation:
    def test_equals_the_models_one_after_the_other(self, translators):
        texts = [TEXT, "a good dog", "my sister sings"]
        expected = []
        for text in texts:
            for folder in translators:
                tokenizer = AutoTokenizer.from_pretrained(folder)
                model = BartForConditionalGeneration.from_pretrained(folder).eval()
                tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=12)
                ids = model.generate(
                    tokens["input_ids"], attention_mask=tokens["attention_mask"], num_beams=2, max_new_tokens=12
                )
                text = tokenizer.decode(ids[0], skip_special_tokens=True)  # noqa: PLW2901 - there, then back
            expected.append(text)
        assert BackTranslation(*translators, beams=2, max_length=12).rewrite(texts) == expected
        assert len(set(expected)) > 1
