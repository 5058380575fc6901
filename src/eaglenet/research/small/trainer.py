"""Training of two towers on pairs of texts and images or videos, with averaged weights."""

from __future__ import annotations

import copy
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, NonFiniteError
from eaglenet.core.types import Tokens
from eaglenet.encoders.compact import CompactEncoder, mean_of_words
from eaglenet.research.evaluation.run_records import LOG
from eaglenet.research.small.pairs import (
    PairData,
    evaluate_all,
    plain_views,
    random_views,
    recall_sum,
)
from eaglenet.research.training.config import check_minimum

SOFT_TEMPERATURE = 0.05


def pair_loss(
    images: Float[Tensor, "pairs dim"],
    texts: Float[Tensor, "pairs dim"],
    log_scale: Float[Tensor, ""],
    *,
    is_same: Bool[Tensor, "pairs pairs"] | None = None,
    meanings: Float[Tensor, "pairs meaning"] | None = None,
    soft_weight: float = 0.0,
) -> Float[Tensor, ""]:
    r"""Compute the cross entropy of ``exp(log_scale) cos(v_i, t_j)`` in both directions.

    The targets are the rows of ``(1 - soft_weight) S + soft_weight softmax(M M^T / 0.05)``.
    Row i of ``S`` is uniform over the pairs with the same text as pair i (``is_same``; by default
    only pair i), and the rows of ``M`` are the unit vectors ``meanings`` of the texts.
    """
    v, t = F.normalize(images.float(), dim=-1), F.normalize(texts.float(), dim=-1)
    logits = log_scale.float().exp().clamp(max=100.0) * (v @ t.T)
    rows, columns = F.log_softmax(logits, dim=1), F.log_softmax(logits, dim=0)
    if is_same is None:
        hard = -(rows.diagonal().mean() + columns.diagonal().mean()) / 2
    else:
        weights = is_same / is_same.sum(dim=1, keepdim=True)
        hard = -((weights * rows).sum(dim=1).mean() + (weights * columns.T).sum(dim=1).mean()) / 2
    if meanings is None or not soft_weight:
        return hard
    with torch.no_grad():
        targets = F.softmax((meanings @ meanings.T).float() / SOFT_TEMPERATURE, dim=1)
    soft = -((targets * rows).sum(dim=1).mean() + (targets * columns.T).sum(dim=1).mean()) / 2
    return (1 - soft_weight) * hard + soft_weight * soft


def agreement_loss(
    images: Float[Tensor, "images dim"],
    texts: Float[Tensor, "texts dim"],
    log_scale: Float[Tensor, ""],
    *,
    earlier_images: Float[Tensor, "images dim"],
    earlier_texts: Float[Tensor, "texts dim"],
    scale: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    r"""Measure how training changed the similarities between unlabelled images and texts.

    ``KL(softmax(b w u^T) || softmax(a v t^T))``, the mean of both directions. Here v and t are the
    unit vectors of ``images`` and ``texts``, and ``a = exp(log_scale)``; w (``earlier_images``), u
    (``earlier_texts``) and b (``scale``) are the vectors and the scale before training.
    """
    v, t = F.normalize(images.float(), dim=-1), F.normalize(texts.float(), dim=-1)
    logits = log_scale.float().exp().clamp(max=100.0) * (v @ t.T)
    return _divergence(logits, scale * (earlier_images.float() @ earlier_texts.float().T))


def _divergence(
    logits: Float[Tensor, "rows columns"], targets: Float[Tensor, "rows columns"]
) -> Float[Tensor, ""]:
    """Compute KL(softmax(targets) || softmax(logits)), averaged over rows and columns."""
    over_columns, over_rows = (
        F.kl_div(
            F.log_softmax(logits, dim=dim),
            F.log_softmax(targets, dim=dim),
            reduction="sum",
            log_target=True,
        )
        / logits.shape[1 - dim]
        for dim in (0, 1)
    )
    return (over_columns + over_rows) / 2


@dataclass(frozen=True)
class PairTrainingConfig:
    """Settings of training on pairs; the recipe ``small`` changes some of them.

    steps: number of batches; the rates fall to zero along a cosine.
    batch_items, video_share: images and videos per batch, and the fraction of videos among them.
    frames_per_video: random frames per video; their mean is the vector of the video.
    lr_towers, lr_heads: peak rates of the towers, and of projections and temperature.
    soft_targets: weight of soft targets: similarities of the texts by the text tower before
        training.
    machine_share: probability of a captioner's text if an item also has texts by people.
    layer_decay: the rate of a block is multiplied by it once per block above; embeddings have the
        lowest rate.
    word_dropout: fraction of tokens masked.
    text_dropout: dropout of each branch of the text tower.
    drop_path: fraction of images that skip a branch of the visual tower.
    patch_dropout: fraction of patches left out.
    average: decay of the moving average of the weights, which is evaluated and saved.
    crop: smallest fraction of the area of an image in a random crop.
    unlabelled_items: unlabelled images per batch; :func:`agreement_loss` keeps their similarities
        to the texts of the batch as they were before training.
    compile_blocks: compile the visual blocks (GPU; takes about half a minute).
    """

    steps: int = 12000
    batch_items: int = 1536
    video_share: float = 0.4
    frames_per_video: int = 2
    lr_towers: float = 7e-5
    lr_heads: float = 1e-3
    weight_decay: float = 0.05
    warmup_steps: int = 200
    soft_targets: float = 0.2
    machine_share: float = 0.3
    layer_decay: float = 1.0
    word_dropout: float = 0.1
    text_dropout: float = 0.0
    drop_path: float = 0.1
    patch_dropout: float = 0.0
    average: float = 0.9995
    crop: float = 0.4
    clip_norm: float = 1.0
    evaluate_every: int = 1000
    unlabelled_items: int = 0
    compile_blocks: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("steps", "batch_items", "frames_per_video", "evaluate_every")
        rates = ("lr_towers", "lr_heads", "weight_decay", "warmup_steps", "clip_norm")
        check_minimum(self, {1: counts, 0: ("unlabelled_items", *rates)})
        for name in (
            "video_share",
            "soft_targets",
            "machine_share",
            "word_dropout",
            "text_dropout",
            "drop_path",
            "patch_dropout",
        ):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 0 to below 1")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay is {self.layer_decay}; expected above 0, at most 1")
        if not 0 < self.crop <= 1 or not 0 <= self.average < 1:
            raise ConfigError("expected crop above 0, at most 1, and average 0 to below 1")


