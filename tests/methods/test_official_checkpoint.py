"""Whole official checkpoints: settings are read from them, the rest has to be given."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from official_cases import ADAPTERS, feature_encoder
from torch import Tensor
from typer.testing import CliRunner

import eaglenet
from eaglenet.core.errors import CheckpointError, ConfigError, EagleNetError, UsageError
from eaglenet.core.types import Tokens
from eaglenet.methods.base import Method
from eaglenet.methods.official.checkpoint import ONE_VALUE, UNDETERMINED, convert_official
from eaglenet.methods.official.files import read_released
from eaglenet.methods.official.settings import EXPERT_INFERENCE, INFERENCE
from eaglenet.methods.official.tables import TABLES
from eaglenet.models.folder import save
from golden_peers import FILES, Golden, load_peer

GOLDEN_CHECKPOINT = Path(__file__).parents[1] / "golden" / "other" / "tvproxynet.npz"

FULL = {
    "clip4clip": ("lstm_visual.", "cross.", "similarity_dense.", "clip.visual."),
    "tvproxynet": ("dash_weights.",),
}
"""Weights of other heads in the golden files."""

SCORER = "text_token_selector.score_predictor"
NOT_CALLED = {
    "glscl": ("noun_queries", "weight_fc.0.weight", "decoder_layer_noun.linear1.weight",
              "transformer_decoder_spatial.layers.0.linear1.weight"),
    "prost": ("frame_prototype_weight.0.weight", "frame_position_embeddings.weight",
              "transformerClip.resblocks.0.ln_1.weight",
              "event_decoder.event_decoder.layers.0.self_attn_vis.in_proj_weight",
              "frame_decoder.event_decoder.layers.0.self_attn.out_proj.bias"),
    "ts2net": (f"{SCORER}.in_conv.0.bias", f"{SCORER}.out_conv.2.weight",
               "visual_prompt_encoder.conv1.weight", "visual_prompt_encoder.layer_norm.bias",
               "visual_prompt_encoder.positional_embedding"),
    "ucofia": ("frame_mat_weight", "frame_mat_weight2", "word_logit_weight",
               "word_mat_weight_for_pixel"),
}  # fmt: skip
"""Weights that the official classes build and never call; every checkpoint has them."""


def openai_towers(dim: int, shifted: bool) -> dict[str, Tensor]:
    """A CLIP of OpenAI's layout, one head of 64 in each tower."""
    width, generator = 64, torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return 0.1 * torch.randn(*shape, generator=generator)

    weights = {
        "visual.class_embedding": draw(width),
        "visual.positional_embedding": draw(10, width),
        "visual.conv1.weight": draw(width, 3, 4, 4),
        "visual.proj": draw(width, dim),
        "positional_embedding": draw(12, width),
        "token_embedding.weight": draw(20, width),
        "text_projection": draw(width, dim),
    }
    for norm in ("visual.ln_pre", "visual.ln_post", "ln_final"):
        weights |= {f"{norm}.weight": draw(width), f"{norm}.bias": draw(width)}
    for tower, depth in (("visual.transformer", 2), ("transformer", 1)):
        for index in range(depth):
            block = f"{tower}.resblocks.{index}"
            net = ".net" if shifted and tower.startswith("visual") and index else ""
            sizes = {
                "ln_1": (width,),
                "ln_2": (width,),
                f"attn{net}.out_proj": (width, width),
                "mlp.c_fc": (4 * width, width),
                "mlp.c_proj": (width, 4 * width),
            }
            for name, size in sizes.items():
                weights[f"{block}.{name}.weight"] = draw(*size)
                weights[f"{block}.{name}.bias"] = draw(size[0])
            weights[f"{block}.attn{net}.in_proj_weight"] = draw(3 * width, width)
            weights[f"{block}.attn{net}.in_proj_bias"] = draw(3 * width)
    return {f"clip.{name}": value for name, value in weights.items()}


