"""PE-Core, and SigLIP in open_clip's layout, against open_clip over timm at random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from clip_oracle import randomise_weights

import eaglenet
from clip_folder import learn_tokenizer
from eaglenet.core.types import Clips, Tokens
from eaglenet.encoders.clip_config import TextConfig
from eaglenet.encoders.perception import (
    PERCEPTION_SHAPES,
    PerceptionConfig,
    PerceptionEncoder,
    PerceptionVisionConfig,
    grid_angles,
    read_perception,
)
from eaglenet.encoders.siglip import read_siglip_folder
from eaglenet.models.folder import load_pretrained
from texts_alone import check_texts_alone
from timm_oracle import import_oracle

EXACT = {"rtol": 1e-5, "atol": 1e-5}
TOKENIZER = learn_tokenizer(["red ball"])
COUNTS = {
    "PE-Core-T-16-384": 69_546_113,
    "PE-Core-S-16-384": 87_188_225,
    "PE-Core-B-16": 447_660_545,
    "PE-Core-L-14-336": 671_138_817,
}
"""Parameters of open_clip's models of these names (published as 0.07, 0.09, 0.45 and 0.67 B)."""
SIZE = {"perception": 48, "siglip": 48, "no-class": 56}


def open_clip_model(kind: str) -> Any:
    """Return a model with real heads, but two blocks, few pixels and random weights."""
    open_clip = import_oracle("open_clip")
    config = {
        "perception": ("PE-Core-S-16-384", {"img_size": 48, "depth": 2, "ref_feat_shape": (3, 3)}),
        "no-class": (
            "PE-Core-bigG-14-448",
            {"img_size": 56, "depth": 2, "ref_feat_shape": (4, 4)},
        ),
        "siglip": ("ViT-B-16-SigLIP2", {"img_size": 48, "depth": 2, "act_layer": "gelu_tanh"}),
    }
    name, trunk = config[kind]
    plain = json.loads((Path(open_clip.__path__[0]) / f"model_configs/{name}.json").read_text())
    plain.pop("custom_text", None)
    plain["vision_cfg"]["image_size"] = trunk.pop("img_size")
    plain["text_cfg"] |= {"layers": 2, "vocab_size": TOKENIZER.vocabulary_size}
    if kind == "siglip":
        plain["text_cfg"].pop("hf_tokenizer_name", None)
    if kind == "no-class":
        plain |= {"embed_dim": 96}
        plain["text_cfg"] |= {"width": 128, "heads": 2}
    timm = import_oracle("timm")
    create = timm.create_model

    def small(model: str, **options: Any) -> Any:
        return create(model, **{**options, **trunk, "img_size": plain["vision_cfg"]["image_size"]})

    timm.create_model = small
    try:
        model = open_clip.model.CustomTextCLIP(**plain)
    finally:
        timm.create_model = create
    return randomise_weights(model)


def save(model: Any, folder: Path, trunk: str) -> Path:
    """Write the files of a model on the hub."""
    import safetensors.torch

    folder.mkdir(parents=True, exist_ok=True)
    plain = {"model_cfg": {"vision_cfg": {"timm_model_name": trunk}}}
    (folder / "open_clip_config.json").write_text(json.dumps(plain))
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    safetensors.torch.save_file(weights, folder / "open_clip_model.safetensors")
    TOKENIZER.save(folder)
    return folder


def inputs(size: int, width: int) -> tuple[Clips, Tokens]:
    """Return frames, and texts that end with the largest id, like CLIP's."""
    generator = torch.Generator().manual_seed(3)
    frames = torch.randint(0, 256, (2, 3, 3, size, size), generator=generator).byte()
    clips = Clips(frames, torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3))
    last = TOKENIZER.vocabulary_size - 1
    ids = torch.randint(2, last - 1, (4, width), generator=generator)
    mask = torch.arange(width) < torch.tensor([[2], [5], [width - 1], [width]])
    ids = ids.masked_fill(~mask, 0)
    ids[torch.arange(4), mask.sum(dim=1) - 1] = last
    return clips, Tokens(ids, mask)


