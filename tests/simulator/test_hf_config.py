"""A `config.json`: where it is looked for, what it gives, what is refused and in which words."""

import json
from dataclasses import replace

import pytest

from kvmill.errors import UserError
from kvmill.simulator.catalogue import CATALOGUE, CONFIGS
from kvmill.simulator.models import find_geometry, geometry_rows, same_model

LLAMA = CONFIGS["llama-3.1-8b"]


def written(folder, config):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_file_with_the_catalogue_s_values_gives_the_catalogue_s_shape(tmp_path, name):
    read = find_geometry(str(written(tmp_path / name, CONFIGS[name]).parent))
    known = CATALOGUE[name]
    differing = {key for key in known.__slots__ if getattr(read, key) != getattr(known, key)}
    assert differing == {"source"}


def test_names_ignore_case_owner_and_tuning_suffix():
    assert find_geometry("Qwen/Qwen3.5-27B") is CATALOGUE["qwen3.5-27b"]
    assert find_geometry("meta-llama/Llama-3.1-8B-Instruct") is CATALOGUE["llama-3.1-8b"]
    assert find_geometry("deepseek-ai/DeepSeek-R1") is CATALOGUE["deepseek-v3"]
    assert find_geometry("mistralai/Mistral-Small-3.2-24B-Instruct-2506") is CATALOGUE["mistral-small-24b"]


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match=r"unknown model geometry 'qwen9'.*qwen3\.5-27b"):
        find_geometry("qwen9")