def checkpoint(name: str) -> dict[str, Tensor]:
    golden = load_peer(name)
    weights = {
        key: value
        for key, value in golden.weights.items()
        if not key.startswith(FULL.get(golden.method, ("-",)))
    }
    is_shifted = golden.method in ("prost", "ts2net", "ucofia")
    not_called = {key: torch.zeros(1) for key in NOT_CALLED.get(golden.method, ())}
    return {**openai_towers(golden.options["dim"], is_shifted), **weights, **not_called}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in FILES
        if name.split("-")[0] in ("clip4clip", "drl", "glscl", "prost", "ts2net", "ucofia")
    ],
)
def test_settings_are_read_from_the_checkpoint(name: str) -> None:
    golden = load_peer(name)
    settings: dict[str, Any] = dict(UNDETERMINED.get(golden.method, {}))
    if "num_frames" in settings:
        settings["num_frames"] = golden.options["frames"]
    settings["num_heads"] = golden.options["heads"]
    if golden.method in ("prost", "ts2net", "ucofia"):
        settings["num_shifted_blocks"] = 0 if golden.method == "ucofia" else 1
    conversion = convert_official(golden.method, checkpoint(name), settings, max_words=32)
    config, options = conversion.method.config, golden.options
    assert set(NOT_CALLED.get(golden.method, ())) <= set(conversion.unused_weights)
    assert config.num_frames == options["frames"]
    assert getattr(config, "num_layers", 2) == options["layers"]
    for ours, theirs in (
        ("num_phrases", "phrases"),
        ("num_objects", "objects"),
        ("num_events", "events"),
        ("num_words", "words"),
        ("num_tokens", "selected"),
        ("num_concepts", "query_number"),
        ("feed_forward", "decoder_hidden"),
    ):
        if hasattr(config, ours) and theirs in options:
            assert getattr(config, ours) == options[theirs]
    context = options.get("selection_context", "frame")
    assert getattr(config, "selection_context", "frame") == context
    assert getattr(config, "padding", "official") == "official"
    assert conversion.method.habits.max_words == 32
    assert conversion.method.habits.precision == "fp16"


def test_a_checkpoint_of_clip4clip_with_the_lstm_becomes_a_model() -> None:
    weights = checkpoint("clip4clip-salt0")
    weights = {n: w for n, w in weights.items() if not n.startswith("transformerClip.")}
    lstm = {n: w for n, w in load_peer("clip4clip-salt0").weights.items() if "lstm" in n}
    conversion = convert_official("clip4clip", {**weights, **lstm}, {"num_frames": 6})
    assert conversion.method.config.head == "lstm"
    assert (
        conversion.unused_weights["frame_position_embeddings.weight"]
        == "never called with the LSTM"
    )
    golden = load_peer("clip4clip-salt0")
    conversion.method.encoder = feature_encoder(golden.options["dim"])  # inputs are features
    check_outputs(conversion.method, golden, "seqLSTM/padded")


def test_a_checkpoint_of_xpool_on_openais_clip_becomes_a_model() -> None:
    golden = load_peer("xpool-salt0")
    heads = {"num_frames": golden.options["frames"], "num_heads": golden.options["num_mha_heads"]}
    towers = openai_towers(golden.options["dim"], shifted=False)
    method: Any = convert_official("xpool", {**towers, **golden.weights}, heads).method
    projection = method.encoder.text.projection.weight
    assert torch.equal(projection, towers["clip.text_projection"].T)
    check_outputs(method, golden, "full")


def test_tempme_without_positions_of_clips_is_refused() -> None:
    weights = {n: w for n, w in load_peer("tempme-salt0").weights.items() if "Positional" not in n}
    with pytest.raises(CheckpointError, match="frame_pos=0, which is not supported"):
        convert_official("tempme", weights, UNDETERMINED["tempme"])


def test_a_setting_without_a_trace_has_to_be_given() -> None:
    with pytest.raises(UsageError, match=r"does not determine num_frames.*--set num_frames=12"):
        convert_official("drl", checkpoint("drl-salt0"))


def test_methods_without_official_checkpoints_are_refused() -> None:
    with pytest.raises(UsageError, match="choose one of bridgeformer, ce, clip4clip"):
        convert_official("rap", {})
    with pytest.raises(UsageError, match="convert them with --from ce"):
        convert_official("teachtext", {})
    assert {*INFERENCE, *EXPERT_INFERENCE} == set(TABLES)


