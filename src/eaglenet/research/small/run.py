"""Training of the towers of ``small`` on folders of frames, from published weights."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import tokenizers
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from eaglenet.core.errors import CheckpointError, ConfigError, DatasetError
from eaglenet.core.files import expand_home, read_json, write_json
from eaglenet.core.settings import differences, override, split_assignment, to_plain
from eaglenet.encoders.compact import CompactConfig, CompactEncoder, resize_positions
from eaglenet.encoders.tokenizers import JsonTokenizer, TokenizerSettings, read_backend
from eaglenet.methods.base import METHODS
from eaglenet.methods.configs import CLIP4ClipConfig, WordFrameConfig
from eaglenet.methods.wordframe import WordFrame
from eaglenet.models.files import EXPERIMENT, HEAD, MODEL
from eaglenet.models.folder import load, save, save_head
from eaglenet.research.data.frame_folder import FrameFolder, FrameItem
from eaglenet.research.small.pairs import (
    PairData,
    evaluate_all,
    join_pairs,
    load_pairs,
    open_frames,
    recall_sum,
)
from eaglenet.research.small.trainer import BEST, PairTrainer, PairTrainingConfig
from eaglenet.research.training.config import check_minimum

WEIGHTS = "model.safetensors"
DONE = "done"
"""File in the folder of a completed run."""
VISION_NAMES = {
    "attention.out": "attention.output.dense",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
TEXT_NAMES = {
    "attention.out": "attention.output.dense",
    "ln_1": "attention.output.LayerNorm",
    "mlp.up": "intermediate.dense",
    "mlp.down": "output.dense",
    "ln_2": "output.LayerNorm",
}
"""Names of layers in the published files, by their names here."""


def load_initial_weights(encoder: CompactEncoder, vision: Path, text: Path) -> None:
    """Copy the weights in two folders into the towers, except for their projections."""
    _fill_vision(encoder, _read(vision))
    _fill_text(encoder, _read(text))


def _read(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS if folder.is_dir() else folder
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist; expected a folder with {WEIGHTS} in the format of transformers"
        )
    weights: dict[str, Tensor] = safetensors.torch.load_file(path)
    return {name: value.float() for name, value in weights.items() if value.is_floating_point()}


def _fill_vision(encoder: CompactEncoder, weights: Mapping[str, Tensor]) -> None:
    tower, config = encoder.vision, encoder.config.vision
    positions = resize_positions(weights["embeddings.position_embeddings"][0], config.grid)
    bias = weights["embeddings.patch_embeddings.projection.bias"]
    positions[1:] += bias
    values = {
        "class_embedding": weights["embeddings.cls_token"].flatten(),
        "positional_embedding": positions,
        "patch_embedding.projection.weight": weights[
            "embeddings.patch_embeddings.projection.weight"
        ].flatten(1),
        "norm.weight": weights["layernorm.weight"],
        "norm.bias": weights["layernorm.bias"],
        "projection.weight": tower.projection.weight,
    }
    for number in range(config.layers):
        source, target = f"encoder.layer.{number}.", f"blocks.{number}."
        values |= _block(weights, source, target, "attention.attention", VISION_NAMES)
        values[f"{target}scale_1"] = weights[f"{source}layer_scale1.lambda1"]
        values[f"{target}scale_2"] = weights[f"{source}layer_scale2.lambda1"]
    tower.load_state_dict(values)


def _fill_text(encoder: CompactEncoder, weights: Mapping[str, Tensor]) -> None:
    tower, config = encoder.text, encoder.config.text
    positions = weights["embeddings.position_embeddings.weight"][: config.context_length]
    values = {
        "embedding.weight": weights["embeddings.word_embeddings.weight"],
        # All tokens have the first token type, so its vector is added to the positions.
        "positional_embedding": positions + weights["embeddings.token_type_embeddings.weight"][0],
        "norm.weight": weights["embeddings.LayerNorm.weight"],
        "norm.bias": weights["embeddings.LayerNorm.bias"],
        "projection.weight": tower.projection.weight,
    }
    for number in range(config.layers):
        source, target = f"encoder.layer.{number}.", f"blocks.{number}."
        values |= _block(weights, source, target, "attention.self", TEXT_NAMES)
    tower.load_state_dict(values)


def _block(
    weights: Mapping[str, Tensor],
    source: str,
    target: str,
    attention: str,
    names: Mapping[str, str],
) -> dict[str, Tensor]:
    """Rename the weights of a block, and concatenate queries, keys and values."""
    values = {}
    for kind in ("weight", "bias"):
        projections = [
            weights[f"{source}{attention}.{name}.{kind}"] for name in ("query", "key", "value")
        ]
        values[f"{target}attention.qkv.{kind}"] = torch.cat(projections)
        for our_name, published_name in names.items():
            values[f"{target}{our_name}.{kind}"] = weights[f"{source}{published_name}.{kind}"]
    return values


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def keep_latin_tokens(
    backend: tokenizers.Tokenizer,
) -> tuple[tokenizers.Tokenizer, Int[Tensor, "pieces"]]:
    """Reduce the vocabulary to ASCII; return the tokenizer and the old ids of its tokens.

    Words of remaining tokens are split as before, others into shorter tokens or ``[UNK]``.
    """
    plain: dict[str, Any] = json.loads(backend.to_str())
    if plain["model"]["type"] != "WordPiece":
        raise CheckpointError(f"expected word pieces, got {plain['model']['type']}")
    old_ids = sorted(plain["model"]["vocab"].items(), key=lambda entry: int(entry[1]))
    remaining_ids = [
        (token, number)
        for token, number in old_ids
        if token in SPECIAL or (token.isascii() and not token.startswith("["))
    ]
    new_ids = {token: number for number, (token, _) in enumerate(remaining_ids)}
    plain["model"]["vocab"] = new_ids
    plain["truncation"] = plain["padding"] = None
    plain["added_tokens"] = [
        {**token, "id": new_ids[token["content"]]}
        for token in plain["added_tokens"]
        if token["content"] in new_ids
    ]
    _renumber(plain["post_processor"], new_ids)
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(plain))
    return tokenizer, torch.tensor([number for _, number in remaining_ids])


def _renumber(node: Any, new_ids: dict[str, int]) -> None:
    """Replace the ids of special tokens in a post-processor."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("sep", "cls") and isinstance(value, list):
                node[name] = [value[0], new_ids[value[0]]]
            elif name == "special_tokens":
                for token, entry in value.items():
                    entry["ids"] = [new_ids[token]]
            else:
                _renumber(value, new_ids)
    elif isinstance(node, list):
        for value in node:
            _renumber(value, new_ids)