def test_a_hub_id_is_read_from_the_local_cache_at_its_main_revision(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--someone--Special-9B"
    written(folder / "snapshots" / "old", LLAMA | {"num_hidden_layers": 9})
    written(folder / "snapshots" / "new", LLAMA | {"num_hidden_layers": 11})
    shape = find_geometry("someone/Special-9B")
    assert shape.name == "someone/Special-9B"
    assert shape.layers in (9, 11)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("old\n")
    assert find_geometry("someone/Special-9B").layers == 9


def test_a_hub_id_that_is_not_cached_is_never_fetched_and_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"none is fetched unasked: run `hf download someone/else config\.json`"):
        find_geometry("someone/else")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "jamba"}, r"model_type 'jamba' is not understood \(it has state-space layers.*Known: .*llama"),
        ({"model_type": "deepseek_v32"}, "indexer"),
        ({"model_type": "llama4"}, "it attends in chunks"),
        ({"model_type": "brandnew"}, "model_type 'brandnew' is not understood. Known: "),
        ({"model_type": None}, "model_type 'None' is not understood"),
        ({"layer_types": ["sliding_attention"] * 32}, "layers of kind sliding_attention are not understood in a llama"),
        ({"layer_types": ["chunked_attention"] * 32}, "layers of kind chunked_attention are not understood"),
        ({"layer_types": ["full_attention"]}, "layer_types must list one kind for each of 32 layers"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "a llama model with use_sliding_window"),
        ({"model_type": "mistral", "sliding_window": 4096}, "no layer keeps a full-attention cache"),
        ({"hidden_size": "big"}, "hidden_size must be a whole number"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number of at least 1"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1,000,000,000,000, beyond anything that is built"),
        ({"vocab_size": None}, "vocab_size must be a whole number of at least 1, not None"),
        ({"num_key_value_heads": 5}, "32 query heads cannot share 5 KV heads evenly"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"quantization_config": {"quant_method": "awq"}}, "weights quantised by 'awq' are not understood"),
        ({"quantization_config": "awq"}, "quantization_config must be an object"),
        ({"model_type": "gemma3"}, "a gemma3 model needs a text_config"),
        ({"model_type": "gemma3", "text_config": {"model_type": "t5"}}, "config.json, text_config: model_type 't5'"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "attends in both directions"),
        ({"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 64}, "without layer_types"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_reason(tmp_path, changes, reason):
    with pytest.raises(UserError, match=reason):
        find_geometry(str(written(tmp_path, LLAMA | changes)))


def test_a_broken_file_and_a_missing_one_are_one_clear_line(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        find_geometry(str(path))
    path.write_text("[]")
    with pytest.raises(UserError, match="not a JSON object"):
        find_geometry(str(path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: no config\.json in it"):
        find_geometry(str(tmp_path / "empty"))
    with pytest.raises(UserError, match="no such file"):
        find_geometry(str(tmp_path / "none.json"))


def test_what_a_checkpoint_holds_beyond_text_is_counted_or_said(tmp_path):
    text = CONFIGS["mistral-small-24b"]["text_config"]
    without = {"model_type": "mistral3", "text_config": text}
    strange = without | {"vision_config": {"model_type": "newest"}}
    plain = find_geometry(str(written(tmp_path / "a", without)))
    said = find_geometry(str(written(tmp_path / "b", strange)))
    assert CATALOGUE["mistral-small-24b"].extra_parameters == 438_958_080
    assert plain.extra_parameters == said.extra_parameters == 0
    tied = "the file does not say tie_word_embeddings: an output projection of its own is counted"
    assert (plain.notes, said.notes) == ((tied,), ("the weights of vision_config (newest) are not counted", tied))


def test_an_fp8_checkpoint_says_which_dtype_holds_it(tmp_path):
    shape = find_geometry(str(written(tmp_path, LLAMA | {"quantization_config": {"quant_method": "fp8"}})))
    assert shape.notes == ("the checkpoint is fp8: --dtype fp8 holds it as it is",)


def test_the_list_of_models_has_a_row_for_each(tmp_path):
    rows = {row["model"]: row for row in geometry_rows()}
    assert set(rows) == set(CATALOGUE)
    assert rows["llama-3.1-8b"]["kv_bytes_per_token"] == 128 * 1024
    assert json.loads(json.dumps(list(rows.values())))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "\udcff", "{", "", '{"hidden_size": ' + "9" * 5000 + "}", "[1]"],
    ids=["nested without end", "not UTF-8", "not closed", "empty", "a number without end", "no object"],
)  # fmt: skip
def test_a_file_that_is_no_json_object_is_one_line(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UserError, match=r"cannot be read as JSON|not a JSON object"):
        find_geometry(str(path))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA | {"hidden_size": 4100, "head_dim": None}, "no multiple of its 32 attention heads"),
        (LLAMA | {"hidden_size": 7, "head_dim": None}, "no multiple of its 32 attention heads"),
        (CONFIGS["qwen3-30b-a3b"] | {"num_experts_per_tok": 200}, "cannot use 200 of 128 experts"),
        (CONFIGS["deepseek-v3"] | {"num_experts_per_tok": 999}, "cannot use 999 of 256 experts"),
    ],
    ids=["odd heads", "heads of nothing", "more experts than there are", "more experts than there are, latent"],
)
def test_shapes_that_cannot_be_are_refused(tmp_path, config, said):
    with pytest.raises(UserError, match=said):
        find_geometry(str(written(tmp_path, config)))


def test_a_name_that_a_file_gives_itself_fits_a_table(tmp_path):
    found = find_geometry(str(written(tmp_path, LLAMA | {"_name_or_path": "a\nb\x1b[31m" + "c" * 500})))
    assert found.name.startswith("a b [31mcc")
    assert len(found.name) == 97
    assert found.name.isprintable()


def test_what_was_measured_with_a_model_is_known_under_its_other_names():
    shape = find_geometry("qwen3.5-27b")
    assert same_model("Qwen/Qwen3.5-27B", shape)
    assert same_model("qwen3.5-27b", replace(shape, max_positions=1000)), "sessions that end earlier"
    assert not same_model("qwen3.5-4b", shape)
    assert not same_model("a model of my own", shape)
    assert not same_model(None, shape)