HOSTILE: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda value: torch.zeros(()),
    "nothing": lambda value: value[:0],
    "another axis": lambda value: value[None],
    "one axis": torch.flatten,
    "sparse": Tensor.to_sparse,
    "complex": lambda value: value.to(torch.complex64),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_weights_of_other_kinds_are_refused(change: str) -> None:
    """No change of one weight ends the program with a traceback."""
    golden = load_peer("clip4clip-salt0")
    settings = {**UNDETERMINED["clip4clip"], "num_heads": golden.options["heads"]}
    weights = checkpoint("clip4clip-salt0")
    num_refused = 0
    for key in ("clip.visual.proj", "clip.token_embedding.weight", "clip.ln_final.weight"):
        try:
            convert_official("clip4clip", {**weights, key: HOSTILE[change](weights[key])}, settings)
        except EagleNetError:
            num_refused += 1
    assert num_refused or change in ("another axis", "one axis", "complex")


def distilbert(dim: int) -> tuple[Any, Any]:
    """A DistilBERT of transformers with one head of 64, and the map after it."""
    from transformers import DistilBertConfig, DistilBertModel

    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=20, max_position_embeddings=9, dim=64, hidden_dim=96, n_layers=2, n_heads=1
    )
    projection = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(64, dim))
    return DistilBertModel(config).eval(), projection


def space_time_checkpoint(golden: Golden, bert: Any, projection: Any) -> dict[str, Tensor]:
    """The layout of the official classes: both towers and two maps, named as by each repository."""
    name = "txt_proj" if golden.method == "frozen" else "text_proj"
    weights = {f"text_model.{key}": value for key, value in bert.state_dict().items()}
    weights |= {f"{name}.{key}": value for key, value in projection.state_dict().items()}
    for key, value in golden.weights.items():
        is_map = key.startswith("vid_proj.")
        weights[key.replace("vid_proj.", "vid_proj.0.") if is_map else f"video_model.{key}"] = value
    return weights


BRIDGE = ("bridge_proj.0.weight", "video_model.norm2.bias", "video_model.blocks.1.norm7.weight",
          "video_model.blocks.0.crossattn.kv_video.weight")  # fmt: skip
