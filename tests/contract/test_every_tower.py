"""Every method on every tower family, in small: it runs as on CLIP, or refuses by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_models import (
    CONFIGS,
    DIM,
    FRAMES,
    ROOM,
    TEXTS,
    VIDEOS,
    make_config,
    make_encoder,
    make_texts,
    make_videos,
    pad_texts,
    pad_videos,
)

import st_models
from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Encoder
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.clip_config import TextConfig
from eaglenet.encoders.compact import (
    CompactConfig,
    CompactEncoder,
    CompactTextConfig,
    CompactVisionConfig,
)
from eaglenet.encoders.low_rank import adapt_towers, is_adapter, merged_state
from eaglenet.encoders.openclip import OpenClipConfig, OpenClipEncoder
from eaglenet.encoders.perception import PerceptionConfig, PerceptionEncoder, PerceptionVisionConfig
from eaglenet.encoders.siglip import (
    SiglipConfig,
    SiglipEncoder,
    SiglipTextConfig,
    SiglipVisionConfig,
)
from eaglenet.encoders.vit_bert import VitBertConfig, VitBertEncoder, distilbert, vit
from eaglenet.methods import METHODS, Method
from eaglenet.models import folder
from eaglenet.research.recipes.recipe import INSIDE_PATCHES
from sampling import one_in
from timm_oracle import import_oracle

CLOSE = {"rtol": 1e-4, "atol": 2e-5}
FRAMES_AND_SENTENCES = ("clip4clip", "xpool", "tmass", "video_colbert", "drl", "eaglenet")
"""Methods that must run on every tower; of the others some work inside CLIP's."""
OVER_VIDEOS = ("frozen", "bridgeformer")
"""Methods that read frames together inside any image tower of ours."""
UNREAD = {"encoder.logit_scale", "encoder.logit_bias", "encoder.vision.pooling.key.bias"}


def make_tower(family: str) -> TowerEncoder:
    """Frames of 32 pixels and 100 tokens, as the inputs of the other contract tests are."""
    if family == "siglip":
        return SiglipEncoder(
            SiglipConfig(
                SiglipVisionConfig(32, 8, DIM, 2, 2, 48), SiglipTextConfig(100, 40, 12, 2, 2, 20)
            ),
            seed=1,
        )
    if family == "compact":
        config = CompactConfig(
            DIM,
            CompactVisionConfig(32, 8, 24, 3, 2, 48),
            CompactTextConfig(100, 40, 12, 2, 2, 20),
        )
        return CompactEncoder(config, seed=1)
    if family == "vit_bert":
        sizes = {"width": 24, "layers": 2, "heads": 2, "mlp_width": 48}
        text_sizes = {**sizes, "width": 12, "vocabulary_size": 100, "context_length": 40}
        vision = vit(image_size=32, patch_size=8, **sizes)
        return VitBertEncoder(VitBertConfig(DIM, vision, distilbert(**text_sizes)), seed=1)
    if family == "openclip":
        return make_openclip()
    text = TextConfig(100, 40, DIM, 2, 2, 64, activation="gelu")
    vision = PerceptionVisionConfig(32, 8, 24, 2, 2, 48, pooling_heads=3)
    return PerceptionEncoder(PerceptionConfig(DIM, vision, text), seed=1)


