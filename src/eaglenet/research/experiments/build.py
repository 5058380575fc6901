"""Build and check the encoder, method and data of an experiment, and estimate its cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eaglenet.core.errors import (
    ConfigError,
    DatasetError,
    EagleNetError,
    ModelNotFoundError,
    UsageError,
    shell_quote,
)
from eaglenet.core.progress import Progress, activity
from eaglenet.core.types import Encoder, Tokenizer
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.catalogue import HUB_IDS
from eaglenet.encoders.features import FeatureConfig
from eaglenet.encoders.hub import is_hub_id, split_revision
from eaglenet.methods import METHODS
from eaglenet.methods.base import Method, evaluating
from eaglenet.models.files import is_packaged
from eaglenet.models.folder import load
from eaglenet.research.data import SOURCES
from eaglenet.research.data.sources import DataChoice, OpenContext, Source, SplitSummary
from eaglenet.research.experiments.estimate import (
    Estimate,
    MakeBatch,
    Preparation,
    blank_batch,
    blank_features,
    estimate_preparation,
    estimate_run,
)
from eaglenet.research.experiments.experiment import PRETRAINED, EncoderChoice, Experiment
from eaglenet.research.experiments.stored_data import open_video_features
from eaglenet.research.training.distributed import World
from eaglenet.research.training.epochs import pair_samplers
from eaglenet.research.training.trainer import prepare_method


def build_method(experiment: Experiment) -> Method:
    """Build the method of an experiment; random weights depend on its seed."""
    spec = METHODS[experiment.method]
    _check_num_frames(experiment)
    if experiment.encoder.kind == "experts" and not spec.reads_experts:
        raise ConfigError(
            f"{experiment.method} reads frames and texts, not several experts; train it on the "
            "frames of the folder: --set encoder.kind=features"
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
    """Build an encoder and its tokenizer (None for stored features)."""
    if choice.kind == PRETRAINED:
        from eaglenet.models.folder import load_pretrained

        if is_packaged(choice.source):
            model = load(choice.source)
            return model.encoder, model.tokenizer
        try:
            with activity(f"loading the tower {choice.source}"):
                return load_pretrained(choice.source)
        except ModelNotFoundError as error:
            raise _with_advice(error, choice.source) from error
    spec = ENCODERS[choice.kind]
    if choice.config is None:
        raise ConfigError(f"encoder.kind={choice.kind} needs encoder.config, which is missing")
    encoder = spec.build(choice.config, seed=seed)
    return encoder, None if spec.reads_features else build_tokenizer(choice.source)


def _with_advice(error: ModelNotFoundError, source: str) -> ModelNotFoundError:
    """Return the error with advice for training, which has no ``--model``."""
    if not error.has_advice:
        return error
    identifier = HUB_IDS.get(source, source)
    options = ["name a folder that contains it: --set encoder.source=FOLDER"]
    if is_hub_id(split_revision(identifier)[0]):
        options.append(
            "download it on a machine with a network: eaglenet models --download "
            f"{shell_quote(identifier)}; `--tower small-frozen` and `--tower small` need no "
            "download (--data folder, --data frames)"
        )
    return ModelNotFoundError(error.fact, "; or ".join(options))


def build_tokenizer(source: str) -> Tokenizer:
    """Load the tokenizer in a folder, or that of the demo world (``demo``)."""
    if source == "demo":
        from eaglenet.research.data.demo.dataset import demo_tokenizer_folder

        source = str(demo_tokenizer_folder())
    from eaglenet.encoders.tokenizers import read_tokenizer

    tokenizer = read_tokenizer(Path(source))
    if tokenizer is None:
        raise ModelNotFoundError(f"encoder.source={source}: no tokenizer.json in this folder")
    return tokenizer


def _check_num_frames(experiment: Experiment) -> None:
    positions = getattr(experiment.method_config, "num_frames", None)
    num_frames = experiment.data.frames.num_frames
    if positions is not None and positions != num_frames:
        raise ConfigError(
            f"method_config.num_frames is {positions}, data.frames.num_frames {num_frames}; "
            "they must be equal: --set data.frames.num_frames=N sets both"
        )


def _check_runs_on_features(method: Method) -> None:
    for is_needed, kind in ((method.needs_words, "word"), (method.needs_patches, "patch")):
        if is_needed:
            raise ConfigError(
                f"{method.name} needs {kind} features, which a features folder does not contain; "
                "train it on videos"
            )


def check_data(data: DataChoice) -> None:
    """Raise if the dataset or its folder is missing, before weights are downloaded."""
    if SOURCES[data.dataset].needs_folder:
        data.folder()
    if data.options.get("test_root") == "":
        raise DatasetError(
            "the features of the test videos are missing: --set data.options.test_root=FOLDER "
            "names their folder, --set 'data.options={}' trains without a test split"
        )


def check_fit(method: Method, data: DataChoice) -> None:
    """Score one blank pair; raise if its sizes do not fit the model.

    This happens before videos are decoded.
    """
    spec = data.frames
    if spec.num_frames < 1 or spec.size < 1:
        raise ConfigError(
            f"data.frames sets {spec.num_frames} frames of {spec.size} pixels; both must be at "
            "least 1"
        )
    if method.tokenizer is None or SOURCES[data.dataset].is_features:
        return
    try:
        with evaluating(method), torch.no_grad(), torch.random.fork_rng():
            pair = blank_batch(data, method, 1).to(method.device)
            method.score(method.encode_text(pair.texts), method.encode_video(pair.videos))
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
    """Open a split; frames that are not in ``cache`` are decoded into it."""
    spec = SOURCES[data.dataset]
    if method.tokenizer is None and not (spec.is_features or spec.gives_features):
        return open_video_features(data, split, OpenContext(method, cache, device, progress))
    return spec.open(data, split, OpenContext(method, cache, device, progress))


def default_split(data: DataChoice) -> str:
    """Return the split that is evaluated by default."""
    return SOURCES[data.dataset].default_split(data)


def inspect_split(data: DataChoice, split: str, method: Method | None) -> SplitSummary:
    """Count the texts and videos of a split without decoding videos.

    ``method`` is required for data that only a model can open, such as stored features.
    """
    inspect = SOURCES[data.dataset].inspect
    if inspect is not None:
        return inspect(data, split)
    assert method is not None
    source = load_source(data, split, method, cache=Path(), device=torch.device("cpu"))
    return SplitSummary(source.describe(), source.video_of_text)


class SeveralProblemsError(EagleNetError):
    """Several problems prevent a run; the message has one line per problem."""


@dataclass(frozen=True)
class ExperimentCheck:
    """Result of checking an experiment that can run.

    parameters: see :func:`count_parameters`. data: description of each split. estimate: the cost
    of training, or the reason why there is none. preparation: what precedes it.
    """

    experiment: Experiment
    parameters: Mapping[str, int]
    data: Mapping[str, Any]
    estimate: Estimate | str
    preparation: Preparation = field(default_factory=Preparation)

    @property
    def cost(self) -> str:
        """The estimates in words."""
        if isinstance(self.estimate, str):
            return self.estimate
        if not self.preparation.num_videos:
            return f"estimate: {self.estimate}"
        return f"estimate: {self.preparation}, then {self.estimate}"

    def to_dict(self) -> dict[str, Any]:
        estimate = self.estimate
        return {
            "experiment": self.experiment.to_plain(),
            "parameters": dict(self.parameters),
            "data": dict(self.data),
            "estimate": estimate if isinstance(estimate, str) else vars(estimate),
            "preparation": self.preparation.to_dict(),
        }


def check_experiment(experiment: Experiment, world: World, cache: Path) -> ExperimentCheck:
    """Build the method, count the data, and time one step and a few videos.

    cache: folder in which the run keeps decoded frames and features.

    Raises:
        SeveralProblemsError: there are several problems; a single problem raises its own error.
    """
    problems: list[EagleNetError] = []
    with activity("reading the data"):
        summaries = _inspect_files(experiment, problems)
    method = None
    with _collect_errors(problems), activity(f"building {experiment.method}"):
        method = build_method(experiment)
        check_fit(method, experiment.data)
    if method is not None and not problems:
        for split in splits_of(experiment):
            if split not in summaries:
                with _collect_errors(problems), activity("reading the data"):
                    summaries[split] = inspect_split(experiment.data, split, method)
    if "train" in summaries:
        with _collect_errors(problems):
            # Raises if the data does not fill a batch.
            pair_samplers(experiment.training, summaries["train"].video_of_text, world)
    if method is not None:
        with _collect_errors(problems):
            prepare_method(method, experiment.training)
    if len(problems) > 1:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise SeveralProblemsError(f"cannot start: {len(problems)} problems\n{lines}")
    if problems or method is None:
        raise problems[0]
    descriptions = {split: dict(entry.description) for split, entry in summaries.items()}
    parameters = count_parameters(method)
    training = experiment.training
    coarse, main = pair_samplers(training, summaries["train"].video_of_text, world)
    num_steps = training.coarse_epochs * len(coarse) + training.epochs * len(main)
    estimate: Estimate | str = "no estimate: features are computed when training starts"
    make_batch = _batch_maker(experiment, method, world.device)
    if make_batch is not None:
        try:
            with activity(f"timing a step of {experiment.method}"):
                estimate = estimate_run(experiment, method, make_batch, num_steps, world.device)
        except torch.OutOfMemoryError:
            estimate = (
                f"a step of {training.batch_size} pairs does not fit into the memory of "
                f"{world.device}: use a smaller --set training.batch_size=N, or --set "
                "training.accumulate=N"
            )
        except EagleNetError as error:
            estimate = f"no estimate: {error}"
    with activity("timing the decoding and encoding of videos"):
        preparation = estimate_preparation(
            experiment.data,
            {split: len(entry.video_of_text.unique()) for split, entry in summaries.items()},
            cache,
            world.device,
            is_encoding=method.tokenizer is None,
        )
    return ExperimentCheck(experiment, parameters, descriptions, estimate, preparation)


def _batch_maker(experiment: Experiment, method: Method, device: torch.device) -> MakeBatch | None:
    """Return a maker of batches for timing; None if features must be computed first."""
    if method.tokenizer is not None:
        return partial(blank_batch, experiment.data, method)
    if not SOURCES[experiment.data.dataset].is_features:
        config = method.encoder.config
        if isinstance(config, FeatureConfig):
            return partial(blank_features, experiment.data, config)
        return None
    source = load_source(experiment.data, "train", method, cache=Path(), device=device)
    return lambda pairs: source.pairs(torch.arange(pairs) % source.num_texts)


def splits_of(experiment: Experiment) -> tuple[str, str]:
    return "train", experiment.training.select


def count_parameters(method: Method) -> dict[str, int]:
    """Count the parameters of the encoder, of the head, and those that are trained."""
    total = sum(parameter.numel() for parameter in method.parameters())
    encoder = sum(parameter.numel() for parameter in method.encoder.parameters())
    num_trained = sum(weight.numel() for weight in method.parameters() if weight.requires_grad)
    return {"encoder": encoder, "head": total - encoder, "trained": num_trained}


def _inspect_files(
    experiment: Experiment, problems: list[EagleNetError]
) -> dict[str, SplitSummary]:
    """Inspect the splits, if the data can be opened without a model."""
    summaries: dict[str, SplitSummary] = {}
    with _collect_errors(problems):
        check_data(experiment.data)
        inspect = SOURCES[experiment.data.dataset].inspect
        for split in splits_of(experiment) if inspect is not None else ():
            with _collect_errors(problems):
                summaries[split] = inspect_split(experiment.data, split, None)
    return summaries


@contextmanager
def _collect_errors(problems: list[EagleNetError]) -> Iterator[None]:
    """Append an error to ``problems`` instead of raising it, unless its message is there."""
    try:
        yield
    except EagleNetError as error:
        if str(error) not in map(str, problems):
            problems.append(error)
