"""A run that makes two towers of pairs: folders of frames, weights to start from -> a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import tokenizers
import torch
from jaxtyping import UInt8
from torch import Tensor

from eaglenet.core.errors import ConfigError, DatasetError
from eaglenet.core.files import write_json
from eaglenet.core.run_folder import EXPERIMENT, MODEL
from eaglenet.core.settings import override, split_assignment, to_plain
from eaglenet.encoders.compact import CompactConfig, CompactEncoder
from eaglenet.encoders.tokenizers import JsonTokenizer, TokenizerSettings, read_backend
from eaglenet.methods.base import METHODS
from eaglenet.methods.clip4clip_config import CLIP4ClipConfig
from eaglenet.methods.wordframe import WordFrame
from eaglenet.methods.wordframe_config import WordFrameConfig
from eaglenet.models.files import HEAD
from eaglenet.models.folder import load, save
from eaglenet.models.head import save_head
from eaglenet.research.data.frame_folder import FrameItem
from eaglenet.research.small.banks import (
    PairBank,
    evaluate_all,
    join_banks,
    open_bank,
    open_pictures,
    recall_sum,
)
from eaglenet.research.small.start import keep_pieces, start_from
from eaglenet.research.small.trainer import (
    BEST,
    PairTrainer,
    PairTrainingConfig,
    Weights,
    greedy_soup,
)

# The head of towers that were made of pairs: captions of training level videos near to any.

TEXTS_AT_ONCE = 100


def typical_sentences(items: Sequence[FrameItem], number: int) -> list[str]:
    """Random captions that people wrote of videos, or of pictures where there are no videos."""
    videos = [item for item in items if item.frames > 1]
    written = [sentence for item in videos or items for sentence in item.captions.get("people", [])]
    chosen = sorted(set(written))
    return random.Random(0).sample(chosen, min(number, len(chosen)))


@torch.inference_mode()
def save_level_head(model: Path, sentences: Sequence[str], weight: float) -> None:
    """Beside the towers in ``model``: `wordframe` without its interaction, a bank of these.

    Their vectors are kept, and not the sentences; in int8, for twice as many that take the space of
    half precision level better, and the rounding changes nothing.
    """
    towers = load(model)
    config = WordFrameConfig(
        num_layers=0, changes=False, interaction=False, bank=len(sentences), bank_weight=weight
    )
    # Built as a method is: the level is computed with the temperature of the towers.
    head = METHODS["wordframe"].build(config, towers.encoder)
    assert isinstance(head, WordFrame) and head.bank is not None  # noqa: PT018
    for start in range(0, len(sentences), TEXTS_AT_ONCE):
        texts = towers.encode_text(sentences[start : start + TEXTS_AT_ONCE])
        head.bank.add(texts.sentence)
    save_head(head, model / HEAD, storage="int8")


FRAMES_A_CLIP = 6
"""That a search looks at: as good as 12 (the card has both on the test videos), for half of
the encoding, which is most of the work of indexing."""


@dataclass(frozen=True)
class StartWeights:
    """Folders with ``model.safetensors``: a DINOv2 ViT-S/14, and a MiniLM with its tokenizer."""

    vision: str = ""
    text: str = ""


@dataclass(frozen=True)
class PairExperiment:
    """Everything a run depends on.

    folders: folders of frames (`eaglenet data frames`), separated by commas.
    picture_size: side in pixels at which pictures are kept in memory; crops are taken from it.
    towers: the shape of the model that is made.
    beginning: the common start of all ingredients, with towers that do not pool their patches.
    ingredients: runs from there, each `beginning` with these settings changed, separated by
        spaces ("lr_towers=5e-5 seed=1"); the mean of the weights of those that help each other
        (:mod:`eaglenet.research.small.trainer`) is the teacher.
    further, agreeing, finishing: likewise, one after the other, from the mean so far on; the mean
        of these and of that one is the next. Settings of ``agreeing`` may ask for pictures of
        ``unlabelled`` beside each batch.
    unlabelled: folders of frames of which the captions are not read.
    joined: names of those of ``folders`` whose held-out items are trained on in the last two
        stages, when all is chosen; what is left to compare by is what the other folders hold out.
    student: how towers of the wanted shape learn to see as the teacher sees.
    head_sentences, head_weight: captions that stand for all in the head of the model, which levels
        videos that are near to any of them, and how much that counts; 0 sentences: no head.
    """

    name: str
    folders: str = ""
    picture_size: int = 192
    start: StartWeights = field(default_factory=StartWeights)
    towers: CompactConfig = field(default_factory=CompactConfig)
    beginning: PairTrainingConfig = field(default_factory=PairTrainingConfig)
    ingredients: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    agreeing: tuple[str, ...] = ()
    finishing: tuple[str, ...] = ()
    unlabelled: str = ""
    joined: str = ""
    student: PairTrainingConfig = field(default_factory=PairTrainingConfig)
    head_sentences: int = 1800
    head_weight: float = 0.75

    def changed(self, settings: Sequence[str]) -> PairExperiment:
        """With `section.field=value` settings applied."""
        experiment = self
        for setting in settings:
            path, text = split_assignment(setting, "beginning.steps=4000")
            experiment = override(experiment, path, text)
        return experiment

    @property
    def frame_folders(self) -> list[Path]:
        """The folders of frames, which must be there."""
        found = _paths(self.folders)
        if not found:
            raise DatasetError(
                "no folder of frames is given; prepare some with `eaglenet data frames` and name "
                "them: --set folders=A,B"
            )
        return found


def train_pairs(
    experiment: PairExperiment,
    output: str | Path,
    *,
    device: str = "auto",
    report: Callable[[str], None] = print,
) -> Path:
    """Train stage by stage, and write the towers as a model folder ``output/model``.

    A run that was interrupted goes on with the stage that it was in.
    """
    output = Path(output)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    start = experiment.start
    if not start.vision or not start.text:
        raise ConfigError(
            "no weights to start from; --set start.vision=FOLDER (DINOv2 ViT-S/14) and "
            "--set start.text=FOLDER (MiniLM-L6 with its tokenizer.json)"
        )
    text_folder = Path(start.text).expanduser()
    backend = read_backend(text_folder / "tokenizer.json")
    length = experiment.towers.text.context_length
    tokenizer = JsonTokenizer(backend, TokenizerSettings(context_length=length))
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / EXPERIMENT, to_plain(experiment))

    def bank(folders: Sequence[Path], split: str) -> PairBank:
        return open_bank(folders, split, tokenizer, size=experiment.picture_size, device=device)

    report(f"reading pictures of {experiment.folders}")
    banks = (bank(experiment.frame_folders, "train"), _validation(experiment.frame_folders, bank))
    alone = _paths(experiment.unlabelled)
    pictures = open_pictures(alone, size=experiment.picture_size, device=device) if alone else None
    making = Making(experiment, output, *banks, report, pictures)
    making.joined_names()  # a wrong one is told now, not after the stages before
    encoder = making.student(making.teacher(making.beginning()))
    save_towers(encoder, backend, output / MODEL)
    sentences = typical_sentences(banks[0].items, experiment.head_sentences)
    if sentences:
        save_level_head(output / MODEL, sentences, experiment.head_weight)
    return output / MODEL


@dataclass(frozen=True)
class Making:
    """The stages of a run; one whose folder has the file ``done`` is read instead of run again."""

    experiment: PairExperiment
    output: Path
    train: PairBank
    validation: Mapping[str, PairBank]
    report: Callable[[str], None]
    pictures: UInt8[Tensor, "pictures 3 height width"] | None = None

    def beginning(self) -> Weights:
        """The towers as they come, brought together for a short while."""
        encoder = self._towers(pooled=False)
        start = self.experiment.start
        start_from(encoder, Path(start.vision).expanduser(), Path(start.text).expanduser())
        return self._trained("beginning", encoder, self.experiment.beginning)

    def teacher(self, beginning: Weights) -> CompactEncoder:
        """The towers after the ingredients and the runs that follow them."""
        experiment = self.experiment
        mean = self.mean(self.runs("ingredient", experiment.ingredients, beginning) or [beginning])
        mean = self.round("further", experiment.further, mean)
        last = self.with_joined() if experiment.joined else self
        mean = last.round("agreeing", experiment.agreeing, mean)
        return last.round("finishing", experiment.finishing, mean)

    def round(self, stage: str, settings: Sequence[str], mean: CompactEncoder) -> CompactEncoder:
        """The mean of ``mean`` and of the runs from there."""
        start = _copied(mean)
        runs = self.runs(stage, settings, start)
        return self.mean([start, *runs]) if runs else mean

    def with_joined(self) -> Making:
        """The same with what the folders named ``joined`` hold out among what is trained on."""
        names, train = self.joined_names(), self.train
        for name in names:
            train = join_banks(train, self.validation[name])
        rest = {name: bank for name, bank in self.validation.items() if name not in names}
        return replace(self, train=train, validation=rest)

    def joined_names(self) -> list[str]:
        """The folders of ``joined``, all of which hold something out."""
        names = [name.strip() for name in self.experiment.joined.split(",") if name.strip()]
        missing = [name for name in names if name not in self.validation]
        if missing:
            held = ", ".join(self.validation) or "none"
            raise ConfigError(
                f"joined names {', '.join(missing)}; folders that hold items out: {held}"
            )
        return names

    def runs(self, stage: str, settings: Sequence[str], start: Weights) -> list[Weights]:
        """A run from ``start`` for each list of settings."""
        results = []
        for number, changes in enumerate(settings):
            config = self.experiment.beginning
            for setting in changes.split():
                config = override(config, *split_assignment(setting, "seed=1"))
            encoder = self._towers(pooled=False)
            encoder.load_state_dict(start)
            results.append(self._trained(f"{stage}-{number}", encoder, config))
        return results

    def mean(self, ingredients: Sequence[Weights]) -> CompactEncoder:
        """Of those ingredients that do better together."""
        encoder = self._towers(pooled=False).to(self.train.device).eval()

        def score(weights: Weights) -> float:
            encoder.load_state_dict(weights)
            return recall_sum(evaluate_all(encoder, self.validation))

        if len(ingredients) == 1:
            encoder.load_state_dict(ingredients[0])
            return encoder
        weights, chosen, best = greedy_soup(ingredients, score)
        self.report(f"the mean of ingredients {sorted(chosen)}: recalls sum up to {best:.1f}")
        encoder.load_state_dict(weights)
        return encoder

    def student(self, teacher: CompactEncoder) -> CompactEncoder:
        """Towers of the wanted shape that begin as the teacher and follow it."""
        encoder = self._towers(pooled=True)
        if encoder.config != teacher.config:
            encoder.load_state_dict(teacher.state_dict())
            best = self._trained("student", encoder, self.experiment.student, teacher)
            encoder.cpu().load_state_dict(best)
            return encoder
        return teacher.cpu()

    def _towers(self, *, pooled: bool) -> CompactEncoder:
        config = self.experiment.towers
        if not pooled:
            config = replace(config, vision=replace(config.vision, pool_after=0))
        return CompactEncoder(config, seed=self.experiment.beginning.seed)

    def _trained(
        self,
        stage: str,
        encoder: CompactEncoder,
        config: PairTrainingConfig,
        teacher: CompactEncoder | None = None,
    ) -> Weights:
        folder = self.output / stage
        mark = folder / "done"
        if mark.exists():
            self.report(f"{stage} is there already")
        else:

            def report(line: str) -> None:
                self.report(f"{stage}: {line}")

            if config.unlabelled_items and self.pictures is None:
                report("no folder is given as `unlabelled`, so there are pairs alone")
            PairTrainer(
                encoder,
                self.train,
                self.validation,
                config,
                folder,
                report,
                teacher,
                self.pictures,
            ).run()
            mark.write_text("")
        best = torch.load(folder / BEST, weights_only=True, map_location="cpu")
        weights: Weights = best["weights"]
        return weights


def _paths(names: str) -> list[Path]:
    """Folders that are written with commas between them."""
    return [Path(name.strip()).expanduser() for name in names.split(",") if name.strip()]


def _copied(encoder: CompactEncoder) -> Weights:
    return {name: value.detach().cpu().clone() for name, value in encoder.state_dict().items()}


def save_towers(encoder: CompactEncoder, backend: tokenizers.Tokenizer, folder: Path) -> None:
    """A zero-shot model of these towers: int8 weights, and Latin word pieces alone."""
    smaller, kept = keep_pieces(backend)
    config = encoder.config
    shrunk = CompactEncoder(replace(config, text=replace(config.text, vocabulary_size=len(kept))))
    weights = dict(encoder.state_dict())
    weights["text.embedding.weight"] = weights["text.embedding.weight"][kept]
    shrunk.load_state_dict(weights)
    method = METHODS["clip4clip"].build(CLIP4ClipConfig(num_frames=FRAMES_A_CLIP), shrunk).eval()
    settings = TokenizerSettings(context_length=config.text.context_length)
    method.tokenizer = JsonTokenizer(smaller, settings)
    save(method, folder, storage="int8")


def _validation(
    folders: Sequence[Path], bank: Callable[[Sequence[Path], str], PairBank]
) -> Mapping[str, PairBank]:
    """The validation items of each folder that has any."""
    found = {}
    for folder in folders:
        try:
            found[folder.name] = bank([folder], "validation")
        except DatasetError:
            continue
    return found


# Recipes that make towers instead of training a method on towers that exist.

_FURTHER = (
    "lr_towers=1e-4 lr_heads=5e-4 warmup_steps=60 word_dropout=0.15 drop_path=0.1 crop=0.3 "
    "machine_share=0.4 video_share=0.33 average=0.998 evaluate_every=250"
)
_INGREDIENT = "lr_heads=5e-4 warmup_steps=40 steps=850 average=0.995 evaluate_every=200"

_AGREEING = "lr_towers=8e-5 unlabelled_items=768 steps=900 seed=31"
_FINISHING = (
    "lr_towers=3e-5 lr_heads=1e-4 warmup_steps=20 steps=230 patch_dropout=0 crop=0.6 "
    "drop_path=0.05 word_dropout=0.15 machine_share=0.4 video_share=0.4 average=0.99 "
    "evaluate_every=100"
)

TOWER_RECIPES: dict[str, PairExperiment] = {
    # 1,100 s on an H200: models/small/README.md.
    "small": PairExperiment(
        "small",
        beginning=PairTrainingConfig(
            steps=450,
            lr_towers=1e-4,
            layer_decay=0.85,
            warmup_steps=80,
            video_share=0.25,
            text_dropout=0.1,
            drop_path=0.05,
            patch_dropout=0.5,
            average=0.99,
            evaluate_every=150,
        ),
        ingredients=(
            f"{_INGREDIENT} lr_towers=7e-5 seed=1",
            f"{_INGREDIENT} lr_towers=1e-4 layer_decay=0.8 video_share=0.33 "
            "word_dropout=0.15 seed=2",
            f"{_INGREDIENT} lr_towers=7e-5 crop=0.3 machine_share=0.5 seed=3",
        ),
        further=(
            f"{_FURTHER} steps=1200 seed=1",
            f"{_FURTHER} steps=1100 frames_per_video=3 seed=3",
        ),
        agreeing=(f"{_FURTHER} {_AGREEING}",),
        finishing=(f"{_FINISHING} frames_per_video=3 seed=23", f"{_FINISHING} seed=24"),
    )
}
"""Name -> what `eaglenet train` runs; folders and starting weights are set on the command line."""
