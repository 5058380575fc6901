"""From an experiment to the objects it names: encoder, method, splits. Bad input stops here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import eaglenet.research.experiments.stored_data  # noqa: F401  (rows of SOURCES)
from eaglenet.core.errors import ConfigError, EagleNetError, ModelNotFoundError, UsageError, quoted
from eaglenet.core.progress import Progress
from eaglenet.core.types import Clips, Encoder, Tokenizer
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.catalogue import HUB_IDS
from eaglenet.encoders.hub import is_hub_id, split_revision
from eaglenet.methods import METHODS
from eaglenet.methods.base import Method, evaluating
from eaglenet.models.folder import is_packaged, load
from eaglenet.research.data import SOURCES
from eaglenet.research.data.sources import DataChoice, Findings, Opening, Source
from eaglenet.research.experiments.experiment import PRETRAINED, EncoderChoice, Experiment
from eaglenet.research.training.distributed import World
from eaglenet.research.training.epochs import pair_samplers


def build_method(experiment: Experiment) -> Method:
    """The method with fresh (or pretrained) weights; random ones come from the seed."""
    spec = METHODS[experiment.method]
    if experiment.encoder.kind == "experts" and not spec.reads_experts:
        raise ConfigError(
            f"{experiment.method} reads frames and sentences, not several experts; set "
            "encoder.kind=features to train it on the frames of such a folder"
        )
    encoder, tokenizer = build_encoder(experiment.encoder, experiment.training.seed)
    if experiment.encoder.logit_scale is not None and hasattr(encoder, "logit_scale"):
        encoder.logit_scale.data.fill_(experiment.encoder.logit_scale)
    torch.manual_seed(experiment.training.seed)
    method = spec.build(experiment.method_config, encoder)
    method.tokenizer = tokenizer
    method.frame_spec = experiment.data.frames
    if experiment.encoder.kind == "features":
        _check_runs_on_features(method)
    return method


def build_encoder(choice: EncoderChoice, seed: int) -> tuple[Encoder, Tokenizer | None]:
    """An encoder and its tokenizer (None for stored features)."""
    if choice.kind == PRETRAINED:
        from eaglenet.encoders.loading import load_pretrained

        if is_packaged(choice.source):
            model = load(choice.source)
            return model.encoder, model.tokenizer
        try:
            return load_pretrained(choice.source)
        except ModelNotFoundError as error:
            raise _advised(error, choice.source) from error
    spec = ENCODERS[choice.kind]
    if choice.config is None:
        raise ConfigError(f"encoder.kind={choice.kind} needs encoder.config, which is not set")
    encoder = spec.build(choice.config, seed=seed)
    return encoder, None if spec.reads_features else build_tokenizer(choice.source)


def _advised(error: ModelNotFoundError, source: str) -> ModelNotFoundError:
    """What is missing, with the ways out that training has: it knows no `--model`."""
    if not error.has_advice:
        return error
    identifier = HUB_IDS.get(source, source)
    ways = ["name a folder that has it: --set encoder.source=FOLDER"]
    if is_hub_id(split_revision(identifier)[0]):
        ways.append(
            "fetch it where there is a network: eaglenet models --download "
            f"{quoted(identifier)}; the recipes folder-small (your own videos) and frames "
            "(pictures) need no download"
        )
    return ModelNotFoundError(error.fact, "; or ".join(ways))


def build_tokenizer(source: str) -> Tokenizer:
    """The demo world's tokenizer, or the one in a folder."""
    if source == "demo":
        from eaglenet.research.data.demo.dataset import demo_tokenizer_folder

        source = str(demo_tokenizer_folder())
    from eaglenet.encoders.loading import read_tokenizer

    tokenizer = read_tokenizer(Path(source))
    if tokenizer is None:
        raise ModelNotFoundError(f"encoder.source={source}: no tokenizer.json in this folder")
    return tokenizer


def check_data(data: DataChoice) -> None:
    """Refuse a dataset that is not known or not there, before weights are fetched for it."""
    if SOURCES[data.dataset].needs_folder:
        data.folder()