def make_openclip() -> OpenClipEncoder:
    """A model of open_clip's own class: whole frames and sentences, and nothing else."""
    package = import_oracle("open_clip")
    vision = {"image_size": 32, "patch_size": 8, "width": 24, "head_width": 12, "layers": 2}
    text = {"context_length": 40, "vocab_size": 100, "width": DIM, "heads": 2, "layers": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = package.model.CLIP(DIM, vision, text)
    half = (0.5, 0.5, 0.5)
    return OpenClipEncoder(OpenClipConfig("tiny", DIM, 32, 40, half, half), model=model)


def build(name: str, encoder: Encoder) -> Method:
    """The first variant of a method that has several."""
    torch.manual_seed(0)
    variant = next(iter(CONFIGS.get(name, {"default": {}})))
    return METHODS[name].build(make_config(name, variant), encoder).eval()


def refuses(name: str, family: str) -> str:
    """What a method says where it cannot run on a family; "" where it can."""
    try:
        build(name, make_tower(family))
    except ConfigError as error:
        return str(error)
    return ""


REFUSING = [name for name in METHODS if refuses(name, "siglip")]
OURS = ("siglip", "perception", "compact", "vit_bert")
every_family = pytest.mark.parametrize("family", [*OURS, "openclip"])
of_ours = pytest.mark.parametrize("family", OURS)
running = pytest.mark.parametrize(
    ("name", "family"),
    one_in(
        3,
        [
            (name, family)
            for name in METHODS
            for family in (*OURS, "openclip")
            if name not in REFUSING and not (family == "openclip" and name in OVER_VIDEOS)
        ],
    ),
)
"""Methods over videos need an image tower of ours (tests/encoders/test_openclip.py)."""


@of_ours
def test_a_seed_makes_the_same_towers_whatever_was_drawn_before(family: str) -> None:
    first = make_tower(family).state_dict()
    torch.rand(7)
    second = make_tower(family).state_dict()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@running
@torch.no_grad()
def test_scores_depend_on_the_pair_alone(name: str, family: str) -> None:
    method = build(name, make_tower(family))
    texts, videos = make_texts("clip"), make_videos("clip")
    scores = method.score(method.encode_text(texts), method.encode_video(videos))
    assert scores.shape == (TEXTS, VIDEOS)
    assert scores.isfinite().all()
    assert scores.std(dim=0).min() > 0
    alone = method.score(method.encode_text(texts[1]), method.encode_video(videos[3]))
    torch.testing.assert_close(alone[0, 0], scores[1, 3], **CLOSE)
    wider = method.encode_text(pad_texts(texts, 2))
    longer = method.encode_video(pad_videos(videos, ROOM - FRAMES))
    torch.testing.assert_close(method.score(wider, longer), scores, **CLOSE)


@torch.no_grad()
def test_scores_of_a_whole_clip_tower_depend_on_the_pair_alone(tmp_path: Path) -> None:
    model = f"st:{st_models.make_perception_av(tmp_path)}"
    method = build("clip4clip", folder.load_pretrained(model).encoder)
    texts, videos = make_texts("clip"), make_videos("clip")
    scores = method.score(method.encode_text(texts), method.encode_video(videos))
    assert scores.shape == (TEXTS, VIDEOS)
    assert scores.std(dim=0).min() > 0
    alone = method.score(method.encode_text(texts[1]), method.encode_video(videos[3]))
    torch.testing.assert_close(alone[0, 0], scores[1, 3], **CLOSE)
    wider = method.encode_text(pad_texts(texts, 2))
    longer = method.encode_video(pad_videos(videos, ROOM - FRAMES))
    torch.testing.assert_close(method.score(wider, longer), scores, **CLOSE)


@running
def test_training_reaches_every_weight_of_both_towers(name: str, family: str) -> None:
    method = build(name, make_tower(family)).train()
    video_ids = torch.tensor([0, 1, 2, 3, 3])
    text = method.encode_text(make_texts("clip", VIDEOS))
    video = method.encode_video(make_videos("clip"))
    method.losses(text, video, video_ids[:, None] == video_ids[None, :]).total.backward()
    towers = {n: p for n, p in method.named_parameters() if n.startswith("encoder.")}
    asleep = [n for n, p in towers.items() if p.grad is None or not p.grad.any()]
    if not getattr(method.config, "frozen", False):
        assert set(asleep) <= UNREAD


@of_ours
@pytest.mark.parametrize("name", ["eaglenet", *OVER_VIDEOS])
@torch.no_grad()
def test_a_saved_model_names_its_family_and_loads_with_the_same_scores(
    name: str, family: str, tmp_path: Path
) -> None:
    method = build(name, make_tower(family))
    folder.save(method, tmp_path)
    loaded = folder.load(tmp_path)
    assert loaded.encoder.family == family
    first, second = (
        m.score(m.encode_text(make_texts("clip")), m.encode_video(make_videos("clip")))
        for m in (method, loaded)
    )
    assert torch.equal(first, second)


@every_family
def test_methods_inside_clips_tower_refuse_others_by_name(family: str) -> None:
    assert not {*FRAMES_AND_SENTENCES, *OVER_VIDEOS} & set(REFUSING)
    assert {"ts2net", "clipvip", "tvproxynet"} <= set(REFUSING)
    for name in set(REFUSING) - (INSIDE_PATCHES if family == "compact" else set()):
        message = refuses(name, family)
        assert message.startswith(name)
        # HGR needs graphs of sentences, which no tower makes, and says so.
        assert ENCODERS[family].title in message or "do not have" in message


@of_ours
def test_gradients_can_be_recomputed_and_compiled_towers_keep_their_names(family: str) -> None:
    """Recomputed blocks give the same gradients; what compiles is the towers, in place."""
    plain, saving = make_tower(family).train(), make_tower(family).train()
    saving.set_gradient_checkpointing(True)
    clips, texts = make_videos("clip"), make_texts("clip")
    for encoder in (plain, saving):
        total = encoder.encode_video(clips).frames.sum() + encoder.encode_text(texts).sentence.sum()
        total.backward()
    for (name, one), (_, other) in zip(
        plain.named_parameters(), saving.named_parameters(), strict=True
    ):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, **CLOSE, msg=name)
    names = list(plain.state_dict())
    plain.compile(backend="eager")
    assert list(plain.state_dict()) == names