"""Weights of pre-training in checkpoints of BridgeFormer."""


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith(("frozen-", "bridgeformer-"))])
def test_checkpoints_with_a_distilbert_become_models(name: str, tmp_path: Path) -> None:
    golden = load_peer(name)
    bert, projection = distilbert(golden.options["dim"])
    weights = space_time_checkpoint(golden, bert, projection)
    settings = {} if golden.method == "frozen" else {"num_frames": 4}
    if golden.method == "bridgeformer":
        weights |= {key: torch.zeros(1) for key in BRIDGE}
    conversion = convert_official(golden.method, weights, settings)
    save(conversion.method, tmp_path)
    method: Any = eaglenet.load(tmp_path)
    assert (method.habits.max_words, method.habits.precision) == (9, "fp32")
    if golden.method == "frozen":
        assert method.config.num_frames == golden.options["table_frames"]
    else:
        assert set(BRIDGE) <= set(conversion.unused_weights)
    for block in [*method.encoder.vision.blocks, *(method.space_time.time or ())]:
        block.attention.heads = golden.options["heads"]  # narrower than 64 in these files
    check_outputs(method, golden, "full")
    ids = torch.tensor([[18, 3, 4, 19], [18, 7, 19, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    with torch.no_grad():
        texts = method.encode_text(Tokens(ids, mask.bool())).sentence
        states = bert(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(texts, projection(states[:, 0]).detach(), atol=1e-5, rtol=1e-4)


def test_checkpoints_of_the_other_layout_and_of_other_text_towers_are_refused() -> None:
    golden = load_peer("frozen-salt0")
    weights = space_time_checkpoint(golden, *distilbert(golden.options["dim"]))
    with pytest.raises(UsageError, match="does not determine num_frames"):
        convert_official("bridgeformer", weights)
    with pytest.raises(CheckpointError, match="convert it with --from frozen"):
        convert_official("bridgeformer", weights, {"num_frames": 4})
    with pytest.raises(CheckpointError, match=r"no weight 'video_model\.temporal_embed'"):
        convert_official("frozen", {k: v for k, v in weights.items() if "temporal" not in k})
    with pytest.raises(CheckpointError, match="the text tower is not a DistilBERT"):
        convert_official("frozen", {k: v for k, v in weights.items() if "q_lin" not in k})
    with pytest.raises(CheckpointError, match=r"1 unknown weights: video_model\.blocks\.0\.more"):
        convert_official("frozen", {**weights, "video_model.blocks.0.more": torch.ones(1)})


def test_a_checkpoint_of_bridgeformer_on_clip_becomes_a_model() -> None:
    towers = openai_towers(8, shifted=False)
    weights = {name.removeprefix("clip."): value for name, value in towers.items()}
    weights["logit_scale"] = torch.ones(())
    method: Any = convert_official("bridgeformer", weights, {"num_frames": 5}).method
    assert method.habits.precision == "fp16"
    assert torch.equal(method.encoder.vision.class_embedding, weights["visual.class_embedding"])
    assert torch.equal(method.encoder.text.projection.weight, weights["text_projection"].T)


def paddle_layout(weights: dict[str, Tensor]) -> dict[str, Any]:
    """The same weights as PaddlePaddle stores them: transposed maps, and a name with each array."""
    state: dict[str, Any] = {}
    for name, value in weights.items():
        if ".in_proj_" in name:
            attention, kind = name.split(".in_proj_")
            for part, values in zip("qkv", value.chunk(3), strict=True):
                matrix = values.T if kind == "weight" else values
                state[f"{attention}.{part}_proj.{kind}"] = matrix.numpy()
        else:
            is_map = name.endswith(".weight") and value.ndim == 2
            name = name.replace("running_mean", "_mean").replace("running_var", "_variance")
            state[name] = (value.T if is_map else value).numpy()
    return {name: (f"{name}_0", value) for name, value in state.items()}


class TrainerConfig:
    """An object that a trainer saves beside the weights."""

    def __init__(self) -> None:
        self.save_dir = Path("x")


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith("t2vlad-")])
def test_a_checkpoint_of_t2vlad_is_read_without_paddle(name: str, tmp_path: Path) -> None:
    golden = load_peer(name)
    weights = paddle_layout(golden.weights)
    weights["text_bert.embeddings.weight"] = np.zeros((3, 2), np.float32)
    content = {"arch": "CENet", "state_dict": weights, "config": TrainerConfig()}
    (tmp_path / "model.pdparams").write_bytes(pickle.dumps(content, protocol=4))
    settings: dict[str, Any] = {"experts": ",".join(sorted(golden.options["experts"]))}
    settings["num_heads"] = golden.options["heads"]
    conversion = convert_official("t2vlad", read_released(tmp_path / "model.pdparams"), settings)
    assert "store its output" in conversion.unused_weights["text_bert.embeddings.weight"]
    save(conversion.method, tmp_path / "model")
    check_outputs(eaglenet.load(tmp_path / "model"), golden, "full")
    with pytest.raises(UsageError, match="does not determine experts"):
        convert_official("t2vlad", golden.weights)
    with pytest.raises(CheckpointError, match="is it of T2VLAD"):
        convert_official("t2vlad", {"a": torch.ones(1)}, settings)


def hub_clip(dim: int) -> Any:
    """A CLIP of transformers, with heads of 64 as in every released one."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 1}
    config = CLIPConfig(
        projection_dim=dim,
        text_config={
            **sizes, "num_hidden_layers": 1, "vocab_size": 20, "max_position_embeddings": 9,
            "bos_token_id": 18, "eos_token_id": 19, "pad_token_id": 0,
        },
        vision_config={**sizes, "num_hidden_layers": 2, "image_size": 8, "patch_size": 4},
    )  # fmt: skip
    return CLIPModel(config).eval()


def check_outputs(method: Method, golden: Golden, case: str) -> None:
    """The converted model computes what the official code does from the inputs of a file."""
    inputs = golden.below(f"{case}/inputs")
    with torch.no_grad():
        results = ADAPTERS[golden.method][1](method.eval(), golden, case, inputs)
    expected = golden.below(f"{case}/outputs")
    names = set(results.outputs) & set(expected)
    if "scores_evaluation" in expected:  # the others are made with the statistics of the batch
        names = {"scores_evaluation"}
    assert names
    for name in names:
        largest = expected[name].abs().max().clamp_min(1.0)
        assert (results.outputs[name] - expected[name]).abs().max() <= 1e-5 * largest, name


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith(("xpool-", "tmass-"))])
def test_checkpoints_on_the_hubs_clip_become_models(name: str) -> None:
    golden = load_peer(name)
    options = golden.options
    official = hub_clip(options["dim"])
    towers = {f"clip.{key}": value for key, value in official.state_dict().items()}
    settings: dict[str, Any] = dict(UNDETERMINED[golden.method])
    settings |= {"num_heads": options["num_mha_heads"]}
    if golden.method == "xpool":
        settings["num_frames"] = options["frames"]
    else:
        settings["num_candidates"] = options["stochasic_trials"]
        settings["noise_scale"] = options["stochastic_prior_std"]
        is_uniform = options["stochastic_prior"] == "uniform01"
        settings["prior"] = "uniform" if is_uniform else "normal"
    method = convert_official(golden.method, {**towers, **golden.weights}, settings).method
    assert method.config.num_frames == options["frames"]
    check_outputs(method, golden, "full")
    ids = torch.tensor([[18, 3, 4, 19], [18, 7, 19, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    pixels = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        texts = method.encode_text(Tokens(ids, mask.bool())).sentence
        theirs = official.get_text_features(input_ids=ids, attention_mask=mask)
        frames = method.encoder.vision(pixels)[:, 0]
        vectors = official.get_image_features(pixel_values=pixels)
    torch.testing.assert_close(texts, pooled_output(theirs), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(frames, pooled_output(vectors), atol=1e-5, rtol=1e-4)


def pooled_output(output: Any) -> Tensor:
    """Releases of transformers give the features, or an output that holds them."""
    return output if isinstance(output, Tensor) else output.pooler_output


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith("clipvip-")])
def test_a_checkpoint_of_clip_vip_becomes_a_model(name: str) -> None:
    golden = load_peer(name)
    text = {
        key: value
        for key, value in hub_clip(golden.options["dim"]).state_dict().items()
        if key.startswith("text_")
    }
    weights = {f"clipmodel.{key}": value for key, value in {**text, **golden.weights}.items()}
    with pytest.raises(UsageError, match=r"does not determine num_frames"):
        convert_official("clipvip", weights)
    method = convert_official("clipvip", weights, {"num_frames": golden.options["frames"]}).method
    for block in method.encoder.vision.blocks:
        block.attention.heads = golden.options["heads"]  # narrower than 64 in these files
    check_outputs(method, golden, "full")
    assert method.config.num_proxies == 1 + golden.options["added_proxies"]
    assert method.config.num_positions == golden.options["temporal_size"]


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith("tempme-")])
def test_a_checkpoint_of_tempme_becomes_a_model(name: str) -> None:
    golden = load_peer(name)
    options = golden.options
    towers = {
        key: value
        for key, value in openai_towers(options["dim"], shifted=False).items()
        if not key.startswith("clip.visual.")
    }
    block = "clip.transformer.resblocks.0.attn.TVPt_LoRA"
    towers |= {f"{block}_a": torch.ones(options["lora_dim"], 64)}
    towers |= {f"{block}_b": torch.zeros(3 * 64, options["lora_dim"])}
    across, within = (int(part) / 100 for part in options["merge_token_proportion"].split("-"))
    settings = {"num_merged": options["tome_r"], "across": across, "within": within}
    settings["groups"] = options["merge_frame_num"]
    weights = {**towers, **golden.weights}
    method = convert_official("tempme", weights, settings).method
    for visual_block in method.encoder.vision.blocks:
        visual_block.attention.heads = options["heads"]  # narrower than 64 in these files
    config = method.config
    assert config.groups == tuple(int(part) for part in options["merge_frame_num"].split("-"))
    assert config.merge_blocks == tuple(int(part) for part in options["merge_layer"].split("-"))
    assert (config.num_frames, config.rank) == (options["frames"], options["lora_dim"])
    check_outputs(method, golden, "full")
    with pytest.raises(UsageError, match=r"--set groups=2,2: expected numbers like 2-2-3"):
        convert_official("tempme", weights, {**settings, "groups": "2,2"})
    del settings["groups"]
    with pytest.raises(UsageError, match=r"does not determine groups.*--set groups=2-2-3"):
        convert_official("tempme", weights, settings)


@pytest.fixture(scope="module")
def text_proxy() -> dict[str, Tensor]:
    """A whole model of Text-Proxy's own classes: weights, inputs and scores."""
    with np.load(GOLDEN_CHECKPOINT) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files if key != "options"}


@pytest.mark.parametrize("dash", ["theta", "linear"])
def test_a_checkpoint_of_tv_proxynet_equals_the_official_model(
    dash: str, text_proxy: dict[str, Tensor], tmp_path: Path
) -> None:
    start = "weights/"
    weights = {n.removeprefix(start): v for n, v in text_proxy.items() if n.startswith(start)}
    torch.save(weights, tmp_path / "model.pt")
    settings = {**UNDETERMINED["tvproxynet"], "dash": dash, "num_frames": 5}
    conversion = convert_official("tvproxynet", read_released(tmp_path / "model.pt"), settings)
    left_out = "dash_factor" if dash == "linear" else "dash_weights.weight"
    assert f"text_proxy.{left_out}" in conversion.unused_weights
    method: Any = conversion.method
    assert (method.config.num_read, method.config.num_frames) == (4, 5)
    pixels = text_proxy["inputs/pixels"].float()
    mask = torch.ones(pixels.shape[:2], dtype=torch.bool)
    with torch.no_grad():
        text = method.encode_text(
            Tokens(text_proxy["inputs/ids"], text_proxy["inputs/mask"].bool())
        )
        tower = method.encoder.vision
        proxies, _ = method.proxies(tower, pixels, mask)
        vectors = F.normalize(tower.project(proxies[:, 0]), dim=-1)
        sentence = F.normalize(text.sentence, dim=-1)
        by_pair = F.normalize(
            method.text_proxies(sentence, method.proxy_projection(proxies)), dim=-1
        )
    direct = sentence @ vectors.T
    torch.testing.assert_close(direct, text_proxy["outputs/direct_scores"], atol=1e-5, rtol=0)
    by_proxy = torch.einsum("tvd,vd->tv", by_pair, vectors)
    expected = text_proxy[f"outputs/proxy_scores_{dash}"]
    torch.testing.assert_close(by_proxy, expected, atol=1e-5, rtol=0)


def test_the_length_of_the_step_of_tv_proxynet_has_to_be_given() -> None:
    with pytest.raises(UsageError, match=r"does not determine num_frames, dash, text_sign"):
        convert_official("tvproxynet", {})


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith(("ce-", "mmt-", "hgr-"))])
def test_checkpoints_over_experts_become_models_over_stored_features(
    name: str, tmp_path: Path
) -> None:
    golden = load_peer(name)
    options, weights = golden.options, golden.weights
    settings = {**UNDETERMINED[golden.method], **ONE_VALUE.get(golden.method, {})}
    types: dict[str, Any] = {}
    if golden.method == "ce":
        settings["experts"] = ",".join(sorted(options["experts"]))
    elif golden.method == "mmt":
        settings |= {"num_heads": options["heads"], "max_tokens": options["tokens"]}
        weights = {**weights, "txt_bert.pooler.dense.bias": torch.zeros(3)}
        types = {"types": {expert: row for expert, (_, row) in options["experts"].items()}}
    else:
        settings |= {"num_verbs": options["num_verbs"], "sharpness": float(options["sigma"])}
        parts = {"text_encoder": {}, "video_encoder": {}}  # type: dict[str, dict[str, Tensor]]
        for key, value in weights.items():
            network, _, rest = key.partition(".")
            parts[network][rest] = value
        torch.save(parts, tmp_path / "hgr.th")
        weights = read_released(tmp_path / "hgr.th")
    conversion = convert_official(golden.method, weights, settings, **types)
    save(conversion.method, tmp_path / "model")
    method = eaglenet.load(tmp_path / "model")
    check_outputs(method, golden, golden.cases[0])
    if golden.method == "mmt":
        assert "store its output" in conversion.unused_weights["txt_bert.pooler.dense.bias"]


