"""Training of the towers of a model such as `small`, from folders of frames and initial weights."""

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
from eaglenet.methods.configs import CLIP4ClipConfig, WordFrameConfig
from eaglenet.methods.wordframe import WordFrame
from eaglenet.models.files import HEAD
from eaglenet.models.folder import load, save, save_head
from eaglenet.research.data.frame_folder import FrameItem
from eaglenet.research.small.banks import (
    PairBank,
    evaluate_all,
    join_banks,
    open_bank,
    open_pictures,
    recall_sum,
)
from eaglenet.research.small.start import keep_latin_pieces, start_from
from eaglenet.research.small.trainer import (
    BEST,
    PairTrainer,
    PairTrainingConfig,
)

TEXT_BATCH = 100


def typical_sentences(items: Sequence[FrameItem], number: int) -> list[str]:
    """Random captions by people, of videos, or of images where there are no videos."""
    videos = [item for item in items if item.frames > 1]
    captions = sorted(
        {text for item in videos or items for text in item.captions.get("people", [])}
    )
    return random.Random(0).sample(captions, min(number, len(captions)))


@torch.inference_mode()
def save_hubness_head(model: Path, sentences: Sequence[str], weight: float) -> None:
    """Save a head with a hubness bank beside the towers: `wordframe` without its interaction.

    Stores the vectors of the bank in int8, without the texts: twice as many as in half precision
    correct hubness better, and the rounding changes nothing.
    """
    towers = load(model)
    config = WordFrameConfig(
        num_layers=0, changes=False, interaction=False, bank=len(sentences), bank_weight=weight
    )
    # Built as a method: hubness offsets use the temperature of the towers.
    head = METHODS["wordframe"].build(config, towers.encoder)
    assert isinstance(head, WordFrame) and head.bank is not None  # noqa: PT018
    for start in range(0, len(sentences), TEXT_BATCH):
        texts = towers.encode_text(sentences[start : start + TEXT_BATCH])
        head.bank.add(texts.sentence)
    save_head(head, model / HEAD, storage="int8")


FRAMES_PER_CLIP = 6
"""Frames per clip in a search: as good as 12 (the model card has both on the test videos) at half
of the encoding, which is most of the work of indexing."""


@dataclass(frozen=True)
class StartWeights:
    """Folders with ``model.safetensors``: a DINOv2 ViT-S/14, and a MiniLM with its tokenizer."""

    vision: str = ""
    text: str = ""