TEXT_BATCH = 100


def sample_captions(items: Sequence[FrameItem], number: int) -> list[str]:
    """Sample captions by people of videos, or of images if there are no videos."""
    videos = [item for item in items if item.frames > 1]
    captions = sorted(
        {text for item in videos or items for text in item.captions.get("people", [])}
    )
    return random.Random(0).sample(captions, min(number, len(captions)))


@torch.inference_mode()
def save_hubness_head(model: Path, texts: Sequence[str], weight: float) -> None:
    """Save a head with a hubness bank beside the towers: ``wordframe`` without its interaction.

    The head contains only the vectors of the bank, in int8: rounding has no effect, and twice the
    number of vectors that half precision allows corrects hubness better.
    """
    towers = load(model)
    config = WordFrameConfig(
        num_layers=0, changes=False, interaction=False, bank=len(texts), bank_weight=weight
    )
    # Built on the towers, because hubness offsets use their temperature.
    head = METHODS["wordframe"].build(config, towers.encoder)
    assert isinstance(head, WordFrame) and head.bank is not None  # noqa: PT018
    for start in range(0, len(texts), TEXT_BATCH):
        features = towers.encode_text(texts[start : start + TEXT_BATCH])
        head.bank.add(features.sentence)
    save_head(head, model / HEAD, storage="int8")


FRAMES_PER_CLIP = 6
"""Frames per clip of the saved model: as accurate as 12 (see the model card), and encoding, which
is most of the work of indexing, takes half the time."""


