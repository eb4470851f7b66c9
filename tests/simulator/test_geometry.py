import json

import pytest

from kvmill.errors import UserError
from kvmill.simulator.catalogue import CATALOGUE
from kvmill.simulator.models import find_geometry

KIB, MIB = 1024, 2**20


@pytest.mark.parametrize(
    ("name", "row_kib", "state_mib", "billions"),
    [
        ("qwen3.5-4b", 32, 49.5, 4.2),
        ("qwen3.5-27b", 64, 147.75, 26.9),
        ("gemma-4-e4b", 16, 20, 8.0),
        ("gemma-4-31b", 80, 799, 30.7),
        ("qwen3-8b", 144, 0, 8.19),
        ("llama-3.1-8b", 128, 0, 8.03),
        ("llama-3.1-70b", 320, 0, 70.55),
        ("smollm2-135m", 22.5, 0, 0.1345),
    ],
)
def test_bytes_per_token_state_and_parameters_are_the_published_ones(name, row_kib, state_mib, billions):
    shape = find_geometry(name)
    assert shape.row_bytes("bf16") == row_kib * KIB
    assert shape.row_bytes("fp8") == row_kib * KIB / 2
    assert shape.state_bytes / MIB == pytest.approx(state_mib, rel=0.005, abs=1e-9)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_names_ignore_case_owner_and_tuning_suffix():
    assert find_geometry("Qwen/Qwen3.5-27B") is CATALOGUE["qwen3.5-27b"]
    assert find_geometry("meta-llama/Llama-3.1-8B-Instruct") is CATALOGUE["llama-3.1-8b"]


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match=r"unknown model geometry 'qwen9'.*qwen3\.5-27b"):
        find_geometry("qwen9")


def test_the_compactable_share_is_what_the_layers_say():
    shape = find_geometry("gemma-4-31b")
    rows = 32_768 * 80 * KIB
    assert shape.compactable_share(32_768, "bf16") == pytest.approx(rows / (rows + shape.state_bytes))
    assert shape.compactable_share(32_768, "bf16") == pytest.approx(2.5 / (2.5 + 0.78), abs=0.01)


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


def written(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA | changes))
    return str(path)


def test_a_configuration_gives_the_same_shape_as_the_catalogue(tmp_path):
    read, known = find_geometry(written(tmp_path)), CATALOGUE["llama-3.1-8b"]
    assert (read.parameters, read.row_bytes("bf16"), read.max_positions) == (
        known.parameters,
        known.row_bytes("bf16"),
        known.max_positions,
    )
    assert find_geometry(str(tmp_path)).layers == 32


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "deepseek_v3"}, "model_type 'deepseek_v3' is not understood. Known: llama, qwen3"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layers other than full attention"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "layers other than full attention"),
        ({"hidden_size": "big"}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number of at least 1"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_reason(tmp_path, changes, reason):
    with pytest.raises(UserError, match=reason):
        find_geometry(written(tmp_path, **changes))


def test_a_broken_file_and_a_missing_one_are_one_clear_line(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        find_geometry(str(path))
    with pytest.raises(UserError, match="no such file"):
        find_geometry(str(tmp_path / "none.json"))
