import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from toys import edit_json
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, CLIPConfig, CLIPModel

from embedkit.errors import ModelError, ModelNotFoundError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.modeling.vocabulary import write_tokenizer
from embedkit.runtime.tokenization import Tokenizer


@pytest.fixture
def batch(tokenizer, texts):
    padded = tokenizer.pad(tokenizer.tokenize(texts).ids)
    return torch.from_numpy(padded.input_ids), torch.from_numpy(padded.attention_mask)


@torch.inference_mode()
def run(encoder, batch):
    return encoder(*batch).numpy()


@pytest.mark.parametrize(
    ("pooling", "reference"), [("mean", lambda states: states.mean(dim=0)), ("cls", lambda states: states[0])]
)
def test_pooling_is_that_of_a_text_s_own_tokens(make_encoder, tokenizer, texts, batch, pooling, reference):
    encoder = make_encoder(pooling=pooling)
    for row, ids in zip(run(encoder, batch), tokenizer.tokenize(texts).ids, strict=True):
        with torch.inference_mode():
            states = encoder.backbone(input_ids=torch.tensor([ids])).last_hidden_state[0]
        np.testing.assert_allclose(row, reference(states), atol=1e-6)


def test_a_head_is_a_linear_layer_and_tanh(make_encoder, batch):
    encoder = make_encoder(head=5)

    with torch.inference_mode():
        pooled = encoder.pooled(*batch).numpy()
    weight, bias = (encoder.head.linear.get_parameter(name).detach().numpy() for name in ("weight", "bias"))
    np.testing.assert_allclose(run(encoder, batch), np.tanh(pooled @ weight.T + bias), atol=1e-6)
    assert (encoder.dimension, encoder.hidden) == (5, 32)


