"""Our methods on the weights and inputs of the official code, one adapter per method.

An adapter builds the method from the options of a file, and computes from the inputs of a case what
the file calls outputs, and the training loss. Nothing depends on the sizes of the stored files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.core.types import Expert, TextFeatures, TextGraph, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.features import ExpertConfig, ExpertEncoder, FeatureConfig, FeatureEncoder
from eaglenet.encoders.vit_bert import VitTower
from eaglenet.layers.masking import effective_mask
from eaglenet.layers.token_selection import hard_top_k
from eaglenet.methods import METHODS, Method
from eaglenet.methods.base import evaluating
from eaglenet.methods.official.checkpoint import load_official
from eaglenet.methods.prost import ProST
from eaglenet.methods.ts2net import TS2Net
from eaglenet.methods.ucofia import UCoFiA
from golden_peers import Golden

Inputs = Mapping[str, Tensor]


@dataclass
class Results:
    """Outputs by their names in the files, and the loss where the case has one."""

    outputs: dict[str, Tensor]
    loss: Tensor | None = None
    skipped: tuple[str, ...] = field(default=())
    """Outputs of the official code that have no counterpart here."""


def match_pairs(method: Method, text: TextFeatures, video: VideoFeatures, **options: Any) -> Any:
    return method.losses(text, video, torch.eye(len(text), dtype=torch.bool), **options)


def every(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


def feature_encoder(dim: int) -> FeatureEncoder:
    """Features as they are."""
    return FeatureEncoder(FeatureConfig(text_dim=dim, frame_dim=dim, dim=dim, identity=True))


def clip_encoder(golden: Golden, **vision: Any) -> ClipEncoder:
    """A CLIP whose image tower has the sizes of a file; its text tower is never run."""
    options = golden.options
    patch, grid = options.get("patch", 4), options.get("grid", 2)
    width = options.get("width", 8)
    sizes = {
        "image_size": patch * grid,
        "patch_size": patch,
        "width": width,
        "layers": options.get("blocks", 1),
        "heads": options.get("heads", 1),
        "mlp_width": 4 * width,
        **vision,
    }
    text = TextConfig(vocabulary_size=9, context_length=5, width=8, layers=1, heads=1, mlp_width=8)
    return ClipEncoder(
        ClipConfig(dim=options.get("dim", 8), vision=VisionConfig(**sizes), text=text)
    )


def config_of(name: str, **settings: Any) -> Any:
    """A configuration; whole numbers in a file may stand for fractions."""
    config_class = METHODS[name].config_class
    for item in dataclasses.fields(config_class):
        if item.name in settings and isinstance(item.default, float):
            settings[item.name] = float(settings[item.name])
    return config_class(**settings)


def temporal_sizes(options: Mapping[str, Any]) -> dict[str, int]:
    return {
        "num_frames": options["frames"],
        "num_layers": options["layers"],
        "num_heads": options["heads"],
        "num_positions": options["positions"],
    }


# Methods on CLIP's features.


def build_prost(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    config = config_of(
        "prost",
        num_frames=options["frames"],
        num_phrases=options["phrases"],
        num_objects=options["objects"],
        num_events=options["events"],
        num_layers=options["layers"],
        num_heads=options["heads"],
        reach=options["reach"],
        dropout=0.0,
        padding=padding,
    )
    return ProST(feature_encoder(options["dim"]), config)


def run_prost(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    words, tokens = inputs["words"], inputs["tokens"]
    words_mask, mask = inputs["text_mask"].bool(), inputs["video_mask"].bool()
    last = words_mask.sum(dim=1) - 1
    sentence = words[torch.arange(len(words)), last]
    text = TextFeatures(sentence, words, words_mask)
    frames = tokens[:, :, 0]
    video = method.encode_video(VideoFeatures(frames, mask, patches=tokens))
    objects = video.tokens[:, method.config.num_events :]
    by_event, by_object = method.similarities(text, video)
    scale = method.loss.scale()
    if method.config.padding == "official":
        mask = torch.ones_like(mask)
    outputs = {
        "phrases": method.text_phrases(text),
        "sentence": sentence,
        "objects": objects.unflatten(1, (mask.shape[1], -1)),
        "frame_prototypes": method.frame_prototypes(frames, objects, mask),
        "events": video.tokens[:, : method.config.num_events],
        "event_logits": scale * by_event,
        "object_logits": scale * by_object,
        "event_scores": by_event,
        "object_scores": by_object,
        "scores": method.score(text, video),
    }
    return Results(outputs, match_pairs(method, text, video).total)


def build_ts2net(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    config = config_of(
        "ts2net",
        **temporal_sizes(options),
        num_tokens=options["selected"],
        num_samples=options["samples"],
        sigma=options["sigma"],
        sharpness=options["sharpness"],
        padding=padding,
    )
    return TS2Net(feature_encoder(options["dim"]), config)


def run_ts2net(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    tokens, mask = inputs["tokens"], inputs["video_mask"].bool()
    scores = method.selection.scores(tokens.flatten(0, 1))
    indicators = method.selection.indicators(scores, inputs["noise"])
    selected_tokens = method.selection(tokens.flatten(0, 1), inputs["noise"])
    by_frame = selected_tokens.unflatten(0, mask.shape)
    text = TextFeatures(inputs["sentence"])
    video = VideoFeatures(tokens[:, :, 0], mask, tokens=method.temporal_frames(by_frame, mask))
    hard = hard_top_k(scores, method.config.num_tokens).argmax(dim=-1)
    outputs = {
        "token_scores": scores.unflatten(0, mask.shape),
        "selected_indices_without_noise": hard.unflatten(0, mask.shape),
        "indicators": indicators.unflatten(0, mask.shape),
        "selected_tokens": by_frame.flatten(1, 2),
        "logits": method.loss.scale() * method.score(text, video),
    }
    return Results(outputs, match_pairs(method, text, video).total, ("global_logits_unused",))


def build_ucofia(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    config = config_of(
        "ucofia",
        **temporal_sizes(options),
        num_words=options["words"],
        num_tokens=options["selected"],
        num_samples=options["samples"],
        sigma=options["sigma"],
        temperature=options["temperature"],
        selection_context=options.get("selection_context", "frame"),
        padding=padding,
    )
    return UCoFiA(feature_encoder(options["dim"]), config)


def run_ucofia(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    tokens, mask = inputs["tokens"], inputs["video_mask"].bool()
    visible_mask = effective_mask(mask, method.config.padding)
    scores = method.selection.scores(tokens.flatten(0, 1), visible_mask)
    selected_tokens = method.selection(tokens.flatten(0, 1), inputs["noise"], visible_mask)
    selected_tokens = selected_tokens.unflatten(0, mask.shape)
    text = TextFeatures(inputs["sentence"], inputs["words"], inputs["text_mask"].bool())
    video = method.with_tokens(VideoFeatures(tokens[:, :, 0], mask), selected_tokens)
    levels = method.levels(text, video)
    outputs = {
        "token_scores": scores.unflatten(0, mask.shape),
        "selected_tokens": selected_tokens.flatten(1, 2),
        "logits": method.loss.scale() * method.score(text, video),
        "sentence_video_logits": levels[0],
        "sentence_frame_logits": levels[1],
        "word_token_scores": levels[2],
    }
    return Results(outputs, match_pairs(method, text, video).total)


def build_drl(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    config = config_of(
        "drl",
        **temporal_sizes(options),
        decorrelation=options["cdcr_lambda"],
        diagonal_weight=options["cdcr_alpha1"],
        off_diagonal_weight=options["cdcr_alpha2"],
        padding=padding,
    )
    return METHODS["drl"].build(config, feature_encoder(options["dim"]))


def run_drl(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    words = inputs["words"]
    text = TextFeatures(words[:, 0], words, inputs["text_mask"].bool())
    video = method.encode_video(VideoFeatures(inputs["frames"], inputs["video_mask"].bool()))
    scores = method.score(text, video)
    losses = match_pairs(method, text, video)
    outputs = {
        "temporal_frames": video.tokens,
        "logits": method.loss.scale() * scores,
        "scores": scores,
        "contrastive_loss": losses.terms["contrastive"],
        "cdcr_loss": losses.terms["decorrelation"],
    }
    return Results(outputs, losses.total)


def build_glscl(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    config = config_of(
        "glscl",
        **temporal_sizes(options),
        num_concepts=options["query_number"],
        num_decoder_layers=options["cross_att_layer"],
        num_decoder_heads=options["decoder_heads"],
        feed_forward=options["decoder_hidden"],
        dropout=0.0,
        temperature=options["temp"],
        local_weight=options["loss2_weight"],
        consistency=options["beta"],
        target=options["target"],
        diversity=options["alpha"],
        margin=options["margin"],
        padding=padding,
    )
    return METHODS["glscl"].build(config, feature_encoder(options["dim"]))


def run_glscl(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    text = TextFeatures(inputs["sentence"], inputs["words"], inputs["text_mask"].bool())
    mask = inputs["video_mask"].bool()
    video = method.encode_video(VideoFeatures(inputs["frames"], mask))
    num_frames = mask.shape[1]
    concepts = method.concepts(text.words, text.words_mask)
    video_concepts = video.tokens[:, num_frames:]
    local = (concepts.flatten(1) @ video_concepts.flatten(1).T) / concepts.shape[1]
    scores = method.score(text, video)
    losses = match_pairs(method, text, video)
    outputs = {
        "temporal_frames": video.tokens[:, :num_frames],
        "scores": scores,
        "training_scores": scores + method.config.local_weight * local,
        "local_scores": local,
        "video_concepts": video_concepts,
        "text_concepts": concepts,
        "contrastive_loss": losses.terms["contrastive"],
        "diversity_loss_times_alpha": losses.terms["diversity"] * method.config.diversity,
        "consistency_loss": losses.terms["consistency"],
    }
    return Results(outputs, losses.total)


CLIP4CLIP_HEADS = {
    "meanP": "mean",
    "seqLSTM": "lstm",
    "seqTransf": "transformer",
    "tightTransf": "tight",
}


def build_clip4clip(golden: Golden, case: str, padding: str) -> Method:
    options, head = golden.options, case.split("/")[0]
    if head == "stem3d":
        stem = {"patch": options["stem_patch"], "grid": options["stem_grid"]}
        sizes = dataclasses.replace(
            golden, options={**options, **stem, "width": options["stem_width"], "heads": 1}
        )
        config = config_of("clip4clip", num_frames=options["frames"], stem="3d")
        return METHODS["clip4clip"].build(config, clip_encoder(sizes, layers=1))
    config = config_of(
        "clip4clip",
        **temporal_sizes(options),
        head=CLIP4CLIP_HEADS[head],
        dropout=0.0,
        score_bias=head == "tightTransf",
    )
    return METHODS["clip4clip"].build(config, feature_encoder(options["dim"]))


def run_clip4clip(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    if case.startswith("stem3d"):
        pixels = inputs["pixels"]
        tokens = method.encoder.vision.embed(pixels.flatten(0, 1), pixels.shape[1])
        slope = torch.linspace(-1, 1, tokens.numel())
        return Results({"tokens_before_blocks": tokens}, (tokens.flatten().square() * slope).sum())
    text = TextFeatures(inputs["sentence"])
    video = method.encode_video(VideoFeatures(inputs["frames"], inputs["video_mask"].bool()))
    scale = 1.0 if method.loss is None else method.loss.scale()
    outputs = {"logits": scale * method.score(text, video)}
    return Results(outputs, match_pairs(method, text, video).total)


def build_xpool(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    config = config_of(
        "xpool",
        num_frames=options["frames"],
        num_heads=options["num_mha_heads"],
        dropout=options["transformer_dropout"],
    )
    return METHODS["xpool"].build(config, feature_encoder(options["dim"]))


def run_xpool(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    sentence, frames = inputs["sentence"], inputs["frames"]
    text, video = TextFeatures(sentence), VideoFeatures(frames, every(*frames.shape[:2]))
    outputs = {
        "pooled_videos_by_texts": method.pooling(sentence, frames, video.mask).transpose(0, 1),
        "scores": method.score(text, video),
    }
    is_matched = len(text) == len(video)
    return Results(outputs, match_pairs(method, text, video).total if is_matched else None)


def build_tmass(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    config = config_of(
        "tmass",
        num_frames=options["frames"],
        num_heads=options["num_mha_heads"],
        dropout=options["transformer_dropout"],
        prior="uniform" if options["stochastic_prior"] == "uniform01" else "normal",
        noise_scale=options["stochastic_prior_std"],
        num_candidates=options["stochasic_trials"],
        support_weight=options["support_loss_weight"],
    )
    return METHODS["tmass"].build(config, feature_encoder(options["dim"]))


def run_tmass(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    sentence, frames = inputs["sentence"], inputs["frames"]
    text, video = TextFeatures(sentence), VideoFeatures(frames, every(*frames.shape[:2]))
    noise = inputs["training_noise"]
    losses = match_pairs(method, text, video, noise=noise)
    own = torch.arange(len(text))
    radius = method.radius(text, video)[own, own]
    pooled_videos = method.pooling(sentence, frames, video.mask)
    stochastic = sentence + radius * noise
    support = sentence + F.normalize(pooled_videos.mean(dim=0) - sentence, dim=-1) * radius
    by_pair = inputs["evaluation_noise_trial_text_video"].permute(1, 2, 0, 3)
    outputs = {
        "stochastic_text": stochastic,
        "log_radius": radius.log(),
        "training_scores": F.cosine_similarity(stochastic[:, None], pooled_videos, dim=-1),
        "support_text": support,
        "support_scores": F.cosine_similarity(support[:, None], pooled_videos, dim=-1),
        "stochastic_loss": losses.terms["stochastic"],
        "evaluation_scores": method.score(text, video, by_pair),
    }
    if "support" in losses.terms:
        outputs["support_loss"] = losses.terms["support"]
    skipped_outputs = () if "support" in losses.terms else ("support_loss",)
    return Results(outputs, losses.total, skipped_outputs)


def build_tvproxynet(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    num_proxies = golden.arrays[f"{case}/inputs/video_proxies"].shape[1]
    config = config_of(
        "tvproxynet",
        num_proxies=num_proxies,
        num_read=options["using_M"],
        num_layers=options["layers"],
        num_heads=options["heads"],
        hidden_dim=options["hidden"],
        dropout=0.0,
        text_sign=options["delta"],
        leader_sign=options["eta"],
        dash="linear" if case.startswith("linear") else "theta",
        proxy_weight=options["L_p_alpha"],
        positive_weight=options["L_pos_beta"],
    )
    return METHODS["tvproxynet"].build(config, clip_encoder(golden, heads=1))


def run_tvproxynet(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    sentence, tokens = inputs["sentence"], inputs["video_proxies"]
    unit, vectors = (F.normalize(inputs[name], dim=-1) for name in ("sentence", "video"))
    text = TextFeatures(sentence)
    video = VideoFeatures(
        tokens[:, :1], every(len(tokens), 1), video=inputs["video"], tokens=tokens
    )
    proxies = method.text_proxies(unit, tokens)
    own = F.normalize(proxies[torch.arange(len(text)), torch.arange(len(text))], dim=-1)
    outputs = {
        "leaders": method.leader(unit, tokens[:, : method.config.num_read]),
        "text_proxies": proxies,
        "direct_scores": unit @ vectors.T,
        "proxy_scores": torch.einsum("tvd,vd->tv", F.normalize(proxies, dim=-1), vectors),
        "positive_proxy_scores": own @ vectors.T,
    }
    return Results(outputs, match_pairs(method, text, video).total)


# Methods inside a tower, from pixels.


def build_tempme(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    across, within = (int(part) / 100 for part in options["merge_token_proportion"].split("-"))
    config = config_of(
        "tempme",
        num_frames=options["frames"],
        rank=options["lora_dim"],
        frozen=False,
        groups=tuple(int(part) for part in options["merge_frame_num"].split("-")),
        merge_blocks=tuple(int(part) for part in options["merge_layer"].split("-")),
        num_merged=options["tome_r"],
        across=across,
        within=within,
        clip_positions=bool(options["frame_pos"]),
        padding=padding,
    )
    return METHODS["tempme"].build(config, clip_encoder(golden))


def run_tempme(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    pixels, mask = inputs["pixels"], inputs["video_mask"].bool()
    states = list(method.merging.blocks(method.encoder.vision, pixels))
    text, video = TextFeatures(inputs["sentence"]), method.encode_padded(pixels, mask)
    outputs = {
        "video": video.video,
        "logits": method.loss.scale() * method.score(text, video),
        "class_tokens_after_block": torch.tensor([count for _, count in states]),
        "tokens_after_block": torch.tensor([state.tokens.shape[1] for state, _ in states]),
    }
    for index, (state, _) in enumerate(states):
        outputs[f"block{index}_first_clip_tokens"] = state.tokens[0]
        outputs[f"block{index}_sizes"] = state.sizes
    return Results(outputs, match_pairs(method, text, video).total)


def build_clipvip(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    config = config_of(
        "clipvip",
        num_frames=options["frames"],
        num_proxies=1 + options["added_proxies"],
        num_positions=options["temporal_size"],
        padding=padding,
    )
    return METHODS["clipvip"].build(config, clip_encoder(golden))


def run_clipvip(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    pixels, tower = inputs["pixels"], method.encoder.vision
    mask = every(*pixels.shape[:2])
    proxies, _ = method.proxies(tower, pixels, mask)
    text = TextFeatures(inputs["sentence"])
    vectors = tower.project(proxies[:, 0])
    video = VideoFeatures(vectors[:, None], mask[:, :1], video=vectors)
    outputs = {
        "proxies_after_blocks": proxies,
        "video": method.coarse_vectors(video),
        "scores": method.score(text, video),
    }
    return Results(outputs, match_pairs(method, text, video).total)


def build_space_time(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    encoder = clip_encoder(golden, activation="gelu", norm_eps=1e-6)
    encoder.vision = VitTower(encoder.config.vision, options["dim"], (0.0,) * 3, (1.0,) * 3)
    config = config_of(
        golden.method,
        num_frames=options["table_frames"],
        temperature=options["temperature"],
        padding=padding,
    )
    method_class = type(METHODS[golden.method].build(config, clip_encoder(golden)))
    return method_class(encoder, config)


def run_space_time(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    pixels, tower = inputs["pixels"], method.encoder.vision
    mask = every(*pixels.shape[:2])
    first, patches = method.space_time(tower, pixels, mask)
    vectors, frames = tower.read_video(first, patches, mask)
    text = TextFeatures(inputs["sentence"])
    video = VideoFeatures(frames, mask, video=vectors)
    outputs = {
        "class_token": tower.ln_post(first[:, 0]),
        "video": vectors,
        "scores": method.score(text, video),
    }
    return Results(outputs, match_pairs(method, text, video).total)


# Methods on experts.


def expert_encoder(
    widths: Mapping[str, int], frames: str, *, text_dim: int, words_dim: int, dim: int
) -> ExpertEncoder:
    return ExpertEncoder(
        ExpertConfig(dict(widths), frames, text_dim=text_dim, words_dim=words_dim, dim=dim)
    )


def expert_video(method: Any, experts: dict[str, Expert]) -> VideoFeatures:
    frames = experts[method.frames_expert]
    return method.encode_video(  # type: ignore[no-any-return]
        VideoFeatures(frames.values, frames.mask, experts=experts)
    )


def both_modes(
    method: Any, encode: Callable[[], tuple[TextFeatures, VideoFeatures]]
) -> tuple[dict[str, Tensor], TextFeatures, VideoFeatures, Tensor]:
    """Scores with batch statistics and with stored ones; evaluation first, it changes nothing."""
    with evaluating(method), torch.no_grad():
        scores = method.score(*encode())
    text, video = encode()
    outputs = {"scores_training": method.score(text, video), "scores_evaluation": scores}
    return outputs, text, video, match_pairs(method, text, video).total


def build_ce(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    centres = dict(options["clusters"])
    text_centres = centres.pop("text")
    frames = next(name for name in sorted(options["experts"]) if name not in centres)
    encoder = expert_encoder(
        options["experts"],
        frames,
        text_dim=options["word_dim"],
        words_dim=options["word_dim"],
        dim=options["dim"],
    )
    config = config_of(
        "ce",
        dim=options["dim"],
        text_centres=text_centres,
        text_ghosts=options["text_ghosts"],
        centres=centres,
        sequential=True,
        margin=options["margin"],
        padding=padding,
    )
    return METHODS["ce"].build(config, encoder)


def run_ce(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    words = inputs["words"]

    def encode() -> tuple[TextFeatures, VideoFeatures]:
        text = method.encode_text(TextFeatures(words[:, 0], words, every(*words.shape[:2])))
        experts = {}
        for name in golden.options["experts"]:
            values, present = inputs[f"expert_{name}"], inputs[f"present_{name}"]
            mask = present[:, None].expand(values.shape[:2])
            experts[name] = Expert(values.masked_fill(~mask[..., None], 0.0), mask)
        return text, expert_video(method, experts)

    outputs, text, video, loss = both_modes(method, encode)
    assert text.words is not None
    outputs |= {"text_embeddings": text.words, "video_embeddings": video.tokens}
    return Results(outputs, loss)


def build_mmt(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    widths = {name: width for name, (width, _) in options["experts"].items()}
    encoder = expert_encoder(
        widths,
        sorted(widths)[0],
        text_dim=options["text_dim"],
        words_dim=options["text_dim"],
        dim=options["dim"],
    )
    config = config_of(
        "mmt",
        dim=options["dim"],
        num_layers=options["layers"],
        num_heads=options["heads"],
        hidden_dim=options["hidden"],
        num_positions=options["positions"],
        max_tokens=options["tokens"],
        dropout=0.0,
        margin=options["margin"],
        padding=padding,
    )
    return METHODS["mmt"].build(config, encoder)


def run_mmt(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    def encode() -> tuple[TextFeatures, VideoFeatures]:
        experts = {
            name: Expert(
                inputs[f"expert_{name}"], inputs[f"mask_{name}"], inputs[f"seconds_{name}"]
            )
            for name in golden.options["experts"]
        }
        text = method.encode_text(TextFeatures(inputs["sentence"]))
        return text, expert_video(method, experts)

    outputs, _, _, loss = both_modes(method, encode)
    return Results(outputs, loss)


def build_t2vlad(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    widths = {name: width for name, (width, _) in options["experts"].items()}
    encoder = expert_encoder(
        widths,
        sorted(widths)[0],
        text_dim=options["dim"],
        words_dim=options["dim"],
        dim=options["dim"],
    )
    config = config_of(
        "t2vlad",
        dim=options["dim"],
        num_centres=options["centres"],
        num_ghosts=options["ghosts"],
        num_heads=options["heads"],
        margin=options["margin"],
        padding=padding,
    )
    return METHODS["t2vlad"].build(config, encoder)


def run_t2vlad(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    words = inputs["words"]

    def encode() -> tuple[TextFeatures, VideoFeatures]:
        experts = {}
        for name in golden.options["experts"]:
            values = inputs[f"expert_{name}"]
            experts[name] = Expert(values, every(*values.shape[:2]))
        text = method.encode_text(TextFeatures(words[:, 0], words, every(*words.shape[:2])))
        return text, expert_video(method, experts)

    outputs, _, _, loss = both_modes(method, encode)
    return Results(outputs, loss)


def build_hgr(golden: Golden, case: str, padding: str) -> Method:
    options = golden.options
    encoder = expert_encoder(
        {"frames": options["frame_dim"]},
        "frames",
        text_dim=options["word_dim"],
        words_dim=options["word_dim"],
        dim=options["dim"],
    )
    config = config_of(
        "hgr",
        dim=options["dim"],
        num_verbs=options["num_verbs"],
        num_graph_layers=options["gcn_layers"],
        word_dropout=0.0,
        graph_dropout=0.0,
        frame_dropout=0.0,
        sharpness=options["sigma"],
        margin=options["margin"],
    )
    return METHODS["hgr"].build(config, encoder)


def sized_tokens(counts: Tensor, length: int) -> Tensor:
    return torch.arange(length)[None] < counts[:, None]


def run_hgr(method: Any, golden: Golden, case: str, inputs: Inputs) -> Results:
    words, frames = inputs["words_embedded"], inputs["frames"]
    words_mask = sized_tokens(inputs["word_counts"], words.shape[1])
    spans = torch.cat(
        [words_mask[:, None], inputs["verb_words"].bool(), inputs["noun_words"].bool()], dim=1
    )
    roles = F.pad(inputs["roles"].long(), (1, 0))
    graph = TextGraph(spans, roles, inputs["edges"].bool())
    text = method.encode_text(TextFeatures(words[:, 0], words, words_mask, graph=graph))
    mask = sized_tokens(inputs["frame_counts"], frames.shape[1])
    video = expert_video(method, {"frames": Expert(frames, mask)})
    sentence, verbs, nouns = (level.T for level in method.levels(text, video))
    num_verbs = method.config.num_verbs
    outputs = {
        "sentence": text.sentence,
        "verbs": text.words[:, :num_verbs],
        "nouns": text.words[:, num_verbs:],
        "video_sentence": video.video,
        "sentence_scores_video_by_text": sentence,
        "verb_scores_video_by_text": verbs,
        "noun_scores_video_by_text": nouns,
        "scores_video_by_text": method.score(text, video).T,
    }
    return Results(outputs, match_pairs(method, text, video).total)


Build = Callable[[Golden, str, str], Method]
Run = Callable[[Any, Golden, str, Inputs], Results]
ADAPTERS: dict[str, tuple[Build, Run]] = {
    "bridgeformer": (build_space_time, run_space_time),
    "ce": (build_ce, run_ce),
    "clip4clip": (build_clip4clip, run_clip4clip),
    "clipvip": (build_clipvip, run_clipvip),
    "drl": (build_drl, run_drl),
    "frozen": (build_space_time, run_space_time),
    "glscl": (build_glscl, run_glscl),
    "hgr": (build_hgr, run_hgr),
    "mmt": (build_mmt, run_mmt),
    "prost": (build_prost, run_prost),
    "t2vlad": (build_t2vlad, run_t2vlad),
    "tempme": (build_tempme, run_tempme),
    "tmass": (build_tmass, run_tmass),
    "ts2net": (build_ts2net, run_ts2net),
    "tvproxynet": (build_tvproxynet, run_tvproxynet),
    "ucofia": (build_ucofia, run_ucofia),
    "xpool": (build_xpool, run_xpool),
}


def weights_for(golden: Golden, case: str) -> dict[str, Tensor]:
    """The weights of a file that belong to one case: CLIP4Clip's files hold four heads."""
    weights = golden.weights
    parts = {
        "meanP": r"clip.logit_scale",
        "seqLSTM": "lstm_visual",
        "seqTransf": ("transformerClip", "frame_position_embeddings"),
        "tightTransf": ("cross.", "similarity_dense"),
        "stem3d": "clip.visual.",
    }
    if golden.method == "clip4clip":
        start = parts[case.split("/")[0]]
        return {
            name: value
            for name, value in weights.items()
            if name.startswith(start) or name == "clip.logit_scale"
        }
    if golden.method == "tvproxynet":
        other = "dash_weights" if case.startswith("theta") else "dash_factor"
        return {name: value for name, value in weights.items() if not name.startswith(other)}
    return weights


def official_method(
    golden: Golden, case: str, padding: str, dtype: torch.dtype = torch.float32
) -> Method:
    """The method of a file in training mode, with the official weights."""
    torch.manual_seed(0)
    build, _ = ADAPTERS[golden.method]
    method = build(golden, case, padding).to(dtype)
    load_official(method, weights_for(golden, case), **table_options(golden))
    return method.train()


def table_options(golden: Golden) -> dict[str, Any]:
    if golden.method != "mmt":
        return {}
    return {"types": {name: row for name, (_, row) in golden.options["experts"].items()}}