def check_fit(method: Method, data: DataChoice) -> None:
    """Send one made-up pair through the model: what does not fit fails before hours of decoding."""
    spec = data.frames
    if spec.num_frames < 1 or spec.size < 1:
        raise ConfigError(
            f"data.frames asks for {spec.num_frames} frames of {spec.size} pixels; expected at "
            "least 1 of both"
        )
    if method.tokenizer is None or SOURCES[data.dataset].is_features:
        return
    clip = Clips(
        torch.zeros(1, spec.num_frames, 3, spec.size, spec.size, dtype=torch.uint8),
        torch.ones(1, spec.num_frames, dtype=torch.bool),
        torch.arange(spec.num_frames, dtype=torch.float32)[None],
    )
    try:
        with evaluating(method), torch.no_grad(), torch.random.fork_rng():
            tokens = method.tokenize(["a"], data.max_words)
            text = method.encode_text(tokens.to(method.device))
            method.score(text, method.encode_video(clip.to(method.device)))
    except (UsageError, ValueError) as error:
        raise ConfigError(
            f"data.frames ({spec.num_frames} frames of {spec.size} pixels) and data.max_words "
            f"({data.max_words}) do not fit the model: {error}"
        ) from error


def load_source(
    data: DataChoice,
    split: str,
    method: Method,
    *,
    cache: Path,
    device: torch.device,
    progress: Progress | None = None,
) -> Source:
    """One split, ready for batches; frames are decoded into ``cache`` where they are not yet."""
    spec = SOURCES[data.dataset]
    if method.tokenizer is None and not (spec.is_features or spec.gives_features):
        raise ConfigError(
            f"data.dataset={data.dataset} has sentences and videos, but the encoder reads stored "
            "features: --set encoder.kind=pretrained, or another family with towers"
        )
    return spec.open(data, split, Opening(method, cache, device, progress))


def default_split(data: DataChoice) -> str:
    """The split that is evaluated unless one says otherwise."""
    return SOURCES[data.dataset].default_split(data)


def look_at_split(data: DataChoice, split: str, method: Method | None) -> Findings:
    """What is found of a split, without decoding any video.

    ``method`` is for data that only a model can open, as it does stored features.
    """
    look = SOURCES[data.dataset].look
    if look is not None:
        return look(data, split)
    assert method is not None
    source = load_source(data, split, method, cache=Path(), device=torch.device("cpu"))
    return Findings(source.describe(), source.video_of_text)


def describe_findings(
    experiment: Experiment, found: Mapping[str, Findings], world: World
) -> dict[str, Any]:
    """In plain words; refuses data of which the processes of ``world`` could make no batch."""
    pair_samplers(experiment.training, found["train"].video_of_text, world)
    return {split: dict(findings.description) for split, findings in found.items()}


def _check_runs_on_features(method: Method) -> None:
    for needs, what in ((method.needs_words, "word"), (method.needs_patches, "patch")):
        if needs:
            raise ConfigError(
                f"{method.name} needs {what} features, which a features folder does not offer; "
                "train it on videos"
            )


# A look at all that an experiment needs, without decoding or training: every fault at once.


class SeveralFaultsError(EagleNetError):
    """More than one thing is missing; a line for each."""


def check_experiment(experiment: Experiment, world: World) -> tuple[Method, dict[str, Any]]:
    """The method and what is found of each split; else an error that names all that is missing."""
    faults: list[EagleNetError] = []
    found = look_at_files(experiment, faults)
    method = None
    with gathered(faults):
        method = build_method(experiment)
        check_fit(method, experiment.data)
    if method is not None and not faults:
        for split in splits_of(experiment):
            if split not in found:
                with gathered(faults):
                    found[split] = look_at_split(experiment.data, split, method)
    described: dict[str, Any] = {}
    if "train" in found:
        with gathered(faults):
            described = describe_findings(experiment, found, world)
    if len(faults) > 1:
        told = "\n".join(f"  {fault}" for fault in faults)
        raise SeveralFaultsError(f"{len(faults)} things stand in the way of this run:\n{told}")
    if faults or method is None:
        raise faults[0]
    return method, described


def splits_of(experiment: Experiment) -> tuple[str, str]:
    """The splits that training needs."""
    return "train", experiment.training.select


def look_at_files(experiment: Experiment, faults: list[EagleNetError]) -> dict[str, Findings]:
    """What is found of the splits without a model, which alone can open stored features."""
    found: dict[str, Findings] = {}
    with gathered(faults):
        check_data(experiment.data)
        look = SOURCES[experiment.data.dataset].look
        for split in splits_of(experiment) if look is not None else ():
            with gathered(faults):
                found[split] = look_at_split(experiment.data, split, None)
    return found


@contextmanager
def gathered(faults: list[EagleNetError]) -> Iterator[None]:
    """Keep an error for later; the same one of two splits counts once."""
    try:
        yield
    except EagleNetError as error:
        if str(error) not in map(str, faults):
            faults.append(error)
