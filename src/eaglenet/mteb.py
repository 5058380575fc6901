"""Evaluation of any model with MTEB, for example on the video tasks of MVEB.

``python -m eaglenet.mteb run -m MODEL -t MSRVTTT2V`` is ``mteb run`` for the models of this
package: a model folder, a run, a name of ``eaglenet models`` or a hub id. In Python:
``mteb.evaluate(MtebModel("small"), tasks)``.

Retrieval between texts and videos (or images) ranks by the exact scores of the method, all other
tasks by its coarse vectors. For inputs of several kinds, such as a video with a question, the
vectors are added. Audio beside a video or a text is not read: mteb allows this in retrieval and
refuses other tasks. This package decodes the videos itself, with the frames that the model was
built for; torchcodec and the resampling of mteb are not used.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.core.errors import UsageError, missing_extra
from eaglenet.core.files import expand_home
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method, evaluating
from eaglenet.models.folder import load
from eaglenet.search.torch_model import model_identity
from eaglenet.video.inputs import FrameBatch, clips_of, clips_of_image

try:
    import datasets
    from mteb.models.model_implementations import MODEL_REGISTRY
    from mteb.models.model_meta import ModelMeta, ScoringFunction
    from mteb.similarity_functions import cos_sim, pairwise_cos_sim
except ModuleNotFoundError as error:
    raise missing_extra(error, "eaglenet.mteb") or error from error

BATCH_SIZE = 32


class MtebModel:
    """Model with the interfaces of MTEB for encoders and for search.

    Args:
        model: name or folder, as for :func:`eaglenet.load`.
        device: device of the model; by default a GPU if there is one.
    """

    def __init__(
        self,
        model: str | Path,
        revision: str | None = None,
        *,
        device: str | None = None,
        **_: Any,
    ) -> None:
        self.method = load(model, device=device or "auto")
        if self.method.encoder.image_size is None:
            raise UsageError(
                f"{model} is a head for stored features and cannot read videos; install it beside "
                "the model whose features it was trained on (docs/how-to/frames.md)"
            )
        self.mteb_model_meta = describe(model, self.method)
        self.corpus: datasets.Dataset | None = None

    def encode(self, inputs: Any, **_: Any) -> NDArray[np.float32]:
        """Return one unit vector per row of a loader, whose rows have text, image or video."""
        return np.asarray(self._vectors(inputs.dataset, inputs.batch_size or BATCH_SIZE))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        return pairwise_cos_sim(embeddings1, embeddings2)

    def index(self, corpus: datasets.Dataset, **_: Any) -> None:
        """Store the corpus for :meth:`search`."""
        self.corpus = corpus

    def search(
        self,
        queries: datasets.Dataset,
        *,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Return the scores of the ``top_k`` best documents per query."""
        if self.corpus is None:
            raise ValueError("index a corpus before searching it")
        batch_size = int((encode_kwargs or {}).get("batch_size", BATCH_SIZE))
        scores = self._score(with_instructions(queries), with_titles(self.corpus), batch_size)
        documents = [str(name) for name in self.corpus["id"]]
        column = {name: number for number, name in enumerate(documents)}
        results = {}
        for query, query_scores in zip(queries["id"], scores, strict=True):
            names = documents if top_ranked is None else list(map(str, top_ranked[query]))
            best = query_scores[[column[name] for name in names]].topk(min(top_k, len(names)))
            results[str(query)] = {
                names[position]: value
                for value, position in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            }
        self.corpus = None
        return results

    def _score(self, queries: Any, documents: Any, batch_size: int) -> Tensor:
        kinds = _kinds(queries), _kinds(documents)
        if kinds in ((["text"], ["video"]), (["text"], ["image"])):
            return self._exact_scores(queries, documents, batch_size)
        if kinds in ((["video"], ["text"]), (["image"], ["text"])):
            return self._exact_scores(documents, queries, batch_size).T
        return self._vectors(queries, batch_size) @ self._vectors(documents, batch_size).T

    def _exact_scores(self, texts: Any, videos: Any, batch_size: int) -> Tensor:
        (kind,) = _kinds(videos)
        text = TextFeatures.concatenate(list(self._features(texts, "text", batch_size)))
        video = VideoFeatures.concatenate(list(self._features(videos, kind, batch_size)))
        with evaluating(self.method), torch.no_grad():
            return self.method.similarity(text, video).float().cpu()

    def _vectors(self, dataset: Any, batch_size: int) -> Tensor:
        """Return a unit vector per row: the sum of its text, image and video."""
        vectors = [
            torch.cat(
                [
                    self.method.coarse_vectors(features).float().cpu()
                    for features in self._features(dataset, kind, batch_size)
                ]
            )
            for kind in _kinds(dataset)
        ]
        return F.normalize(torch.stack(vectors).sum(dim=0), dim=-1)

    def _features(self, dataset: Any, kind: str, batch_size: int) -> Iterator[Any]:
        if kind == "video":
            dataset = dataset.cast_column("video", datasets.Video(decode=False))
        with evaluating(self.method), torch.no_grad():
            # Texts are tokenised together, so that batches have one length and can be concatenated.
            texts = dataset["text"] if kind == "text" else []
            tokens = self.method.tokenize(list(map(str, texts))) if texts else None
            for start in range(0, len(dataset), batch_size):
                if tokens is not None:
                    batch = tokens[start : start + batch_size]
                    yield self.method.encode_text(batch.to(self.method.device))
                    continue
                values = dataset.select_columns(kind)[start : start + batch_size][kind]
                if kind == "image":
                    spec = self.method.frame_spec
                    clips = [clips_of_image(image.convert("RGB"), spec) for image in values]
                    yield self.method.encode_video(FrameBatch.concatenate(clips))
                else:
                    yield self.method.encode_video(self._read_videos(values))

    def _read_videos(self, values: Sequence[Mapping[str, Any]]) -> FrameBatch:
        """Decode videos from the bytes or paths in a table."""
        with tempfile.TemporaryDirectory(prefix="eaglenet-mteb-") as folder:
            paths = []
            for number, value in enumerate(values):
                path = Path(value["path"] or f"{number}.mp4")
                if value["bytes"] is not None:
                    path = Path(folder, f"{number}{path.suffix}")
                    path.write_bytes(value["bytes"])
                paths.append(path)
            return clips_of(paths, self.method.frame_spec)


