import json

import pytest
from toys import edit_json

from embedkit.errors import ModelError
from embedkit.modeling.layout import read_activation, weights_bytes, write_layout
from embedkit.runtime.folder_layout import POOLINGS, Layout, read_layout

HEAD = "2_Dense"
FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, pooling="cls", head=(4, "tanh"), prompts={"query": "query: "})
    return tmp_path


def write(folder, *, pooling="mean", memory=None, head=None, prompts=None):
    return write_layout(
        folder, hidden=8, pooling=pooling, max_length=20, memory=memory, head=head, prompts=prompts or {}
    )


def test_a_plain_transformers_folder_says_nothing(tmp_path):
    assert read_layout(tmp_path) == Layout(backbone=tmp_path)


@pytest.mark.parametrize("mode", POOLINGS)
def test_the_newer_way_to_name_the_pooling_is_read(folder, mode):
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 8, "pooling_mode": mode}))

    assert read_layout(folder).pooling == mode


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling_mode": "median"},
        {"pooling_mode": ["mean", "median"]},
        {"pooling_mode": 3},
    ],
)
def test_another_pooling_is_refused(folder, settings):
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 8} | settings))

    with pytest.raises(ModelError, match="embedkit supports cls, max, mean"):
        read_layout(folder)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pooling_mode": ["mean", "lasttoken"]}, "mean+lasttoken"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "cls+mean"),
        ({"pooling_mode_mean_tokens": False}, "mean"),  # all off is the mean, as in sentence-transformers
        ({}, "mean"),
    ],
)
def test_several_poolings_are_joined(folder, settings, expected):
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 8} | settings))

    assert read_layout(folder).pooling == expected


@pytest.mark.parametrize(
    ("file", "settings", "words"),
    [
        ("1_Pooling/config.json", {"scale": 2}, "the setting scale"),
        ("sentence_bert_config.json", {"query_length": 32}, "the setting query_length"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task 'fill-mask'"),
        ("sentence_bert_config.json", {"modality_config": {"text": FORWARD, "message": FORWARD}}, "chat template"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": FORWARD | {"method": "get_text_features"}}},
            "only the last_hidden_state of forward",
        ),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "is a SparseEncoder"),
        ("config_sentence_transformers.json", {"new": True}, "the setting new"),
        ("3_Normalize/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
        ("adapter_config.json", {}, r"adapter_config\.json: embedkit does not support adapters"),
        ("1_Pooling/config.json", '{"cut of', "1_Pooling/config.json"),
        ("sentence_bert_config.json", '{"cut of', "sentence_bert_config.json"),
    ],
)
def test_a_setting_that_is_not_known_is_refused_by_name(folder, file, settings, words):
    path = folder / file
    if isinstance(settings, dict):
        settings = json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | settings)
    path.write_text(settings)

    with pytest.raises(ModelError, match=words):
        read_layout(folder)


@pytest.mark.parametrize("architecture", ["roberta", "distilbert", "xlm-roberta"])
def test_older_folders_name_the_length_s_file_after_their_architecture(folder, architecture):
    (folder / "sentence_bert_config.json").rename(folder / f"sentence_{architecture}_config.json")
    edit_json(folder / f"sentence_{architecture}_config.json", max_seq_length=7)

    assert read_layout(folder).max_length == 7


def test_usual_modalities_change_nothing(folder):
    before = read_layout(folder)
    edit_json(folder / "sentence_bert_config.json", modality_config={"text": FORWARD}, unpad_inputs=None)

    assert read_layout(folder) == before


def test_a_module_of_other_code_is_refused_by_name(folder):
    path = folder / "modules.json"
    path.write_text(path.read_text().replace("sentence_transformers.models.Transformer", "custom_st.Transformer"))

    with pytest.raises(
        ModelError, match=r"has the module custom_st\.Transformer, which embedkit does not support"
    ):
        read_layout(folder)


def test_empty_prompts_are_prompts(folder):
    settings = {"prompts": {"query": "find: ", "document": ""}, "similarity_fn_name": "dot", "truncate_dim": 4}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))

    found = read_layout(folder)

    assert found.prompts == settings["prompts"]
    assert (found.similarity, found.truncate_dim) == ("dot", 4)


def test_a_cross_encoder_with_modules_is_one(folder):
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:1]))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"})
    )

    found = read_layout(folder)

    assert (found.kind, found.activation) == ("cross-encoder", "torch.nn.modules.linear.Identity")


def test_a_reranker_made_of_a_language_model_is_refused(folder):
    modules = json.loads((folder / "modules.json").read_text())[:1]
    modules.append({"idx": 1, "name": "1", "path": "1_LogitScore", "type": "sentence_transformers.LogitScore"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "CrossEncoder"}))

    with pytest.raises(ModelError, match=r"Transformer, LogitScore.*causal language models"):
        read_layout(folder)


def test_a_default_prompt_of_a_cross_encoder_is_refused(folder):
    (folder / "modules.json").unlink()
    (folder / "config.json").write_text(json.dumps({"architectures": ["BertForSequenceClassification"]}))
    edit_json(folder / "config_sentence_transformers.json", prompts={"query": "find: "}, default_prompt_name=None)
    assert read_layout(folder).kind == "cross-encoder"
    edit_json(folder / "config_sentence_transformers.json", default_prompt_name="query")

    with pytest.raises(ModelError, match="no prompt before a cross-encoder's texts"):
        read_layout(folder)


def test_a_linear_head_behind_a_memory_is_read_back(tmp_path):
    written = write(tmp_path, memory=6, head=(4, "linear"))

    assert written == read_layout(tmp_path)
    assert ([read_activation(head) for head in written.heads], written.heads, written.memory) == (
        ["linear"],
        (tmp_path / "3_Dense",),
        tmp_path / "2_WordMemory",
    )
    assert json.loads((tmp_path / "3_Dense" / "config.json").read_text())["in_features"] == 8 + 6


@pytest.mark.parametrize(
    "changes",
    [
        {"activation_function": "torch.nn.modules.activation.Softmax"},
        {"activation_function": "mine.ReLU"},
        {"module_input_name": "token_embeddings"},
        {"use_residual": True},
        {"scale": 2},
    ],
)
def test_another_head_is_refused(folder, changes):
    edit_json(folder / HEAD / "config.json", **changes)

    with pytest.raises(ModelError, match="not a plain dense layer"):
        read_activation(folder / HEAD)


def test_the_size_of_a_model_is_weights_and_tokenizer(tmp_path):
    files = {"model.safetensors": 5, "2_Dense/model.safetensors": 3, "pytorch_model.bin": 70, "tokenizer.json": 2}
    (tmp_path / "2_Dense").mkdir()
    for name, size in files.items():
        (tmp_path / name).write_bytes(b"x" * size)
    assert weights_bytes(tmp_path) == 10
    for path in tmp_path.rglob("*.safetensors"):
        path.unlink()
    assert weights_bytes(tmp_path) == 72