IMAGE_BATCH = 512
TEXT_BATCH = 8192


@dataclass(frozen=True)
class UnlabelledData:
    """Images without texts, with the unit vectors of images and texts before training."""

    frames: UInt8[Tensor, "images 3 height width"]
    image_vectors: Float[Tensor, "images dim"]
    text_vectors: Float[Tensor, "texts dim"]
    scale: Float[Tensor, ""]

    @classmethod
    @torch.no_grad()
    def encode(
        cls,
        encoder: CompactEncoder,
        frames: UInt8[Tensor, "images 3 height width"],
        ids: Int[Tensor, "texts tokens"],
    ) -> UnlabelledData:
        """Encode images and texts with ``encoder`` before it is trained."""
        vision, size = encoder.vision, encoder.config.vision.image_size
        device = frames.device
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            images = [
                vision(vision.normalise(plain_views(batch, size)))[:, 0]
                for batch in frames.split(IMAGE_BATCH)
            ]
            texts = [
                mean_of_words(encoder.text(batch, batch != 0).float(), batch != 0)
                for batch in ids.split(TEXT_BATCH)
            ]
        scale = encoder.logit_scale.float().exp().clamp(max=100.0)
        return cls(frames, _unit(images), _unit(texts), scale)


def _unit(batches: list[Tensor]) -> Float[Tensor, "rows dim"]:
    return F.normalize(torch.cat(batches).float(), dim=-1).half()


logger = logging.getLogger(__name__)
BEST = "best.pt"