def test_other_objects_in_a_file_are_ignored(tmp_path: Path) -> None:
    """Most trainers save their configuration object too."""
    content = {"state_dict": {"module.a": torch.ones(1)}, "config": TrainerConfig(), "log": print}
    torch.save(content, tmp_path / "model.pth")
    assert read_released(tmp_path / "model.pth") == {"a": torch.ones(1)}
    torch.save(content, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"save the weights alone.*\['state_dict'\]"):
        read_released(tmp_path / "old.pth")


class Command:
    """An object whose file asks for a folder to be made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("suffix", ["pth", "pdparams"])
def test_code_in_a_file_is_not_run(suffix: str, tmp_path: Path) -> None:
    path, content = tmp_path / f"model.{suffix}", {"a": Command(tmp_path / "made")}
    if suffix == "pth":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    with pytest.raises(CheckpointError, match="expected a state_dict"):
        read_released(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("kind", ["cut", "objects", "many"])
def test_damaged_files_of_paddle_are_refused(kind: str, tmp_path: Path) -> None:
    content = pickle.dumps({"a": np.array([{}]) if kind == "objects" else np.ones(9)}, protocol=4)
    if kind == "cut":
        content = content[:-9]
    if kind == "many":  # The array claims more values than the file has.
        content = content.replace(b"K\x09\x85", b"J\xff\xff\xff\x7f\x85")
    (tmp_path / "a.pdparams").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a file of PaddlePaddle"):
        read_released(tmp_path / "a.pdparams")


def test_the_weight_of_a_single_expert_is_left_out() -> None:
    """MMT on one expert: the official score does not depend on the weights of its mixture."""
    golden = load_peer("mmt-salt0")
    expert = sorted(golden.options["experts"])[0]
    parts = ("video_dim_reduce.", "text_GU.", "moe_fc_txt.")
    weights = {
        name: value
        for name, value in golden.weights.items()
        if not name.startswith(parts) or name.split(".")[1] == expert
    }
    types = {expert: golden.options["experts"][expert][1]}
    settings = {**UNDETERMINED["mmt"], **ONE_VALUE["mmt"], "num_heads": 2}
    conversion = convert_official("mmt", weights, settings, types=types)
    assert (
        conversion.unused_weights[f"moe_fc_txt.{expert}.weight"]
        == "the weight of a single expert is 1"
    )


def test_experts_have_to_be_named_in_their_order() -> None:
    weights = load_peer("ce-salt0").weights
    with pytest.raises(UsageError, match="does not determine experts"):
        convert_official("ce", weights, ONE_VALUE["ce"])
    with pytest.raises(UsageError, match="expected 4 names in alphabetical order"):
        convert_official("ce", weights, {"experts": "rgb,audio,face,scene", **ONE_VALUE["ce"]})
    with pytest.raises(UsageError, match="VLAD of the experts audio"):
        convert_official("ce", weights, {"experts": "a,b,c,d", **ONE_VALUE["ce"]})


def test_settings_with_one_supported_value_have_to_be_confirmed() -> None:
    weights, experts = load_peer("ce-salt0").weights, "audio,face,rgb,scene"
    with pytest.raises(UsageError, match=r"determine use_mish, include_self.*--set use_mish=1"):
        convert_official("ce", weights, {"experts": experts})
    with pytest.raises(UsageError, match=r"--set use_mish=0: .* only those with use_mish=1"):
        convert_official("ce", weights, {"experts": experts, **ONE_VALUE["ce"], "use_mish": 0})
    settings = {**UNDETERMINED["mmt"], **ONE_VALUE["mmt"]}
    with pytest.raises(UsageError, match=r"--set out_tok=sep: .* only those with out_tok=mxp"):
        convert_official("mmt", {}, {**settings, "out_tok": "sep"})
    with pytest.raises(UsageError, match=r"--set attn_fusion=sim: .* with attn_fusion=embed"):
        convert_official("hgr", {}, {"num_verbs": 4, "sharpness": 4.0, "attn_fusion": "sim"})
    with pytest.raises(UsageError, match="--set keep_missing=true"):
        convert_official("mmt", {})


def test_a_value_of_another_kind_is_refused() -> None:
    weights = load_peer("mmt-salt0").weights
    settings = {**UNDETERMINED["mmt"], **ONE_VALUE["mmt"], "keep_missing": "False"}
    with pytest.raises(ConfigError, match="keep_missing: expected true or false, got 'False'"):
        convert_official("mmt", weights, settings)


def test_a_setting_that_the_method_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match="--set num_frame: drl has no such setting"):
        convert_official("drl", checkpoint("drl-salt0"), {"num_frames": 6, "num_frame": 6})


def test_the_command_adds_the_vocabulary_of_a_distilbert(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    from eaglenet.cli.main import app

    golden = load_peer("frozen-salt0")
    weights = space_time_checkpoint(golden, *distilbert(golden.options["dim"]))
    torch.save({"state_dict": weights, "config": TrainerConfig()}, tmp_path / "frozen.pth")

    def run(num_tokens: int) -> Any:
        vocabulary = {f"w{index}": index for index in range(num_tokens)}
        backend = Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        backend.post_processor = processors.TemplateProcessing(
            single="w2 $A w3", special_tokens=[("w2", 2), ("w3", 3)]
        )
        backend.save(str(tmp_path / "tokenizer.json"))
        arguments = ["convert", str(tmp_path / "frozen.pth"), str(tmp_path / "model")]
        return CliRunner().invoke(
            app, [*arguments, "--from", "frozen", "--tokenizer", str(tmp_path)]
        )

    assert run(20).exit_code == 0
    tokens = eaglenet.load(tmp_path / "model").tokenize(["w7 w9"], 6)
    assert tokens.ids.tolist() == [[2, 7, 9, 3, 0, 0]]
    assert "19 tokens, but the checkpoint has 20" in str(run(19).exception)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "empty").mkdir()
    arguments = ["convert", str(tmp_path / "frozen.pth"), str(tmp_path / "model"), "--from"]
    outcome = CliRunner().invoke(
        app, [*arguments, "frozen", "--tokenizer", str(tmp_path / "empty")]
    )
    assert "pass a DistilBERT folder" in str(outcome.exception)


def test_the_command_converts_and_the_model_loads(tmp_path: Path) -> None:
    from eaglenet.cli.main import app

    long = ("--set", "num_frames=64")  # DiDeMo
    for name, settings, num_words, sampling in (
        ("drl", ("--set", "num_frames=6"), 32, "rounded_rate"),
        ("drl", long, 64, "rounded_rate"),
        ("glscl", (*long, "--set", "temperature=3"), 64, "whole_rate"),
        ("prost", ("--set", "num_shifted_blocks=1"), 32, "whole_rate"),
    ):
        torch.save(checkpoint(f"{name}-salt0"), tmp_path / "model.bin")
        out = tmp_path / f"{name}{num_words}"
        outcome = CliRunner().invoke(
            app,
            ["convert", str(tmp_path / "model.bin"), str(out), "--from", name, *settings,
             "--set", "num_heads=4"],
        )  # fmt: skip
        assert outcome.exit_code == 0, outcome.output
        method = eaglenet.load(out)
        assert method.name == name
        frames = method.frame_spec
        assert (frames.sampling, frames.short) == (sampling, "mask")
        assert frames.square_pixels
        assert method.habits.max_words == num_words