def with_titles(documents: Any) -> Any:
    """Put the titles of documents before their texts, as MTEB does for encoders."""
    if not {"title", "text"} <= set(documents.column_names):
        return documents
    pairs = zip(documents["title"], documents["text"], strict=True)
    return _with_texts(documents, [f"{title or ''} {text}".strip() for title, text in pairs])


def with_instructions(queries: Any) -> Any:
    """Put the instructions of queries after their texts, as MTEB does for encoders."""
    if not {"instruction", "text"} <= set(queries.column_names):
        return queries
    pairs = zip(queries["text"], queries["instruction"], strict=True)
    return _with_texts(queries, [f"{text} {more}" if more else text for text, more in pairs])


def _with_texts(dataset: Any, texts: list[str]) -> Any:
    return dataset.remove_columns("text").add_column("text", texts)


def _kinds(dataset: Any) -> list[str]:
    """Return the kinds of input in the rows of a task: video, image or text; audio is not read."""
    columns = dataset.column_names
    kinds = [kind for kind in ("video", "image", "text") if kind in columns]
    if not kinds:
        raise UsageError(
            f"this task has the columns {', '.join(columns)}; models of eaglenet read video, "
            "images and text, but no audio"
        )
    return kinds


class VideoModelMeta(ModelMeta):  # type: ignore[misc]
    """Metadata of a model that decodes videos itself."""

    def _check_requirements(self) -> None:
        """Skip the check: torchcodec and torchvision are not used."""


def describe(model: str | Path, method: Method) -> VideoModelMeta:
    """Return the metadata of a model; the revision is a hash of its weights and config."""
    name = str(model)
    if expand_home(name).exists():
        name = expand_home(name).resolve().name
    return VideoModelMeta(
        loader=MtebModel,
        loader_kwargs={},
        name=name if name.count("/") == 1 else f"eaglenet/{name.replace('/', '_')}",
        revision=model_identity(method),
        release_date=None,
        languages=None,
        n_parameters=sum(parameter.numel() for parameter in method.parameters()),
        memory_usage_mb=None,
        max_tokens=method.encoder.context_length,
        embed_dim=method.encoder.dim,
        license=None,
        open_weights=None,
        public_training_code=None,
        public_training_data=None,
        framework=["PyTorch"],
        similarity_fn_name=ScoringFunction.COSINE,
        use_instructions=False,
        training_datasets=None,
        modalities=["text", "image", "video"],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of mteb; ``-m`` is a model of this package."""
    from mteb.cli.build_cli import build_cli

    options = build_cli().parse_args(sys.argv[1:] if arguments is None else list(arguments))
    if getattr(options, "model", None):
        model = MtebModel(options.model, device=getattr(options, "device", None))
        name = model.mteb_model_meta.name
        meta = model.mteb_model_meta.model_copy(update={"loader": lambda *_, **__: model})
        MODEL_REGISTRY[name] = meta
        options.model = name
    options.func(options)


if __name__ == "__main__":
    main()