@dataclass
class PairTrainer:
    """Trainer that changes ``encoder``; ``averaged_encoder`` has the average of its weights.

    unlabelled_frames: images without texts, for ``config.unlabelled_items``.
    """

    encoder: CompactEncoder
    train: PairData
    validation: Mapping[str, PairData]
    config: PairTrainingConfig
    output: Path
    report: Callable[[str], None] = logger.info
    unlabelled_frames: UInt8[Tensor, "images 3 height width"] | None = None
    averaged_encoder: CompactEncoder = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.config.seed)
        self.device = self.train.device
        self.encoder.to(self.device).train()
        self.averaged_encoder = copy.deepcopy(self.encoder).eval().requires_grad_(False)
        self.encoder.vision.patch_dropout = self.config.patch_dropout
        for block in self.encoder.vision.blocks:
            block.drop_path = self.config.drop_path  # type: ignore[assignment]
            if self.config.compile_blocks:
                block.compile()
        for block in self.encoder.text.blocks:
            block.dropout = self.config.text_dropout  # type: ignore[assignment]
        self.generator = torch.Generator(self.device).manual_seed(self.config.seed)
        is_video = self.train.is_video
        self._videos = is_video.nonzero()[:, 0]
        self._images = (~is_video).nonzero()[:, 0]
        self.meanings = self._encode_meanings() if self.config.soft_targets > 0 else None
        self.unlabelled_data: UnlabelledData | None = None
        frames = self.unlabelled_frames
        if frames is not None and self.config.unlabelled_items:
            self.unlabelled_data = UnlabelledData.encode(
                self.averaged_encoder, frames, self.train.ids
            )
        self._optimizer = self._make_optimizer()
        self.output.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Run all steps; write the log and the best averaged weights into ``output``."""
        start = time.monotonic()
        best, mean_loss = -1.0, torch.zeros((), device=self.device)
        progress = 0.0
        while progress < 1.0:
            warmup = min(1.0, (self.step + 1) / max(self.config.warmup_steps, 1))
            loss = self._train_step(warmup * (0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0))))
            mean_loss = loss if self.step == 1 else 0.98 * mean_loss + 0.02 * loss
            seconds = time.monotonic() - start
            progress = self.step / self.config.steps
            if self.step % self.config.evaluate_every == 0 or progress >= 1.0:
                if not math.isfinite(mean_loss.item()):
                    raise NonFiniteError(f"the loss is {mean_loss.item()} after {self.step} steps")
                best = max(best, self._evaluate(mean_loss.item(), seconds, best))

    def _train_step(self, rate: float) -> Float[Tensor, ""]:
        config = self.config
        videos, images = self._draw_items()
        video_rows = self.train.draw_frames(videos, config.frames_per_video, self.generator)
        image_rows = self.train.draw_frames(images, 1, self.generator)
        rows = torch.cat([video_rows.flatten(), image_rows.flatten()])
        items = torch.cat([videos, images])
        text_rows = self.train.draw_texts(items, config.machine_share, self.generator)
        size = self.encoder.config.vision.image_size
        inputs = self.train.frames[rows]
        if self.unlabelled_data is not None:
            unlabelled_rows = torch.randint(
                len(self.unlabelled_data.frames),
                (config.unlabelled_items,),
                generator=self.generator,
                device=self.device,
            )
            inputs = torch.cat([inputs, self.unlabelled_data.frames[unlabelled_rows]])
        pixels = random_views(inputs, size, config.crop, self.generator)
        tokens = self._mask_tokens(self.train.tokens(text_rows))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            pixels = self.encoder.vision.normalise(pixels)
            frames = self.encoder.vision(pixels)[:, 0]
            token_features = self.encoder.text(tokens.ids, tokens.mask)
        texts = mean_of_words(token_features.float(), tokens.mask)
        frames, unlabelled_images = frames.float().tensor_split([len(rows)])
        item_vectors = pool_frames(frames, len(videos), config.frames_per_video)
        loss = pair_loss(
            item_vectors,
            texts,
            self.encoder.logit_scale,
            is_same=equal_texts(self.train.ids[text_rows]),
            meanings=None if self.meanings is None else self.meanings[text_rows],
            soft_weight=config.soft_targets,
        )
        if self.unlabelled_data is not None:
            loss = loss + agreement_loss(
                unlabelled_images,
                texts,
                self.encoder.logit_scale,
                earlier_images=self.unlabelled_data.image_vectors[unlabelled_rows],
                earlier_texts=self.unlabelled_data.text_vectors[text_rows],
                scale=self.unlabelled_data.scale,
            )
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.encoder.parameters(), config.clip_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * rate
        self._optimizer.step()
        self.step += 1
        self._average()
        return loss.detach()

    def _draw_items(self) -> tuple[Int[Tensor, "videos"], Int[Tensor, "images"]]:
        video_items = round(self.config.batch_items * self.config.video_share)
        num_videos = min(video_items, len(self._videos))
        num_images = min(self.config.batch_items - num_videos, len(self._images))
        return tuple(
            kind[torch.randperm(len(kind), generator=self.generator, device=self.device)[:number]]
            for kind, number in ((self._videos, num_videos), (self._images, num_images))
        )  # type: ignore[return-value]

    def _mask_tokens(self, tokens: Tokens) -> Tokens:
        """Mask a random fraction of the tokens between the first and the last."""
        if not self.config.word_dropout:
            return tokens
        draws = torch.rand(tokens.ids.shape, generator=self.generator, device=self.device)
        is_inner = tokens.mask.clone()
        is_inner[:, 0] = False
        is_inner[:, :-1] &= tokens.mask[:, 1:]
        return Tokens(tokens.ids, tokens.mask & ~(is_inner & (draws < self.config.word_dropout)))

    def _make_optimizer(self) -> torch.optim.Optimizer:
        config = self.config
        groups: dict[tuple[float, bool], list[Tensor]] = {}
        for name, parameter in self.encoder.named_parameters():
            if parameter.requires_grad:
                peak = self._peak_rate(name)
                groups.setdefault((peak, parameter.ndim > 1), []).append(parameter)
        return torch.optim.AdamW(
            [
                {
                    "params": parameters,
                    "peak": peak,
                    "weight_decay": config.weight_decay if is_matrix else 0.0,
                }
                for (peak, is_matrix), parameters in groups.items()
            ],
            lr=config.lr_towers,
            betas=(0.9, 0.98),
            fused=self.device.type == "cuda",
        )

    def _peak_rate(self, name: str) -> float:
        """Return the peak rate of a parameter; ``layer_decay`` lowers that of lower blocks."""
        if ("projection" in name and "patch" not in name) or name == "logit_scale":
            return self.config.lr_heads
        tower = self.encoder.vision if name.startswith("vision") else self.encoder.text
        names = name.split(".")
        if names[1] == "blocks":
            num_above = len(tower.blocks) - 1 - int(names[2])
        else:
            # The norm of the visual tower is its last layer, that of the text tower its first.
            num_above = 0 if name.startswith("vision.norm") else len(tower.blocks)
        return self.config.lr_towers * self.config.layer_decay**num_above

    @torch.no_grad()
    def _average(self) -> None:
        # The decay is smaller at first, so that the average forgets the initial weights.
        decay = min(self.config.average, (1 + self.step) / (10 + self.step))
        weights: list[Tensor] = list(self.encoder.parameters())
        averages: list[Tensor] = list(self.averaged_encoder.parameters())
        torch._foreach_lerp_(averages, weights, 1 - decay)

    @torch.no_grad()
    def _encode_meanings(self) -> Float[Tensor, "texts meaning"]:
        """Encode all texts to unit vectors with the text tower before training."""
        tower = self.averaged_encoder.text
        batches = []
        for ids in self.train.ids.split(TEXT_BATCH):
            mask = ids != 0
            states = tower.states(ids, mask)
            batches.append(F.normalize(mean_of_words(states, mask), dim=-1).half())
        return torch.cat(batches)

    def _evaluate(self, loss: float, seconds: float, best: float) -> float:
        """Evaluate and log the averaged weights, and save them if they are the best so far."""
        results = evaluate_all(self.averaged_encoder, self.validation)
        total = recall_sum(results)
        line = {
            "step": self.step,
            "seconds": round(seconds, 1),
            "loss": round(loss, 4),
            **{name: metrics.to_dict() for name, metrics in results.items()},
        }
        with (self.output / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        recalls = "; ".join(
            f"{name} R@1/5/10 {m.t2v.recall_at_1:.1f} / {m.t2v.recall_at_5:.1f} / "
            f"{m.t2v.recall_at_10:.1f}"
            for name, m in results.items()
        )
        self.report(f"step {self.step}, {seconds:.0f} s, loss {loss:.3f}: {recalls}")
        # Without validation data, the last weights are saved.
        if total >= best:
            torch.save(
                {
                    "weights": self.averaged_encoder.state_dict(),
                    "step": self.step,
                    "config": asdict(self.config),
                },
                self.output / BEST,
            )
        return total


def equal_texts(ids: Int[Tensor, "pairs words"]) -> Bool[Tensor, "pairs pairs"]:
    """Return the mask of pairs of texts that are equal."""
    text_ids: Tensor = torch.unique(ids, dim=0, return_inverse=True)[1]
    return text_ids[:, None] == text_ids


def pool_frames(
    frames: Float[Tensor, "frames dim"], num_videos: int, frames_per_video: int
) -> Float[Tensor, "items dim"]:
    """Return the unit vectors of videos, whose frames come first, and of images."""
    frames = F.normalize(frames, dim=-1)
    count = num_videos * frames_per_video
    videos = frames[:count].unflatten(0, (num_videos, frames_per_video)).mean(dim=1)
    return torch.cat([F.normalize(videos, dim=-1), frames[count:]])
