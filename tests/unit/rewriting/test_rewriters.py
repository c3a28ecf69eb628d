"""Rewriters, followed text by text on random networks over the toy vocabulary."""

from __future__ import annotations

import pytest
import torch
from rewrite import BackTranslation, MaskedRefill
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration, BertConfig, BertForMaskedLM

from embedkit.errors import InputError, ModelError, ModelNotFoundError
from embedkit.modeling.quiet import quiet_transformers
from embedkit.modeling.vocabulary import write_tokenizer

TEXT = "the old cat will sleep in the green garden by the sea"


def save(model, folder, tokenizer):
    with quiet_transformers():
        model.save_pretrained(folder)
    write_tokenizer(folder, tokenizer)
    return folder


@pytest.fixture(scope="session")
def masked_lm(tokenizer, tmp_path_factory):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    return save(BertForMaskedLM(config), tmp_path_factory.mktemp("models") / "masked", tokenizer)


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
    @pytest.mark.parametrize(("share", "masked"), [(0.01, 1), (0.2, 2), (0.5, 6), (1.0, 12)])
    def test_the_share_of_the_inner_pieces_is_masked(self, masked_lm, share, masked):
        rewriter = MaskedRefill(masked_lm, share=share)
        tokens = rewriter._network.tokenize([TEXT], 16, return_special_tokens_mask=True)
        places = rewriter._places(TEXT, tokens["special_tokens_mask"][0].bool())
        assert int(places.sum()) == masked
        assert not places[0]
        assert not places[-1]

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

    def test_the_seed_changes_the_positions(self, masked_lm):
        written = {MaskedRefill(masked_lm, seed=seed).rewrite([TEXT])[0] for seed in range(8)}
        assert len(written) > 2

    def test_the_fingerprint_covers_settings_and_weights(self, masked_lm, tokenizer, tmp_path):
        settings = [{}, {"seed": 1}, {"share": 0.3}, {"max_length": 12}]
        prints = [MaskedRefill(masked_lm, **options).fingerprint for options in settings]
        assert prints[0] == MaskedRefill(masked_lm).fingerprint
        model = BertForMaskedLM.from_pretrained(masked_lm)
        with torch.no_grad():
            model.cls.predictions.bias[0] += 1
        prints.append(MaskedRefill(save(model, tmp_path / "masked", tokenizer)).fingerprint)
        assert len(set(prints)) == len(prints)

    def test_long_texts_are_cut(self, masked_lm, tokenizer):
        written = MaskedRefill(masked_lm, max_length=6).rewrite(["cat " * 50])[0]
        assert len(written.split()) <= 4
        assert MaskedRefill(masked_lm, max_length=10_000).rewrite(["cat " * 50])[0]

    @pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
    def test_an_invalid_share_is_refused(self, masked_lm, share):
        with pytest.raises(InputError, match="greater than 0 and at most 1"):
            MaskedRefill(masked_lm, share=share)

    def test_an_encoder_without_the_head_is_refused(self, make_encoder, tmp_path):
        """transformers would initialise a head randomly."""
        make_encoder().save(tmp_path / "encoder")
        with pytest.raises(ModelError, match="of another kind: it lacks"):
            MaskedRefill(tmp_path / "encoder")

    def test_a_translator_is_not_a_masked_language_model(self, translators, masked_lm):
        with pytest.raises(ModelError, match="cannot load the model"):
            BackTranslation(translators[0], masked_lm)

    def test_no_model(self, tmp_path):
        with pytest.raises(ModelNotFoundError):
            MaskedRefill(tmp_path / "nothing")

    def test_a_device_that_is_not_there(self, masked_lm):
        with pytest.raises(ModelError, match="cannot load the model"):
            MaskedRefill(masked_lm, device="cuda:77")


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

    def test_the_direction_and_the_settings_decide_the_fingerprint(self, translators):
        there, back = translators
        rewriters = [
            BackTranslation(there, back),
            BackTranslation(back, there),
            BackTranslation(there, back, beams=2),
            BackTranslation(there, back, max_length=12),
        ]
        assert len({rewriter.fingerprint for rewriter in rewriters}) == 4
        assert rewriters[0].name == "way1 and way2"
