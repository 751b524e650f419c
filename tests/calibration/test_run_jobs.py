import pytest

from traincast.calibration.run_jobs import model_from_columns
from traincast.errors import ConfigError
from traincast.model.counts import parameters
from traincast.model.load import load_model

GPT = {"model": "gpt-39B", "layers": "48", "hidden": "8192", "ffn_hidden": "32768", "heads": "64", "seq_len": "2048"}


def test_a_row_with_a_name_alone_is_the_built_in_model():
    model, builtin = model_from_columns({"model": "llama3-8b"}), load_model("llama3-8b")
    assert parameters(model) == parameters(builtin)
    assert (model.name, model.attention) == ("llama3-8b", builtin.attention)
    assert "arXiv 2407.21783" in model.source


def test_columns_win_over_the_built_in_model():
    model = model_from_columns({"model": "llama3.1-405b", "layers": "7", "vocab": "1000", "kv_heads": ""})
    builtin = load_model("llama3.1-405b")
    assert (model.layers, model.vocab, model.hidden) == (7, 1000, builtin.hidden)
    experts = model_from_columns({"model": "mixtral-8x7b", "experts": "16", "topk": "1", "moe_ffn": "7168"}).experts
    assert (experts.experts, experts.topk, experts.ffn_hidden) == (16, 1, 7168)


def test_the_columns_of_a_family_make_a_model():
    model = model_from_columns(GPT | {"vocab": "51200", "id": "sc21-5"})
    assert not model.gated
    assert model.tied_embeddings
    assert (model.learned_positions, model.attention.head_dim) == (2048, 128)
    assert "sc21-5" in model.source
    # Narayanan et al. 2021, arXiv 2104.04473, table 1.
    assert parameters(model).total / 1e9 == pytest.approx(39.1, rel=0.005)
    assert model_from_columns(GPT).vocab == 50257
    assert model_from_columns(GPT | {"head_dim": "64"}).attention.head_dim == 64


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "vocab", "params_b", "tied"),
    [
        # Megatron-LM: its table of 2021 (arXiv 2104.04473, table 1) and that of Megatron-Core 0.8 in its README.
        (30, 4096, 32, 131072, 7.1, False),
        (96, 12288, 96, 131072, 177, False),
        (30, 3072, 32, 51200, 3.6, True),
        (24, 2304, 24, 51200, 1.7, True),
    ],
)
def test_the_printed_size_tells_whether_the_head_is_tied(layers, hidden, heads, vocab, params_b, tied):
    row = GPT | {"layers": str(layers), "hidden": str(hidden), "ffn_hidden": str(4 * hidden), "heads": str(heads)}
    model = model_from_columns(row | {"vocab": str(vocab), "params_b": str(params_b)})
    assert model.tied_embeddings is tied
    assert parameters(model).total / 1e9 == pytest.approx(params_b, rel=0.03)


@pytest.mark.parametrize("seq_len", [512, 2048, 65536])
def test_learned_positions_are_the_tokens_of_a_sequence(seq_len):
    # llm-foundry prints 0.1241, 0.1253 and 0.1741 billion parameters for its MPT-125M.
    printed = {512: 0.1241, 2048: 0.1253, 65536: 0.1741}[seq_len]
    model = model_from_columns({"model": "mpt-125m", "seq_len": str(seq_len)})
    assert parameters(model).total / 1e9 == pytest.approx(printed, rel=0.001)
    assert model_from_columns({"model": "llama3-8b", "seq_len": str(seq_len)}).learned_positions == 0


def test_a_model_cut_to_fewer_layers_keeps_one_dense_layer_and_no_further_tokens():
    row = {"model": "deepseek-v3", "layers": "61", "experts": "256"}
    assert (model_from_columns(row).mtp_layers, model_from_columns(row | {"mtp_layers": "0"}).mtp_layers) == (1, 0)
    assert model_from_columns(row).experts.first_dense_layers == 3
    cut = model_from_columns(row | {"layers": "4"})
    assert (cut.mtp_layers, cut.experts.first_dense_layers) == (0, 1)


def test_other_heads_do_not_keep_a_built_in_head_size():
    model = model_from_columns({"model": "qwen3-8b", "heads": "64", "kv_heads": "8", "hidden": "4096"})
    assert model.attention.head_dim == 64
    assert model_from_columns({"model": "qwen3-0.6b"}).attention.head_dim == 128


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("nemotron-h-56b", "nemotron-h-56b"),
        ("Nemotron_3_Nano", "nemotron-3-nano"),
        ("Nemotron V3 Super 120B (26.02)", "nemotron-3-super"),
        ("Nemotron_3_5_Lightning", "nemotron-3-nano"),
        ("qwen3-next-80b-a3b", "qwen3-next-80b-a3b"),
        ("DeepSeekV4 Flash", "deepseek-v4-flash"),
        ("Jamba 1.5 Large", "jamba-1.5-large"),
        ("Falcon-H1-34B", "falcon-h1-34b"),
    ],
)
def test_hybrids_that_are_built_in_are_known_by_their_printed_names(name, known):
    model = model_from_columns({"model": name})
    assert (model.blocks, parameters(model)) == (load_model(known).blocks, parameters(load_model(known)))


@pytest.mark.parametrize("name", ["granite-4.0-h-small", "qwen3.5-35b-a3b", "zamba2-7b"])
def test_other_hybrids_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=r"model: .* is a hybrid of attention .* which is not described"):
        model_from_columns(GPT | {"model": name})


@pytest.mark.parametrize("name", ["flux-12b", "stable-diffusion-xl", "vit-22b", "llava-7b", "t5-11b"])
def test_other_kinds_are_refused_by_name(name):
    with pytest.raises(ConfigError, match="which is not described"):
        model_from_columns(GPT | {"model": name})


@pytest.mark.parametrize("name", ["nemotron4-340b", "nemotron3-8b", "nemotron-22b", "llama1-7b", "qwen3-30b-a3b"])
def test_their_neighbours_are_not(name):
    assert model_from_columns({"model": name}).name == name


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"model": "gpt-187B", "hidden": "13824", "ffn_hidden": "55296"}, "the columns layers, heads are empty"),
        ({"model": "maxtext-32B"}, "layers, hidden, ffn_hidden, vocab, heads are empty"),
        ({"model": "maxtext-32B"}, "no built-in model has that name, and no family either"),
        ({"model": "gpt-x", **{key: value for key, value in GPT.items() if key != "model"}, "experts": "8"}, "topk"),
        ({"model": ""}, "a model without a name"),
        ({}, "a model without a name"),
        (GPT | {"model": "thing-1b", "vocab": "5"}, "nothing tells its kind of layers"),
        (GPT | {"layers": "many"}, "layers: is 'many'; it must be a whole number"),
        (GPT | {"layers": "0"}, "layers: is 0; it must be a whole number from 1 to"),
        (GPT | {"heads": "63"}, "attention.head_dim: is missing"),
    ],
)
def test_what_cannot_be_described_says_why(row, said):
    with pytest.raises(ConfigError) as error:
        model_from_columns(row)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
