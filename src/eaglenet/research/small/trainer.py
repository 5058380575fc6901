"""Training of two towers on pairs of texts and images or videos; keeps the mean of the weights."""

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
from eaglenet.core.run_folder import LOG
from eaglenet.core.types import Tokens
from eaglenet.encoders.compact import CompactEncoder, mean_of_words
from eaglenet.research.small.banks import (
    PairBank,
    evaluate_all,
    plain_views,
    random_views,
    recall_sum,
)
from eaglenet.research.training.config import check_minimum


def pair_loss(
    pictures: Float[Tensor, "pairs dim"],
    sentences: Float[Tensor, "pairs dim"],
    log_scale: Float[Tensor, ""],
    *,
    is_same: Bool[Tensor, "pairs pairs"] | None = None,
    meanings: Float[Tensor, "pairs meaning"] | None = None,
    share: float = 0.0,
    temperature: float = 0.05,
) -> Float[Tensor, ""]:
    r"""Cross entropy both ways of ``exp(log_scale) cos(p_i, s_j)`` with soft targets.

    ``T = (1 - share) S + share softmax(M M^T / temperature)``, where row ``i`` of ``S`` is even
    over the pairs with the same text as pair ``i`` (``is_same``; the identity without it) and
    ``M`` are unit vectors of the meaning of the texts; the rows of ``T`` are the targets of both
    directions.
    """
    p, s = F.normalize(pictures.float(), dim=-1), F.normalize(sentences.float(), dim=-1)
    logits = log_scale.float().exp().clamp(max=100.0) * (p @ s.T)
    rows, columns = F.log_softmax(logits, dim=1), F.log_softmax(logits, dim=0)
    if is_same is None:
        hard = -(rows.diagonal().mean() + columns.diagonal().mean()) / 2
    else:
        even = is_same / is_same.sum(dim=1, keepdim=True)
        hard = -((even * rows).sum(dim=1).mean() + (even * columns.T).sum(dim=1).mean()) / 2
    if meanings is None or not share:
        return hard
    with torch.no_grad():
        targets = F.softmax((meanings @ meanings.T).float() / temperature, dim=1)
    soft = -((targets * rows).sum(dim=1).mean() + (targets * columns.T).sum(dim=1).mean()) / 2
    return (1 - share) * hard + share * soft