@pytest.mark.parametrize("kind", ["perception", pytest.param("no-class", marks=pytest.mark.slow)])
@torch.no_grad()
def test_perception_features_equal_those_of_open_clip(kind: str, tmp_path: Path) -> None:
    model = open_clip_model(kind)
    save(model, tmp_path, "vit_pe_core_small_patch16_384")
    encoder = read_perception(tmp_path)
    assert encoder.config.vision.class_token == (kind == "perception")
    clips, tokens = inputs(SIZE[kind], encoder.context_length)
    pixels = (clips.frames.flatten(0, 1).double() / 255 - 0.5) / 0.5
    expected = model.encode_image(pixels.float())
    torch.testing.assert_close(encoder.encode_video(clips).frames.flatten(0, 1), expected, **EXACT)
    sentences = model.encode_text(tokens.ids)
    torch.testing.assert_close(encoder.encode_text(tokens).sentence, sentences, **EXACT)
    assert encoder.logit_scale.item() == pytest.approx(model.logit_scale.item())


@pytest.mark.slow
@torch.no_grad()
def test_the_whole_of_the_smallest_equals_that_of_open_clip(tmp_path: Path) -> None:
    """With every block, all pixels and the whole vocabulary."""
    open_clip = import_oracle("open_clip")
    name = "PE-Core-T-16-384"
    path = Path(open_clip.__path__[0]) / f"model_configs/{name}.json"
    plain = json.loads(path.read_text())
    plain.pop("custom_text", None)
    model = randomise_weights(open_clip.model.CustomTextCLIP(**plain))
    save(model, tmp_path, plain["vision_cfg"]["timm_model_name"])
    encoder = read_perception(tmp_path)
    assert encoder.config == PERCEPTION_SHAPES[name]
    clips, _ = inputs(384, 32)
    clips = Clips(clips.frames[:1, :2], clips.mask[:1, :2], clips.seconds[:1, :2])
    pixels = (clips.frames.flatten(0, 1).double() / 255 - 0.5) / 0.5
    expected = model.encode_image(pixels.float())
    torch.testing.assert_close(encoder.encode_video(clips).frames.flatten(0, 1), expected, **EXACT)
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(1, 49_000, (3, 32), generator=generator)
    ids[:, -1] = 49_407
    tokens = Tokens(ids, torch.ones_like(ids, dtype=torch.bool))
    expected = model.encode_text(ids)
    torch.testing.assert_close(encoder.encode_text(tokens).sentence, expected, **EXACT)


@torch.no_grad()
def test_siglip_in_open_clips_layout_equals_open_clip(tmp_path: Path) -> None:
    """With the tanh GELU of Google's code and transformers; some of timm's trunks differ."""
    model = open_clip_model("siglip")
    save(model, tmp_path, "vit_base_patch16_siglip_224")
    encoder = read_siglip_folder(tmp_path)
    clips, tokens = inputs(SIZE["siglip"], encoder.context_length)
    pixels = (clips.frames.flatten(0, 1).double() / 255 - 0.5) / 0.5
    expected = model.encode_image(pixels.float())
    torch.testing.assert_close(encoder.encode_video(clips).frames.flatten(0, 1), expected, **EXACT)
    ids = tokens.ids.masked_fill(~tokens.mask, encoder.config.text.pad_token)
    expected = model.encode_text(ids)
    torch.testing.assert_close(encoder.encode_text(tokens).sentence, expected, **EXACT)
    assert encoder.logit_bias is not None


