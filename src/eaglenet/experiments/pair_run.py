"""A run that makes two towers of pairs: folders of frames, weights to start from -> a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import tokenizers
import torch

from eaglenet.encoders.compact.config import CompactConfig
from eaglenet.encoders.compact.encoder import CompactEncoder
from eaglenet.encoders.compact.start import start_from
from eaglenet.encoders.compact.vocabulary import keep_pieces
from eaglenet.encoders.json_tokenizer import JsonTokenizer, TokenizerSettings, read_backend
from eaglenet.errors import ConfigError, DatasetError
from eaglenet.files import write_json
from eaglenet.methods.base import METHODS
from eaglenet.methods.folder import save
from eaglenet.settings import override, split_assignment, to_plain
from eaglenet.training.pairs.banks import PairBank, open_bank
from eaglenet.training.pairs.config import PairTrainingConfig
from eaglenet.training.pairs.trainer import BEST, PairTrainer


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
    """

    name: str
    folders: str = ""
    picture_size: int = 192
    start: StartWeights = field(default_factory=StartWeights)
    towers: CompactConfig = field(default_factory=CompactConfig)
    training: PairTrainingConfig = field(default_factory=PairTrainingConfig)

    def changed(self, settings: Sequence[str]) -> PairExperiment:
        """With `section.field=value` settings applied."""
        experiment = self
        for setting in settings:
            path, text = split_assignment(setting, "training.steps=4000")
            experiment = override(experiment, path, text)
        return experiment

    @property
    def places(self) -> list[Path]:
        """The folders of frames, which must be there."""
        names = [name.strip() for name in self.folders.split(",") if name.strip()]
        if not names:
            raise DatasetError(
                "no folder of frames is given; prepare some with `eaglenet data frames` and name "
                "them: --set folders=A,B"
            )
        return [Path(name).expanduser() for name in names]


def train_pairs(
    experiment: PairExperiment,
    output: str | Path,
    *,
    device: str = "auto",
    report: Callable[[str], None] = print,
) -> Path:
    """Train, and write the best averaged towers as a model folder ``output/model``."""
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
    encoder = CompactEncoder(experiment.towers, seed=experiment.training.seed)
    start_from(encoder, Path(start.vision).expanduser(), text_folder)
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / "experiment.json", to_plain(experiment))

    def bank(folders: Sequence[Path], split: str) -> PairBank:
        return open_bank(folders, split, tokenizer, size=experiment.picture_size, device=device)

    report(f"reading pictures of {experiment.folders}")
    train = bank(experiment.places, "train")
    trainer = PairTrainer(
        encoder, train, _validation(experiment.places, bank), experiment.training, output, report
    )
    trainer.run()
    best = torch.load(output / BEST, weights_only=True, map_location="cpu")
    encoder.cpu().load_state_dict(best["weights"])
    save_towers(encoder, backend, output / "model")
    return output / "model"


def save_towers(encoder: CompactEncoder, backend: tokenizers.Tokenizer, folder: Path) -> None:
    """A zero-shot model of these towers: int8 weights, and Latin word pieces alone."""
    smaller, kept = keep_pieces(backend)
    config = encoder.config
    shrunk = CompactEncoder(replace(config, text=replace(config.text, vocabulary_size=len(kept))))
    weights = dict(encoder.state_dict())
    weights["text.embedding.weight"] = weights["text.embedding.weight"][kept]
    shrunk.load_state_dict(weights)
    spec = METHODS["clip4clip"]
    method = spec.build(spec.config_class(), shrunk).eval()
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