def distillation_loss(
    pictures: Float[Tensor, "pairs dim"],
    targets: Float[Tensor, "pairs dim"],
    sentences: Float[Tensor, "pairs dim"],
    log_scale: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    r"""Distance of the image vectors, and of their similarities to the texts of the batch.

    ``mean(1 - cos(p, t)) + KL(softmax(a t s^T) || softmax(a p s^T))``, the divergence over the
    texts of an image and over the images of a text by halves, ``a = exp(log_scale)``; p: student,
    t: teacher, s: texts by the teacher's text tower, which is the student's too.
    """
    p, t, s = (F.normalize(part.float(), dim=-1) for part in (pictures, targets, sentences))
    scale = log_scale.detach().float().exp().clamp(max=100.0)
    distance = (1 - (p * t).sum(dim=-1)).mean()
    return distance + _divergence(scale * (p @ s.T), scale * (t @ s.T))


def agreement_loss(
    pictures: Float[Tensor, "pictures dim"],
    sentences: Float[Tensor, "sentences dim"],
    log_scale: Float[Tensor, ""],
    *,
    earlier_images: Float[Tensor, "pictures dim"],
    earlier_texts: Float[Tensor, "sentences dim"],
    scale: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    r"""Change of the similarities between images without texts and the texts of a batch.

    ``KL(softmax(b v w^T) || softmax(a p s^T))``, over the texts of an image and over the images of
    a text by halves, ``a = exp(log_scale)``; v (``earlier_images``) and w (``earlier_texts``) are
    the unit vectors of the same images and texts before training, b (``scale``) the scale then.
    """
    p, s = F.normalize(pictures.float(), dim=-1), F.normalize(sentences.float(), dim=-1)
    ours = log_scale.float().exp().clamp(max=100.0) * (p @ s.T)
    return _divergence(ours, scale * (earlier_images.float() @ earlier_texts.float().T))


def _divergence(
    ours: Float[Tensor, "rows columns"], theirs: Float[Tensor, "rows columns"]
) -> Float[Tensor, ""]:
    """KL divergence of softmax(ours) from softmax(theirs): mean of rows and columns by halves."""
    parts = [
        F.kl_div(
            F.log_softmax(ours, dim=side),
            F.log_softmax(theirs, dim=side),
            reduction="sum",
            log_target=True,
        )
        / ours.shape[1 - side]
        for side in (0, 1)
    ]
    return (parts[0] + parts[1]) / 2


@dataclass(frozen=True)
class PairTrainingConfig:
    """Settings of a training on pairs. The recipe ``small`` changes some of them.

    steps: number of batches; the rates fall to zero over them on a cosine.
    batch_items, video_share: images and videos per batch, and the share of videos among them.
    frames_per_video: random frames per video; their mean is the vector of the video.
    lr_towers, lr_heads: peak rates of the two towers and of projections and temperature.
    soft_targets: share of the target for texts of similar meaning, by the text tower before
        training: two captions "a man is talking" are both right for either video.
    machine_share: probability of a captioner's text where people wrote one too.
    layer_decay: factor of a block's rate per block above it; embeddings have the lowest rate.
    word_dropout: share of tokens hidden. text_dropout: dropout of each text branch.
    drop_path: share of images that skip a visual branch. patch_dropout: share of patches left
        out, where the tower does not pool them.
    average: decay of the running mean of all weights, which is evaluated and saved.
    crop: smallest share of an image's area in a random crop.
    unlabelled_items: images without texts per batch, if the run has any; their similarities to
        the texts of the batch should stay as they were before training (`agreement_loss`).
    compile_blocks: let torch compile the visual blocks (a GPU; about half a minute at the start).
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
        check_minimum(self, {1: counts, 0: ("unlabelled_items",)})
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
                raise ConfigError(f"{name} is {getattr(self, name)}, should be in 0 ... 1")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay is {self.layer_decay}, should be above 0, at most 1")
        if not 0 < self.crop <= 1 or not 0 <= self.average < 1:
            raise ConfigError("crop should be in 0 ... 1, average below 1")


IMAGE_BATCH = 512
TEXT_BATCH = 8192


@dataclass(frozen=True)
class Unlabelled:
    """Images without texts, and unit vectors of them and of all texts before training."""

    frames: UInt8[Tensor, "pictures 3 height width"]
    image_vectors: Float[Tensor, "pictures dim"]
    text_vectors: Float[Tensor, "sentences dim"]
    scale: Float[Tensor, ""]

    @classmethod
    @torch.no_grad()
    def before(
        cls,
        encoder: CompactEncoder,
        frames: UInt8[Tensor, "pictures 3 height width"],
        ids: Int[Tensor, "sentences words"],
    ) -> Unlabelled:
        """Encode whole images and texts with ``encoder`` as it is now."""
        vision, size = encoder.vision, encoder.config.vision.image_size
        device = frames.device
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            images = [
                vision(vision.normalise(plain_views(part, size)))[:, 0]
                for part in frames.split(IMAGE_BATCH)
            ]
            texts = [
                mean_of_words(encoder.text(part, part != 0).float(), part != 0)
                for part in ids.split(TEXT_BATCH)
            ]
        scale = encoder.logit_scale.float().exp().clamp(max=100.0)
        return cls(frames, _unit(images), _unit(texts), scale)


def _unit(parts: list[Tensor]) -> Float[Tensor, "rows dim"]:
    return F.normalize(torch.cat(parts).float(), dim=-1).half()


logger = logging.getLogger(__name__)
BEST = "best.pt"


@dataclass
class PairTrainer:
    """Trains ``encoder`` in place; ``averaged`` is the running mean of its weights."""

    encoder: CompactEncoder
    train: PairBank
    validation: Mapping[str, PairBank]
    config: PairTrainingConfig
    output: Path
    report: Callable[[str], None] = logger.info
    teacher: CompactEncoder | None = None
    """Towers to imitate instead of learning from pairs; their text tower is used unchanged."""
    pictures: UInt8[Tensor, "pictures 3 height width"] | None = None
    """Images without texts, ``unlabelled_items`` of them per batch."""
    averaged: CompactEncoder = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        torch.manual_seed(self.config.seed)
        self.device = self.train.device
        self.encoder.to(self.device).train()
        if self.teacher is not None:
            self.teacher.to(self.device).eval().requires_grad_(False)
            self.encoder.text.load_state_dict(self.teacher.text.state_dict())
            self.encoder.text.eval().requires_grad_(False)
            self.encoder.logit_scale.requires_grad_(False)
        self.averaged = copy.deepcopy(self.encoder).eval().requires_grad_(False)
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
        is_soft = self.config.soft_targets > 0 and self.teacher is None
        self.meanings = self._meanings() if is_soft else None
        self.unlabelled: Unlabelled | None = None
        if self.pictures is not None and self.config.unlabelled_items and self.teacher is None:
            self.unlabelled = Unlabelled.before(self.averaged, self.pictures, self.train.ids)
        self._optimizer = self._make_optimizer()
        self.output.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Run all steps; writes the log and the best averaged weights into ``output``."""
        started = time.monotonic()
        best, recent = -1.0, torch.zeros((), device=self.device)
        share = 0.0
        while share < 1.0:
            warm = min(1.0, (self.step + 1) / max(self.config.warmup_steps, 1))
            loss = self._train_step(warm * (0.5 + 0.5 * math.cos(math.pi * min(share, 1.0))))
            recent = loss if self.step == 1 else 0.98 * recent + 0.02 * loss
            seconds = time.monotonic() - started
            share = self.step / self.config.steps
            if self.step % self.config.evaluate_every == 0 or share >= 1.0:
                if not math.isfinite(recent.item()):
                    raise NonFiniteError(f"the loss is {recent.item()} after {self.step} steps")
                best = max(best, self._evaluate(recent.item(), seconds, best))

    def _train_step(self, rate: float) -> Float[Tensor, ""]:
        config = self.config
        videos, images = self._draw_items()
        video_rows = self.train.draw_frames(videos, config.frames_per_video, self.generator)
        image_rows = self.train.draw_frames(images, 1, self.generator)
        rows = torch.cat([video_rows.flatten(), image_rows.flatten()])
        items = torch.cat([videos, images])
        sentences = self.train.draw_sentences(items, config.machine_share, self.generator)
        size = self.encoder.config.vision.image_size
        inputs = self.train.frames[rows]
        if self.unlabelled is not None:
            others = torch.randint(
                len(self.unlabelled.frames),
                (config.unlabelled_items,),
                generator=self.generator,
                device=self.device,
            )
            inputs = torch.cat([inputs, self.unlabelled.frames[others]])
        pixels = random_views(inputs, size, config.crop, self.generator)
        tokens = self._hide_words(self.train.tokens(sentences))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            pixels = self.encoder.vision.normalise(pixels)
            frames = self.encoder.vision(pixels)[:, 0]
            words = self.encoder.text(tokens.ids, tokens.mask)
            targets = None if self.teacher is None else self._teacher_vectors(pixels)
        sentence = mean_of_words(words.float(), tokens.mask)
        frames, alone = frames.float().tensor_split([len(rows)])
        pictures = pool_frames(frames, len(videos), config.frames_per_video)
        if targets is None:
            loss = pair_loss(
                pictures,
                sentence,
                self.encoder.logit_scale,
                is_same=same_words(self.train.ids[sentences]),
                meanings=None if self.meanings is None else self.meanings[sentences],
                share=config.soft_targets,
            )
        else:
            goal = pool_frames(targets.float(), len(videos), config.frames_per_video)
            loss = distillation_loss(pictures, goal, sentence, self.encoder.logit_scale)
        if self.unlabelled is not None:
            loss = loss + agreement_loss(
                alone,
                sentence,
                self.encoder.logit_scale,
                earlier_images=self.unlabelled.image_vectors[others],
                earlier_texts=self.unlabelled.text_vectors[sentences],
                scale=self.unlabelled.scale,
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

    @torch.no_grad()
    def _teacher_vectors(
        self, pixels: Float[Tensor, "images 3 height width"]
    ) -> Float[Tensor, "images dim"]:
        assert self.teacher is not None
        size = self.teacher.config.vision.image_size
        if pixels.shape[-1] != size:
            pixels = F.interpolate(pixels, (size, size), mode="bicubic", antialias=True)
        vectors: Tensor = self.teacher.vision(pixels)[:, 0]
        return vectors

    def _draw_items(self) -> tuple[Int[Tensor, "videos"], Int[Tensor, "images"]]:
        video_items = round(self.config.batch_items * self.config.video_share)
        num_videos = min(video_items, len(self._videos))
        num_images = min(self.config.batch_items - num_videos, len(self._images))
        return tuple(
            part[torch.randperm(len(part), generator=self.generator, device=self.device)[:number]]
            for part, number in ((self._videos, num_videos), (self._images, num_images))
        )  # type: ignore[return-value]

    def _hide_words(self, tokens: Tokens) -> Tokens:
        """Hide a share of the tokens, but not the first and the last."""
        if not self.config.word_dropout:
            return tokens
        draws = torch.rand(tokens.ids.shape, generator=self.generator, device=self.device)
        inner = tokens.mask.clone()
        inner[:, 0] = False
        inner[:, :-1] &= tokens.mask[:, 1:]
        return Tokens(tokens.ids, tokens.mask & ~(inner & (draws < self.config.word_dropout)))

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
        """Highest rate of a parameter; ``layer_decay`` lowers it for lower blocks."""
        if ("projection" in name and "patch" not in name) or name == "logit_scale":
            return self.config.lr_heads
        tower = self.encoder.vision if name.startswith("vision") else self.encoder.text
        parts = name.split(".")
        if parts[1] == "blocks":
            above = len(tower.blocks) - 1 - int(parts[2])
        else:
            # The visual norm is the last layer, the text's the first.
            above = 0 if name.startswith("vision.norm") else len(tower.blocks)
        return self.config.lr_towers * self.config.layer_decay**above

    @torch.no_grad()
    def _average(self) -> None:
        # A short memory at first: the mean must forget the initial weights.
        decay = min(self.config.average, (1 + self.step) / (10 + self.step))
        ours: list[Tensor] = list(self.encoder.parameters())
        mean: list[Tensor] = list(self.averaged.parameters())
        torch._foreach_lerp_(mean, ours, 1 - decay)

    @torch.no_grad()
    def _meanings(self) -> Float[Tensor, "sentences meaning"]:
        """Unit vectors of all texts by the text tower before training."""
        tower = self.averaged.text
        parts = []
        for ids in self.train.ids.split(TEXT_BATCH):
            mask = ids != 0
            words = tower.states(ids, mask)
            parts.append(F.normalize(mean_of_words(words, mask), dim=-1).half())
        return torch.cat(parts)

    def _evaluate(self, loss: float, seconds: float, best: float) -> float:
        """Log the metrics; keep the averaged weights where they are the best so far."""
        results = evaluate_all(self.averaged, self.validation)
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
        # Without validation data the last weights are kept.
        if total >= best:
            torch.save(
                {
                    "weights": self.averaged.state_dict(),
                    "step": self.step,
                    "config": asdict(self.config),
                },
                self.output / BEST,
            )
        return total


def same_words(ids: Int[Tensor, "pairs words"]) -> Bool[Tensor, "pairs pairs"]:
    """Tell which texts of a batch are equal, token by token."""
    kinds: Tensor = torch.unique(ids, dim=0, return_inverse=True)[1]
    return kinds[:, None] == kinds


def pool_frames(
    frames: Float[Tensor, "frames dim"], num_videos: int, frames_per_video: int
) -> Float[Tensor, "items dim"]:
    """Unit mean of the unit frames of each video, which come first, then the unit images."""
    unit = F.normalize(frames, dim=-1)
    split = num_videos * frames_per_video
    videos = unit[:split].unflatten(0, (num_videos, frames_per_video)).mean(dim=1)
    return torch.cat([F.normalize(videos, dim=-1), unit[split:]])