def test_pooling_is_float32_under_autocast(make_encoder, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert make_encoder().pooled(*batch).dtype == torch.float32
        assert make_encoder(pooling="cls").pooled(*batch).dtype == torch.float32


@pytest.mark.parametrize("pooling", ["mean", "cls", "max+mean", "mean+max"])
@pytest.mark.parametrize("head", [None, 5])
def test_what_is_saved_is_loaded(make_encoder, batch, tmp_path, pooling, head):
    encoder = make_encoder(pooling=pooling, head=head)
    encoder.prompts = {"query": "find: "}
    encoder.save(tmp_path / "model")

    loaded = SentenceEncoder.load(tmp_path / "model").eval()

    np.testing.assert_array_equal(run(loaded, batch), run(encoder, batch))
    assert loaded.fingerprint() == encoder.fingerprint()
    assert (loaded.pooling, loaded.dimension, loaded.max_length) == (pooling, encoder.dimension, 16)
    assert loaded.prompts == {"query": "find: "}


def test_transformers_loads_the_folder(make_encoder, batch, tmp_path):
    encoder = make_encoder()
    encoder.save(tmp_path)

    backbone = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()

    with torch.inference_mode():
        theirs = backbone(input_ids=batch[0], attention_mask=batch[1]).last_hidden_state
        ours = encoder.backbone(input_ids=batch[0], attention_mask=batch[1]).last_hidden_state
    assert torch.equal(theirs, ours)


def test_a_plain_folder_gets_the_mean_and_a_log_message(make_encoder, tmp_path, caplog):
    make_encoder(pooling="cls").save(tmp_path)
    (tmp_path / "modules.json").unlink()

    assert SentenceEncoder.load(tmp_path).pooling == "mean"
    assert "does not specify its pooling" in caplog.text


def test_a_teacher_reads_texts_with_its_default_prompt(make_encoder, tmp_path):
    make_encoder().save(tmp_path)
    plain = TorchEncoder(SentenceEncoder.load(tmp_path))
    settings = {"prompts": {"query": "find: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))

    prompted = TorchEncoder(SentenceEncoder.load(tmp_path))

    np.testing.assert_array_equal(prompted.encode(["the cat"]), plain.encode(["find: the cat"]))
    assert prompted.fingerprint != plain.fingerprint


def test_arguments_override_the_folder(make_encoder, tmp_path, caplog):
    make_encoder(pooling="cls").save(tmp_path)

    loaded = SentenceEncoder.load(tmp_path, pooling="mean", max_length=9)

    assert (loaded.pooling, loaded.max_length) == ("mean", 9)
    assert caplog.text == ""


@pytest.mark.release  # a process of its own imports torch
def test_loading_is_silent(make_encoder, tmp_path):
    make_encoder().save(tmp_path)
    script = f"from embedkit.modeling.encoder import SentenceEncoder; SentenceEncoder.load({str(tmp_path)!r})"

    # In a process of its own, because threads of other tests' libraries write to the same streams.
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("name", ["tiny", "tiny/model"])
def test_a_model_is_named_after_its_folder_or_run(make_encoder, tmp_path, name):
    make_encoder().save(tmp_path / name)

    assert SentenceEncoder.load(tmp_path / name).name == "tiny"


def test_half_precision_weights_are_widened(make_encoder, tmp_path):
    make_encoder().save(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})

    assert {parameter.dtype for parameter in SentenceEncoder.load(tmp_path).parameters()} == {torch.float32}


def test_a_network_that_returns_tuples_is_read(make_encoder, batch, tmp_path):
    encoder = make_encoder()
    encoder.save(tmp_path)
    edit_json(tmp_path / "config.json", return_dict=False)

    assert torch.equal(SentenceEncoder.load(tmp_path)(*batch), encoder(*batch))


class TestFingerprint:
    def test_depends_on_everything_that_decides_embeddings(self, make_encoder, tokenizer):
        variants = [
            make_encoder(),
            make_encoder(pooling="cls"),
            make_encoder(head=32),
            make_encoder(seed=1),
            make_encoder(max_length=15),
        ]
        other_heads = random(tokenizer, Size(2, 32, 4), max_length=16, seed=0)
        content = json.loads(tokenizer.json)
        content["normalizer"]["lowercase"] = False
        cased = make_encoder()
        cased.tokenizer = Tokenizer(json.dumps(content), 16)
        nudged = make_encoder()
        with torch.no_grad():
            next(nudged.parameters())[7, 3] += 1e-3

        fingerprints = {model.fingerprint() for model in [*variants, other_heads, cased, nudged]}

        assert len(fingerprints) == 8


class TestRefusals:
    @pytest.fixture
    def folder(self, make_encoder, tmp_path):
        make_encoder(head=5).save(tmp_path / "model")
        return tmp_path / "model"

    def test_missing_and_other_folders(self, tmp_path):
        with pytest.raises(ModelNotFoundError):
            SentenceEncoder.load(tmp_path / "nothing")
        with pytest.raises(ModelError, match=r"no config\.json"):
            SentenceEncoder.load(tmp_path)

    @pytest.mark.parametrize(
        ("file", "content"),
        [("config.json", b'{"model_type": "quantum"}'), ("model.safetensors", None), ("model.safetensors", b"no")],
    )
    def test_a_folder_that_transformers_does_not_load(self, folder, file, content):
        (folder / file).unlink()
        if content is not None:
            (folder / file).write_bytes(content)
        with pytest.raises(ModelError, match="cannot load the model") as caught:
            SentenceEncoder.load(folder)
        assert "\n" not in str(caught.value)

    def test_weights_that_git_did_not_fetch_are_named(self, folder):
        (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n")
        with pytest.raises(ModelError, match=r"model\.safetensors: this is a pointer of Git LFS"):
            SentenceEncoder.load(folder)

    def test_a_weight_of_another_shape_is_named(self, folder):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        wrong = config | {"intermediate_size": config["intermediate_size"] + 4}
        (folder / "config.json").write_text(json.dumps(wrong), encoding="utf-8")
        tells_shapes = not transformers.__version__.startswith("4.")
        found = r"is \d+, but \d+" if tells_shapes else "has another shape than"
        with pytest.raises(ModelError, match=rf"dense\.bias {found} by config\.json"):
            SentenceEncoder.load(folder)

    def test_an_unknown_activation_is_more_than_its_name(self, folder):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "glu"}), encoding="utf-8")
        with pytest.raises(ModelError, match="KeyError 'glu'"):
            SentenceEncoder.load(folder)

    def test_a_missing_weight_is_not_initialised_randomly(self, folder):
        file = folder / "model.safetensors"
        weights = load_file(file)
        del weights["encoder.layer.1.output.dense.weight"]
        save_file(weights, file, metadata={"format": "pt"})

        with pytest.raises(ModelError, match=r"lacks 1 .*encoder\.layer\.1\.output\.dense\.weight"):
            SentenceEncoder.load(folder)

    def test_damaged_head(self, folder):
        (folder / "2_Dense" / "model.safetensors").write_bytes(b"no")

        with pytest.raises(ModelError, match="dense head"):
            SentenceEncoder.load(folder)

    def test_head_of_another_width(self, folder):
        weights = {"linear.weight": torch.zeros(5, 31), "linear.bias": torch.zeros(5)}
        save_file(weights, folder / "2_Dense" / "model.safetensors")

        with pytest.raises(ModelError, match="expects width 31, but the model has 32"):
            SentenceEncoder.load(folder)

    def test_prompts_excluded_from_pooling(self, folder):
        edit_json(folder / "1_Pooling" / "config.json", include_prompt=False)
        assert SentenceEncoder.load(folder).prompts == {}
        (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "query: "}}')

        with pytest.raises(ModelError, match="include_prompt is false"):
            SentenceEncoder.load(folder)

    def test_tokenizer_of_another_model(self, folder):
        content = json.loads((folder / "tokenizer.json").read_text())
        content["model"]["vocab"]["zzz"] = len(content["model"]["vocab"])
        (folder / "tokenizer.json").write_text(json.dumps(content))

        with pytest.raises(ModelError, match="different models"):
            SentenceEncoder.load(folder)

    def test_too_long_texts(self, folder):
        with pytest.raises(ModelError, match="at most 16 tokens"):
            SentenceEncoder.load(folder, max_length=17)

    def test_unknown_pooling(self, folder):
        with pytest.raises(ModelError, match="pooling must be one of cls, max"):
            SentenceEncoder.load(folder, pooling="median")