@dataclass(frozen=True)
class PairExperiment:
    """All settings of a run.

    folders: folders of frames (`eaglenet data frames`), separated by commas.
    picture_size: side in pixels of the frames in memory, from which crops are taken.
    towers: shape of the resulting model.
    beginning: first stage, common to all ingredients, with towers that do not pool patches.
    ingredients: runs that continue it, each ``beginning`` with these settings changed, separated
        by spaces ("lr_towers=5e-5 seed=1"). The teacher is the mean of the weights that improve
        each other (:func:`greedy_soup`).
    further, agreeing, finishing: likewise, one stage after another, each from the mean of the
        previous one, which also enters the next mean. Settings of ``agreeing`` may add images of
        ``unlabelled`` to each batch.
    unlabelled: folders of frames whose captions are not read.
    joined: names of ``folders`` whose validation items are trained on in the last two stages; the
        validation items of the other folders still compare the runs.
    student: training of towers of the final shape to imitate the teacher.
    head_sentences, head_weight: number of captions in the hubness bank of the head, and its
        weight; 0 captions: no head.
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
        experiment = self
        for setting in settings:
            path, text = split_assignment(setting, "beginning.steps=4000")
            experiment = override(experiment, path, text)
        return experiment

    @property
    def frame_folders(self) -> list[Path]:
        """Paths of the folders of frames; at least one must be set."""
        folders = _paths(self.folders)
        if not folders:
            raise DatasetError(
                "no folder of frames is set; prepare some with `eaglenet data frames` and name "
                "them: --set folders=A,B"
            )
        return folders


def train_pairs(
    experiment: PairExperiment,
    output: str | Path,
    *,
    device: str = "auto",
    report: Callable[[str], None] = print,
) -> Path:
    """Train stage by stage, and write the towers as a model folder ``output/model``.

    An interrupted run continues with the stage that it was in.
    """
    output = Path(output)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    start = experiment.start
    if not start.vision or not start.text:
        raise ConfigError(
            "no initial weights; --set start.vision=FOLDER (DINOv2 ViT-S/14) and "
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

    report(f"reading frames of {experiment.folders}")
    banks = (bank(experiment.frame_folders, "train"), _validation(experiment.frame_folders, bank))
    unlabelled = _paths(experiment.unlabelled)
    pictures = None
    if unlabelled:
        pictures = open_pictures(unlabelled, size=experiment.picture_size, device=device)
    stages = Stages(experiment, output, *banks, report, pictures)
    stages.joined_names()  # refuses a wrong name before the first stage
    encoder = stages.student(stages.teacher(stages.beginning()))
    save_towers(encoder, backend, output / MODEL)
    sentences = typical_sentences(banks[0].items, experiment.head_sentences)
    if sentences:
        save_hubness_head(output / MODEL, sentences, experiment.head_weight)
    return output / MODEL


Weights = Mapping[str, Tensor]


def mean_of_weights(parts: Sequence[Weights]) -> dict[str, Tensor]:
    names = parts[0].keys()
    return {
        name: sum((part[name] for part in parts[1:]), parts[0][name]) / len(parts) for name in names
    }


def greedy_soup(
    parts: Sequence[Weights], score: Callable[[Weights], float]
) -> tuple[dict[str, Tensor], list[int], float]:
    """Average weights, best first; each next one is included if the score does not fall.

    Returns the mean, the numbers of the weights in it, and its score.
    """
    scores = [score(part) for part in parts]
    order = sorted(range(len(parts)), key=lambda number: -scores[number])
    members, best = [order[0]], scores[order[0]]
    for number in order[1:]:
        candidate = score(mean_of_weights([parts[k] for k in [*members, number]]))
        if candidate >= best:
            members, best = [*members, number], candidate
    return mean_of_weights([parts[k] for k in members]), members, best


@dataclass(frozen=True)
class Stages:
    """The stages of a run; a stage whose folder has the file ``done`` is read, not run again."""

    experiment: PairExperiment
    output: Path
    train: PairBank
    validation: Mapping[str, PairBank]
    report: Callable[[str], None]
    pictures: UInt8[Tensor, "pictures 3 height width"] | None = None

    def beginning(self) -> Weights:
        """Train the initial towers together for a short while."""
        encoder = self._towers(pooled=False)
        start = self.experiment.start
        start_from(encoder, Path(start.vision).expanduser(), Path(start.text).expanduser())
        return self._trained("beginning", encoder, self.experiment.beginning)

    def teacher(self, beginning: Weights) -> CompactEncoder:
        """Train the ingredients and the stages after them; returns the mean of the last stage."""
        experiment = self.experiment
        mean = self.mean(self.runs("ingredient", experiment.ingredients, beginning) or [beginning])
        mean = self.round("further", experiment.further, mean)
        last = self.with_joined() if experiment.joined else self
        mean = last.round("agreeing", experiment.agreeing, mean)
        return last.round("finishing", experiment.finishing, mean)

    def round(self, stage: str, settings: Sequence[str], mean: CompactEncoder) -> CompactEncoder:
        """Mean of ``mean`` and of runs that start from it."""
        start = {name: value.detach().cpu().clone() for name, value in mean.state_dict().items()}
        runs = self.runs(stage, settings, start)
        return self.mean([start, *runs]) if runs else mean

    def with_joined(self) -> Stages:
        """The stages with the validation items of the folders ``joined`` in the training data."""
        names, train = self.joined_names(), self.train
        for name in names:
            train = join_banks(train, self.validation[name])
        rest = {name: bank for name, bank in self.validation.items() if name not in names}
        return replace(self, train=train, validation=rest)

    def joined_names(self) -> list[str]:
        """Names in ``joined``; refuses folders without validation items."""
        names = [name.strip() for name in self.experiment.joined.split(",") if name.strip()]
        missing = [name for name in names if name not in self.validation]
        if missing:
            known = ", ".join(self.validation) or "none"
            raise ConfigError(
                f"joined={','.join(missing)}: no validation items; folders that have some: {known}"
            )
        return names

    def runs(self, stage: str, settings: Sequence[str], start: Weights) -> list[Weights]:
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
        """Mean of the ingredients that score best together."""
        encoder = self._towers(pooled=False).to(self.train.device).eval()

        def score(weights: Weights) -> float:
            encoder.load_state_dict(weights)
            return recall_sum(evaluate_all(encoder, self.validation))

        if len(ingredients) == 1:
            encoder.load_state_dict(ingredients[0])
            return encoder
        weights, members, best = greedy_soup(ingredients, score)
        self.report(f"mean of ingredients {sorted(members)}: sum of recalls {best:.1f}")
        encoder.load_state_dict(weights)
        return encoder

    def student(self, teacher: CompactEncoder) -> CompactEncoder:
        """Train towers of the final shape, from the teacher's weights, to imitate it."""
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
            self.report(f"{stage}: finished before")
        else:

            def report(line: str) -> None:
                self.report(f"{stage}: {line}")

            if config.unlabelled_items and self.pictures is None:
                report("`unlabelled` is not set: training on pairs alone")
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
    return [Path(name.strip()).expanduser() for name in names.split(",") if name.strip()]


def save_towers(encoder: CompactEncoder, backend: tokenizers.Tokenizer, folder: Path) -> None:
    """Save a zero-shot model of these towers: int8 weights, and Latin word pieces only."""
    smaller, ids = keep_latin_pieces(backend)
    config = encoder.config
    shrunk = CompactEncoder(replace(config, text=replace(config.text, vocabulary_size=len(ids))))
    weights = dict(encoder.state_dict())
    weights["text.embedding.weight"] = weights["text.embedding.weight"][ids]
    shrunk.load_state_dict(weights)
    method = METHODS["clip4clip"].build(CLIP4ClipConfig(num_frames=FRAMES_PER_CLIP), shrunk).eval()
    settings = TokenizerSettings(context_length=config.text.context_length)
    method.tokenizer = JsonTokenizer(smaller, settings)
    save(method, folder, storage="int8")


def _validation(
    folders: Sequence[Path], bank: Callable[[Sequence[Path], str], PairBank]
) -> Mapping[str, PairBank]:
    """Validation items of each folder that has any."""
    banks = {}
    for folder in folders:
        try:
            banks[folder.name] = bank([folder], "validation")
        except DatasetError:
            continue
    return banks


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
"""Recipes of `eaglenet train`; folders and initial weights are set on the command line."""