def to_meta(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights by Meta's names (the inverse of timm's conversion)."""
    theirs: dict[str, torch.Tensor] = {"logit_scale": weights["logit_scale"]}
    swaps = [
        ("patch_embed.proj", "conv1"), ("blocks.", "transformer.resblocks."),
        ("norm_pre", "ln_pre"), ("norm1", "ln_1"), ("norm2", "ln_2"), ("norm.", "ln_post."),
        ("attn.qkv.", "attn.in_proj_"), ("attn.proj", "attn.out_proj"),
        ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"),
    ]  # fmt: skip
    pool = "visual.trunk.attn_pool."
    for name, value in weights.items():
        if name.startswith("text."):
            theirs[name[5:]] = value
        elif name.startswith(pool):
            part = name[len(pool) :].replace("fc1", "c_fc").replace("fc2", "c_proj")
            part = (
                part.replace("norm", "layernorm").replace("proj.", "attn.out_proj.", 1)
                if (part.startswith(("norm", "proj")))
                else part
            )
            theirs[f"visual.attn_pool.{part.replace('latent', 'probe')}"] = value
        elif name.startswith("visual.trunk."):
            part = name[13:]
            for a, b in swaps:
                part = part.replace(a, b)
            theirs[f"visual.{part}"] = value
    for kind in ("weight", "bias"):
        query = theirs.pop(f"visual.attn_pool.q.{kind}")
        both = theirs.pop(f"visual.attn_pool.kv.{kind}")
        theirs[f"visual.attn_pool.attn.in_proj_{kind}"] = torch.cat([query, both])
    theirs["visual.class_embedding"] = theirs.pop("visual.cls_token").flatten()
    theirs["visual.positional_embedding"] = theirs.pop("visual.pos_embed")[0]
    theirs["visual.proj"] = theirs.pop("visual.head.weight").T.contiguous()
    theirs.pop("visual.head.bias")
    return theirs


@torch.no_grad()
def test_metas_own_file_gives_the_same_encoder(tmp_path: Path) -> None:
    model = open_clip_model("perception")
    model.visual.trunk.head.bias.zero_()  # Meta's projection has none
    save(model, tmp_path / "hub", "vit_pe_core_small_patch16_384")
    path = tmp_path / "PE-Core-S16-384.pt"
    torch.save(to_meta(model.state_dict()), path)
    TOKENIZER.save(tmp_path)
    first, second = read_perception(tmp_path / "hub"), load_pretrained(path)[0]
    assert second.config == first.config
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert load_pretrained(tmp_path)[0].family == "perception"
    check_texts_alone(path)


def test_the_released_shapes_have_the_released_sizes() -> None:
    for name, config in PERCEPTION_SHAPES.items():
        with torch.device("meta"):
            encoder = PerceptionEncoder(config)
        assert sum(weight.numel() for weight in encoder.parameters()) == COUNTS[name], name


def test_a_folder_gives_the_zero_shot_model_and_it_is_saved_and_loaded(tmp_path: Path) -> None:
    save(open_clip_model("perception"), tmp_path / "hub", "vit_pe_core_small_patch16_384")
    method = eaglenet.load(tmp_path / "hub")
    assert (method.encoder.family, method.frame_spec.size) == ("perception", 48)
    assert method.frame_spec.resize == "stretch"
    eaglenet.save(method, tmp_path / "model")
    again = eaglenet.load(tmp_path / "model")
    clips, _ = inputs(48, 32)
    with torch.no_grad():
        first, second = (
            m.score(m.encode_text(m.tokenize(["red", "ball"])), m.encode_video(clips))
            for m in (method, again)
        )
    torch.testing.assert_close(first, second)  # Not to the bit, since x86 uses other kernels.
    check_texts_alone(tmp_path / "hub")


def test_angles_count_columns_then_rows_and_leave_the_class_token() -> None:
    """Token 1 + row * grid + column has angles (column + 1) and (row + 1) times each frequency."""
    config = PerceptionVisionConfig(48, 16, 24, 1, 2, 10)
    angles = grid_angles(config)
    assert angles.shape == (1 + 9, 6)
    assert not angles[0].any()
    bands = torch.tensor([10000 ** (-i / 3) for i in range(3)])
    row, column = 2, 1
    expected = torch.cat([(column + 1) * bands, (row + 1) * bands])
    torch.testing.assert_close(angles[1 + row * 3 + column], expected)


def test_a_cast_to_bf16_leaves_the_angles_exact() -> None:
    vision = PerceptionVisionConfig(48, 16, 24, 1, 2, 10, pooling_heads=3)
    tiny = PerceptionConfig(6, vision, TextConfig(60, 9, 8, 1, 2, 10))
    encoder = PerceptionEncoder(tiny).to(torch.bfloat16)
    assert encoder.vision.rotation.cosines.dtype == torch.float32