def write_dense(folder, number, weight, bias=None, **settings):
    """Add a dense layer to a folder before its last module."""
    place = folder / f"{number}_Dense"
    place.mkdir()
    described = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": bias is not None,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    (place / "config.json").write_text(json.dumps(described | settings))
    save_file(
        {"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias}), place / "model.safetensors"
    )
    modules = json.loads((folder / "modules.json").read_text())
    kind = "sentence_transformers.models.Dense"
    modules.insert(-1, {"idx": number, "name": str(number), "path": place.name, "type": kind})
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("activation", ["linear.Identity", "activation.Tanh"])
def test_a_chain_of_dense_layers_is_one_head(make_encoder, batch, tmp_path, activation):
    make_encoder().save(tmp_path)
    pooled = run(SentenceEncoder.load(tmp_path).eval(), batch)
    first, second = torch.randn(48, 32, generator=torch.Generator().manual_seed(1)), torch.eye(6, 48) + 0.1
    bias = torch.arange(6.0)
    write_dense(tmp_path, 5, first, activation_function=f"torch.nn.modules.{activation}")
    write_dense(tmp_path, 6, second, bias)

    loaded = SentenceEncoder.load(tmp_path).eval()

    middle = pooled @ first.numpy().T
    middle = np.tanh(middle) if "Tanh" in activation else middle
    np.testing.assert_allclose(run(loaded, batch), middle @ second.numpy().T + bias.numpy(), atol=2e-5)
    assert loaded.dimension == 6


@pytest.mark.parametrize("head", [None, 7])
def test_truncated_dimensions_are_the_leading_ones(make_encoder, batch, tmp_path, head):
    make_encoder(head=head).save(tmp_path)
    whole = run(SentenceEncoder.load(tmp_path).eval(), batch)
    edit_json(tmp_path / "config_sentence_transformers.json", truncate_dim=5)

    loaded = SentenceEncoder.load(tmp_path).eval()

    assert loaded.dimension == 5
    np.testing.assert_allclose(run(loaded, batch), whole[:, :5], atol=1e-6)


def test_a_language_model_without_a_pooling_is_refused(make_encoder, tmp_path):
    make_encoder().save(tmp_path)
    (tmp_path / "modules.json").unlink()
    edit_json(tmp_path / "config.json", architectures=["Qwen3ForCausalLM"])

    with pytest.raises(ModelError, match="Qwen3ForCausalLM without a pooling"):
        SentenceEncoder.load(tmp_path)


@pytest.mark.parametrize("setting", ["hidden_activation", "rope_theta", "local_attention", "norm_eps"])
def test_the_fingerprint_depends_on_settings_of_other_architectures(make_encoder, setting):
    encoder = make_encoder()
    before = encoder.fingerprint()
    setattr(encoder.config, setting, 3)

    assert encoder.fingerprint() != before


def test_code_of_a_model_runs_only_with_permission(make_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    expected = make_encoder()
    expected.save(tmp_path / "model")
    (tmp_path / "model" / "code.py").write_text(
        "from transformers import BertConfig, BertModel\n"
        "class OwnConfig(BertConfig):\n    model_type = 'own'\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    classes = {"AutoConfig": "code.OwnConfig", "AutoModel": "code.OwnModel"}
    edit_json(tmp_path / "model" / "config.json", model_type="own", auto_map=classes)

    with pytest.raises(ModelError, match="--trust-remote-code"):
        SentenceEncoder.load(tmp_path / "model")
    found = SentenceEncoder.load(tmp_path / "model", trust_remote_code=True)

    assert type(found.backbone).__name__ == "OwnModel"
    np.testing.assert_array_equal(TorchEncoder(found).encode(["a cat"]), TorchEncoder(expected).encode(["a cat"]))


@pytest.mark.parametrize("chosen", ["someone/kernel", {"": "sdpa", "text_config": "someone/kernel:attend"}])
@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_kernels_of_the_hub_are_code_of_a_model_too(make_encoder, tmp_path, name, chosen):
    encoder = make_encoder()
    PairEncoder.from_encoder(encoder, max_length=16, seed=0).save(tmp_path / "cross")
    encoder.save(tmp_path / "model")
    for kind, folder in ((SentenceEncoder, "model"), (PairEncoder, "cross")):
        edit_json(tmp_path / folder / "config.json", **{name: chosen})
        with pytest.raises(ModelError, match="--trust-remote-code"):
            kind.load(tmp_path / folder)


def write_multimodal(folder, tokenizer):
    """Write EmbeddingGemma 2 for texts alone, whose states are wider than its hidden size."""
    text = {
        "vocab_size": tokenizer.vocabulary_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "global_head_dim": 8,
        "hidden_size_per_layer_input": 8,
        "embedding_dim": 40,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 40,
    }
    config = AutoConfig.for_model(
        "embedding_gemma2",
        text_config=text,
        vision_config=None,
        audio_config=None,
        image_token_id=9,
        video_token_id=10,
        audio_token_id=11,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = AutoModel.from_config(config).eval()
        with torch.no_grad():
            network.get_input_embeddings().weight.normal_()
    network.save_pretrained(folder)
    write_tokenizer(folder, tokenizer)
    return network


@pytest.mark.skipif("embedding_gemma2" not in CONFIG_MAPPING, reason="transformers 4 has no EmbeddingGemma 2")
def test_the_text_network_of_embeddinggemma_2_is_read(tokenizer, batch, tmp_path):
    network = write_multimodal(tmp_path, tokenizer)

    encoder = SentenceEncoder.load(tmp_path).eval()

    ids, mask = batch
    ids = ids.clone()
    ids[0, 1] = 9  # as if it stood for an image
    with torch.inference_mode():
        states = network(input_ids=ids, attention_mask=mask).last_hidden_state
        expected = (states * mask.unsqueeze(2)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    np.testing.assert_allclose(run(encoder, (ids, mask)), expected, atol=1e-5)
    assert (encoder.hidden, encoder.dimension, encoder.config.hidden_size) == (40, 40, 32)


def test_other_models_of_more_than_texts_are_refused(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    text, vision = {**sizes, "vocab_size": 40}, {**sizes, "image_size": 8, "patch_size": 4}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision)).save_pretrained(tmp_path)

    with pytest.raises(ModelError, match="is a clip, a multimodal model"):
        SentenceEncoder.load(tmp_path)


@pytest.mark.parametrize("is_whole", [True, False])
def test_weights_are_checked_where_code_of_a_model_reports_nothing(make_encoder, tmp_path, monkeypatch, is_whole):
    expected = make_encoder()
    expected.save(tmp_path)
    load = AutoModel.from_pretrained

    def load_silently(folder, *, output_loading_info=False, **options):
        model = load(folder, **options)
        if not is_whole:
            torch.nn.init.normal_(model.encoder.layer[1].output.dense.weight)
        return model

    monkeypatch.setattr(AutoModel, "from_pretrained", load_silently)

    if is_whole:
        assert SentenceEncoder.load(tmp_path).fingerprint() == expected.fingerprint()
        return
    with pytest.raises(ModelError, match=r"lacks 1 of the model's weights, for example encoder\.layer\.1\.output"):
        SentenceEncoder.load(tmp_path)