@dataclass(frozen=True)
class StartWeights:
    """Folders with ``model.safetensors``: DINOv2 ViT-S/14, and MiniLM with its tokenizer."""

    vision: str = ""
    text: str = ""


@dataclass(frozen=True)
class PairExperiment:
    """All settings of a run.

    folders: folders of frames (`eaglenet data frames`), separated by commas.
    picture_size: side in pixels of the frames in memory, from which crops are taken.
    towers: shape of the resulting model.
    beginning: settings of the first stage.
    ingredients: runs of the second stage, which start from the result of the first. Each entry has
        the changes to ``beginning`` for a run, separated by spaces ("lr_towers=5e-5 seed=1"). The
        result of a stage is the mean of the weights that :func:`greedy_soup` selects.
    further, agreeing, finishing: runs of the following stages. They start from the mean of the
        previous stage, which may be included in the new mean. The last mean is the model. Settings
        of ``agreeing`` may add images of ``unlabelled`` to each batch.
    unlabelled: folders of frames, separated by commas, whose captions are not used.
    joined: names of ``folders``, separated by commas, whose validation items are used for training
        in the last two stages. The validation items of the other folders still compare runs.
    head_texts, head_weight: number of captions in the hubness bank of the head (0 for no head),
        and its weight.
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
    head_texts: int = 1800
    head_weight: float = 0.75

    def __post_init__(self) -> None:
        check_minimum(self, {1: ("picture_size",), 0: ("head_texts", "head_weight")})
        for changes in (*self.ingredients, *self.further, *self.agreeing, *self.finishing):
            self.run_config(changes)  # Raises now, and not after the runs of earlier stages.

    def run_config(self, changes: str) -> PairTrainingConfig:
        """Apply the changes of a run, separated by spaces, to ``beginning``."""
        config = self.beginning
        for setting in changes.split():
            config = override(config, *split_assignment(setting, "seed=1"))
        return config

    def override(self, settings: Sequence[str]) -> PairExperiment:
        """Apply ``a.b=c`` settings in order."""
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
                "no folders of frames; prepare some with `eaglenet data frames` and set them: "
                "--set folders=A,B"
            )
        for name, count in Counter(folder.name for folder in folders).items():
            if count > 1:  # Results and `joined` name folders by it.
                raise ConfigError(
                    f"folders={self.folders}: {count} folders are called {name!r}; rename them"
                )
        return folders


def train_pairs(
    experiment: PairExperiment,
    output: str | Path,
    *,
    device: str = "auto",
    report: Callable[[str], None] = print,
) -> Path:
    """Train stage by stage, save the model as ``output/model``, and return that folder.

    An interrupted call can be repeated: results of completed runs are kept.

    Raises:
        ConfigError: completed runs in ``output`` had other settings.
    """
    output = Path(output)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    start = experiment.start
    if not start.vision or not start.text:
        raise ConfigError(
            "no initial weights: --set start.vision=FOLDER (DINOv2 ViT-S/14) and "
            "--set start.text=FOLDER (MiniLM-L6 with its tokenizer.json)"
        )
    text_folder = expand_home(start.text)
    backend = read_backend(text_folder / "tokenizer.json")
    length = experiment.towers.text.context_length
    tokenizer = JsonTokenizer(backend, TokenizerSettings(context_length=length))
    frame_folders = experiment.frame_folders
    refuse_other_settings(experiment, output)
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / EXPERIMENT, to_plain(experiment))

    def load_split(folders: Sequence[Path], split: str) -> PairData:
        return load_pairs(folders, split, tokenizer, size=experiment.picture_size, device=device)

    report(f"reading frames of {experiment.folders}")
    train = load_split(frame_folders, "train")
    validation = load_validation(frame_folders, load_split, report)
    unlabelled_folders = _paths(experiment.unlabelled)
    frames = None
    if unlabelled_folders:
        frames = open_frames(unlabelled_folders, size=experiment.picture_size, device=device)
    stages = Stages(experiment, output, train, validation, report, frames)
    stages.joined_folder_names()  # Raises for a wrong name before the first stage.
    encoder = stages.finish(stages.beginning())
    save_towers(encoder, backend, output / MODEL)
    texts = sample_captions(train.items, experiment.head_texts)
    if texts:
        save_hubness_head(output / MODEL, texts, experiment.head_weight)
    return output / MODEL


STAGES: Mapping[str, tuple[str, ...]] = {
    "beginning": ("beginning",),
    "ingredient-*": ("ingredients",),
    "further-*": ("further",),
    "agreeing-*": ("agreeing", "joined"),
    "finishing-*": ("finishing",),
}
"""Folders of the runs of each stage, in order, and the settings on which only it and later stages
depend."""
HEAD_SETTINGS = ("head_texts", "head_weight")


def refuse_other_settings(experiment: PairExperiment, output: Path) -> None:
    """Raise if completed runs in ``output``, which are kept, had other settings."""
    if not (output / EXPERIMENT).is_file():
        return
    is_done = [any(output.glob(f"{folder}/{DONE}")) for folder in STAGES]
    if not any(is_done):
        return
    num_done = max(number for number, done in enumerate(is_done, start=1) if done)
    free_names = {name for names in list(STAGES.values())[num_done:] for name in names}
    before, now = (
        {
            name: value
            for name, value in settings.items()
            if name not in {*free_names, *HEAD_SETTINGS}
        }
        for settings in (
            read_json(output / EXPERIMENT),
            json.loads(json.dumps(to_plain(experiment))),
        )
    )
    lines = differences(before, now)
    if lines:
        raise ConfigError(
            f"{output} has completed runs with other settings ({'; '.join(lines)}): use them "
            "again, or another --output"
        )


Weights = Mapping[str, Tensor]


def average_weights(runs: Sequence[Weights]) -> dict[str, Tensor]:
    return {
        name: sum((run[name] for run in runs[1:]), weight) / len(runs)
        for name, weight in runs[0].items()
    }


def greedy_soup(
    runs: Sequence[Weights], score: Callable[[Weights], float]
) -> tuple[dict[str, Tensor], list[int], float]:
    """Average the weights of runs, best first, leaving out runs that lower the score of the mean.

    Returns the mean, the indices of the runs in it, and its score.
    """
    scores = [score(run) for run in runs]
    order = sorted(range(len(runs)), key=lambda number: -scores[number])
    members, best = [order[0]], scores[order[0]]
    for number in order[1:]:
        candidate = score(average_weights([runs[k] for k in [*members, number]]))
        if candidate >= best:
            members, best = [*members, number], candidate
    return average_weights([runs[k] for k in members]), members, best


@dataclass(frozen=True)
class Stages:
    """Stages of training; a run whose folder has the file :data:`DONE` is not repeated."""

    experiment: PairExperiment
    output: Path
    train: PairData
    validation: Mapping[str, PairData]
    report: Callable[[str], None]
    unlabelled_frames: UInt8[Tensor, "frames 3 height width"] | None = None

    def beginning(self) -> Weights:
        """Train the towers together, from the published weights."""
        encoder = self._towers()
        start = self.experiment.start
        load_initial_weights(encoder, expand_home(start.vision), expand_home(start.text))
        return self._train("beginning", encoder, self.experiment.beginning)

    def finish(self, beginning: Weights) -> CompactEncoder:
        """Run all stages after the first; return the mean of the last stage."""
        experiment = self.experiment
        mean = self.average(
            self.train_runs("ingredient", experiment.ingredients, beginning) or [beginning]
        )
        mean = self.run_stage("further", experiment.further, mean)
        last_stages = self.join_validation() if experiment.joined else self
        mean = last_stages.run_stage("agreeing", experiment.agreeing, mean)
        return last_stages.run_stage("finishing", experiment.finishing, mean).cpu()

    def run_stage(
        self, stage: str, settings: Sequence[str], mean: CompactEncoder
    ) -> CompactEncoder:
        """Run a stage; return the average of ``mean`` and of the runs that start from it."""
        start = {name: value.detach().cpu().clone() for name, value in mean.state_dict().items()}
        runs = self.train_runs(stage, settings, start)
        return self.average([start, *runs]) if runs else mean

    def join_validation(self) -> Stages:
        """Return stages that also train on the validation items of the folders ``joined``."""
        names, train = self.joined_folder_names(), self.train
        for name in names:
            train = join_pairs(train, self.validation[name])
        validation = {name: data for name, data in self.validation.items() if name not in names}
        return replace(self, train=train, validation=validation)

    def joined_folder_names(self) -> list[str]:
        """Return the names in ``joined``; raise for folders without validation items."""
        names = [name.strip() for name in self.experiment.joined.split(",") if name.strip()]
        unknown_names = [name for name in names if name not in self.validation]
        if unknown_names:
            raise ConfigError(
                f"joined={','.join(unknown_names)}: no validation items; folders that have some: "
                f"{', '.join(self.validation) or 'none'}"
            )
        return names

    def train_runs(self, stage: str, settings: Sequence[str], start: Weights) -> list[Weights]:
        results = []
        for number, changes in enumerate(settings):
            encoder = self._towers()
            encoder.load_state_dict(start)
            config = self.experiment.run_config(changes)
            results.append(self._train(f"{stage}-{number}", encoder, config))
        return results

    def average(self, ingredients: Sequence[Weights]) -> CompactEncoder:
        """Return the mean of weights by :func:`greedy_soup`."""
        encoder = self._towers().to(self.train.device).eval()

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

    def _towers(self) -> CompactEncoder:
        return CompactEncoder(self.experiment.towers, seed=self.experiment.beginning.seed)

    def _train(
        self,
        stage: str,
        encoder: CompactEncoder,
        config: PairTrainingConfig,
    ) -> Weights:
        folder = self.output / stage
        mark = folder / DONE
        if mark.exists():
            self.report(f"{stage}: finished before")
        else:

            def report(line: str) -> None:
                self.report(f"{stage}: {line}")

            if config.unlabelled_items and self.unlabelled_frames is None:
                report("`unlabelled` is not set: training only on pairs")
            PairTrainer(
                encoder,
                self.train,
                self.validation,
                config,
                folder,
                report,
                self.unlabelled_frames,
            ).run()
            mark.write_text("")
        best = torch.load(folder / BEST, weights_only=True, map_location="cpu")
        weights: Weights = best["weights"]
        return weights


def _paths(names: str) -> list[Path]:
    return [expand_home(name.strip()) for name in names.split(",") if name.strip()]


def save_towers(encoder: CompactEncoder, backend: tokenizers.Tokenizer, folder: Path) -> None:
    """Save a zero-shot model of the towers, with int8 weights and only Latin tokens."""
    small_tokenizer, ids = keep_latin_tokens(backend)
    config = encoder.config
    small_config = replace(config, text=replace(config.text, vocabulary_size=len(ids)))
    small_encoder = CompactEncoder(small_config)
    weights = dict(encoder.state_dict())
    weights["text.embedding.weight"] = weights["text.embedding.weight"][ids]
    small_encoder.load_state_dict(weights)
    method_config = CLIP4ClipConfig(num_frames=FRAMES_PER_CLIP)
    method = METHODS["clip4clip"].build(method_config, small_encoder).eval()
    settings = TokenizerSettings(context_length=config.text.context_length)
    method.tokenizer = JsonTokenizer(small_tokenizer, settings)
    save(method, folder, storage="int8")


def load_validation(
    folders: Sequence[Path],
    load_split: Callable[[Sequence[Path], str], PairData],
    report: Callable[[str], None],
) -> Mapping[str, PairData]:
    """Load the validation items of each folder that has any with captions by people."""
    validation = {}
    for folder in folders:
        items = [item for item in FrameFolder.open(folder).items if item.split == "validation"]
        if any(item.captions.get("people") for item in items):
            validation[folder.name] = load_split([folder], "validation")
        elif items:
            report(f"{folder}: validation items without captions by people are not used")
    return validation


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
"""Recipes of ``eaglenet train`` for towers; ``--set`` must name folders and initial weights."""