@pytest.mark.parametrize("targets", ["attention", "all"])
@pytest.mark.parametrize("family", ["clip", *OURS, "openclip"])
def test_low_rank_changes_train_alone_and_are_merged_away(family: str, targets: str) -> None:
    encoder = make_encoder("clip") if family == "clip" else make_tower(family)
    method = build("clip4clip", encoder)
    plain = {name: value.clone() for name, value in method.state_dict().items()}
    texts, videos = make_texts("clip"), make_videos("clip")
    with torch.no_grad():
        start = method.score(method.encode_text(texts), method.encode_video(videos))
    count = adapt_towers(encoder, 2, targets)  # type: ignore[arg-type]
    adapters = [p for n, p in method.named_parameters() if is_adapter(n)]
    assert len(adapters) == 2 * count
    trained = {n for n, p in encoder.named_parameters() if p.requires_grad}
    assert {n for n in trained if not is_adapter(n)} <= {"logit_scale", "logit_bias"}
    scores = method.score(method.encode_text(texts), method.encode_video(videos))
    torch.testing.assert_close(scores, start, **CLOSE)
    scores[0, 0].backward()
    # Every change begins to move: B by its own gradient, A once B is not zero.
    optimizer = torch.optim.SGD(adapters, lr=1.0)
    moved = [p for n, p in method.named_parameters() if n.endswith(".up") and is_adapter(n)]
    still = [p for p in moved if p.grad is None or not p.grad.any()]
    assert not still
    optimizer.step()
    with torch.no_grad():
        changed = method.score(method.encode_text(texts), method.encode_video(videos))
        assert not torch.allclose(changed, start, atol=1e-4)
    weights = merged_state(method.state_dict())
    assert set(weights) == set(plain)
    fresh = build("clip4clip", make_encoder("clip") if family == "clip" else make_tower(family))
    fresh.load_state_dict(weights)
    with torch.no_grad():
        merged = fresh.score(fresh.encode_text(texts), fresh.encode_video(videos))
    torch.testing.assert_close(merged, changed, **CLOSE)
    assert sum(not torch.equal(weights[name], plain[name]) for name in plain) == count
