"""Models of sentence-transformers as encoders of texts and of whole clips or single frames."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from eaglenet.core.errors import ConfigError, ModelNotFoundError, UsageError
from eaglenet.core.files import expand_home
from eaglenet.core.types import Abilities, Clips, Resize, TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.base import BaseEncoder, TextSource, VideoSource
from eaglenet.encoders.catalogue import ST_PREFIX
from eaglenet.encoders.clip_config import CLIP_LOGIT_SCALE
from eaglenet.encoders.hardware import has_fast_bf16
from eaglenet.encoders.hub import find_snapshot, split_st_name
from eaglenet.encoders.low_rank import is_adapter
from eaglenet.encoders.sentence_transformer_files import (
    ENCODING_LOCK,
    MODULES,
    StConfig,
    describe,
    open_model,
    quiet_libraries,
    sentence_transformers,
)

logger = logging.getLogger(__name__)

MAX_WORDS = 128
"""Maximum vectors per text of a multi-vector model; longer texts are truncated."""
SPARE_VECTORS = 16
"""Additional vectors for clips whose times take more tokens than those of the test clip."""
TEXTS_PER_CALL = 32
MAX_CLIPS_PER_CALL = 64
MEMORY_FRACTION = 0.6
"""Maximum fraction of a GPU's free memory that a call may use."""
PROMPT_NAMES = {"encode_query": ("query",), "encode_document": ("document", "passage", "corpus")}
"""Names of the prompt for each task; the first one that a model has is used."""
OWN_FILES, OWN_WEIGHTS = "st", "model."
"""Folder of the model in a model folder, and prefix of the names of its weights."""


class CharacterTokenizer:
    """Passes texts on, one id per character; the encoder applies the tokenizer of the model.

    The model adds prompts and chat templates before it truncates a text, so only the model can
    truncate. ``max_length``, which counts CLIP's tokens, is ignored.
    """

    def __call__(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        texts = [texts] if isinstance(texts, str) else list(texts)
        width = max((len(text) for text in texts), default=0) or 1
        ids = torch.zeros(len(texts), width, dtype=torch.long)
        mask = torch.zeros(len(texts), width, dtype=torch.bool)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor([ord(letter) for letter in text])
            mask[row, : len(text)] = True
        return Tokens(ids, mask)

    def read(self, tokens: Tokens) -> list[str]:
        """Return the texts that were tokenized."""
        rows = zip(tokens.ids.tolist(), tokens.mask.sum(dim=1).tolist(), strict=True)
        return ["".join(map(chr, ids[:length])) for ids, length in rows]

    def save(self, folder: str | Path) -> None:
        """Do nothing: the files of the model contain its tokenizer."""


class StEncoder(BaseEncoder):
    """A model of sentence-transformers. Its weights are frozen, and may have low-rank changes.

    A model that reads video receives the frames of a clip in one call, in order and with their
    times; ``VideoFeatures.frames`` then contains the vectors of the clip, one or several, not those
    of single frames (``abilities.frames`` is False). A clip of equal frames, such as an image, is
    passed as an image if the model reads images. A model that reads only images returns one vector
    per frame.
    """

    family = "st"
    tower_names = ("model",)
    abilities: Abilities  # type: ignore[misc]
    resize: Resize  # type: ignore[misc]
    config: StConfig

    def __init__(self, config: StConfig, *, seed: int = 0, model: Any = None) -> None:
        super().__init__()
        self.config = config
        self.dim, self.image_size = config.dim, config.image_size
        self.resize, self.num_frames = config.resize, config.num_frames
        self.abilities = Abilities(words=config.is_multi_vector, frames=not config.reads_clips)
        self.model = (
            open_model(Path(config.source), self._truncated_dim) if model is None else model
        )
        self.tokenizer = CharacterTokenizer()
        self.register_buffer("logit_scale", torch.tensor(CLIP_LOGIT_SCALE), persistent=False)
        # Part of the state, and so of the model's identity in a store: the weights do not depend on
        # the dimension and the prompts.
        self.register_buffer("settings_hash", _hash(config))
        self._num_vectors = 1
        self._clips_per_call: dict[str, int] = {}
        self._is_recomputed = False

    def encode_text(self, texts: TextSource, *, words: bool = False) -> TextFeatures:
        """Encode texts with the model's prompt for queries."""
        if not isinstance(texts, Tokens):
            raise UsageError(f"an encoder of st reads Tokens, got {type(texts).__name__}")
        if words and not self.abilities.words:
            raise UsageError(f"{self.config.source} returns one vector per text, none per word")
        # In a dictionary, since the library would open a string that is a path or a URL.
        inputs = [
            {"text": self._without_special_tokens(text)} for text in self.tokenizer.read(texts)
        ]
        vectors = self._call("encode_query", inputs, TEXTS_PER_CALL)
        if not self.config.is_multi_vector:
            return TextFeatures(sentence=self._stack_vectors(vectors))
        batch, mask = _pad([each[:MAX_WORDS] for each in vectors], MAX_WORDS)
        return TextFeatures(
            sentence=(F.normalize(batch, dim=-1) * mask[..., None]).sum(dim=1),
            words=batch if words else None,
            words_mask=mask if words else None,
        )

    def encode_video(self, videos: VideoSource, *, patches: bool = False) -> VideoFeatures:
        """Encode clips, or frames if the model does not read video; see the class."""
        if not isinstance(videos, Clips):
            raise UsageError(f"an encoder of st reads Clips, got {type(videos).__name__}")
        if patches:
            raise UsageError(
                f"{self.config.source} returns vectors of clips or frames, none of patches"
            )
        mask = videos.mask.to(self.device)
        if not self.config.reads_clips:
            return VideoFeatures(frames=self._encode_frames(videos), mask=mask)
        vectors = self._encode_clips(
            [
                self._clip_input(frames[real], seconds[real])
                for frames, real, seconds in zip(
                    videos.frames.cpu(), videos.mask.cpu(), videos.seconds.cpu(), strict=True
                )
            ]
        )
        if not self.config.is_multi_vector:
            frames = self._stack_vectors(vectors)[:, None]
            return VideoFeatures(frames=frames, mask=mask.new_ones(len(frames), 1))
        count = self._count_vectors()
        batch, is_real = _pad([_subsample(each, count) for each in vectors], count)
        return VideoFeatures(frames=batch, mask=is_real)

    def _encode_frames(self, videos: Clips) -> Float[Tensor, "videos frames dim"]:
        """Return one vector per real frame, and zeros for padding."""
        real = videos.mask.cpu()
        images = [{"image": _image(frame)} for frame in videos.frames.cpu()[real]]
        vectors = self._stack_vectors(self._encode_clips(images))
        frames = vectors.new_zeros(*real.shape, vectors.shape[-1])
        frames[real.to(frames.device)] = vectors
        return frames

    def _clip_input(
        self, frames: UInt8[Tensor, "frames 3 height width"], seconds: Float[Tensor, "frames"]
    ) -> dict[str, Any]:
        """Return a clip as input of sentence-transformers."""
        if self.model.supports("image") and bool((frames == frames[:1]).all()):
            return {"image": _image(frames[0])}
        count = self.config.num_frames
        if self.config.is_fixed and len(frames) != count:
            order = torch.linspace(0, len(frames) - 1, count).round().long()
            frames, seconds = frames[order], seconds[order]
        span = float(seconds[-1] - seconds[0])
        rate = (len(frames) - 1) / span if span > 0 else 1.0
        metadata = {
            "fps": rate,
            "total_num_frames": len(frames),
            "duration": len(frames) / rate,
            "frames_indices": list(range(len(frames))),
        }
        return {"video": {"array": frames, "video_metadata": metadata}}

    def _count_vectors(self) -> int:
        """Return the number of vectors per clip of a store, measured once with a clip of noise."""
        if self._num_vectors == 1:
            size = self.config.image_size
            generator = torch.Generator().manual_seed(0)
            shape = (self.config.num_frames, 3, size, size)
            noise = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
            clip = self._clip_input(noise, torch.arange(len(noise)).float())
            self._num_vectors = len(self._encode_clips([clip])[0]) + SPARE_VECTORS
        return self._num_vectors

    def _encode_clips(self, inputs: list[dict[str, Any]]) -> list[Tensor]:
        """Return vectors of documents, computed in batches as large as memory allows."""
        kinds = [next(iter(each)) for each in inputs]
        vectors: dict[int, Tensor] = {}
        for kind in dict.fromkeys(kinds):
            numbers = [number for number, each in enumerate(kinds) if each == kind]
            batch = [inputs[number] for number in numbers]
            size = self._batch_size(kind, batch[0])
            while True:
                try:
                    batch_vectors = self._call("encode_document", batch, size)
                    break
                except torch.OutOfMemoryError:
                    if size == 1:
                        raise
                    torch.cuda.empty_cache()
                    size = self._clips_per_call[kind] = size // 2
                    logger.info("encoding %d clips per call: more do not fit in memory", size)
            vectors.update(zip(numbers, batch_vectors, strict=True))
        return [vectors[number] for number in range(len(inputs))]

    def _batch_size(self, kind: str, sample: dict[str, Any]) -> int:
        """Return the number of clips per call: on a GPU as many as fit in memory, else one.

        ``kind`` is ``video`` or ``image``, whose memory use differs.
        """
        # Ranks of a sharded model gather its blocks together, so they must make equally many calls.
        is_sharded = any(hasattr(module, "unshard") for module in self.model.modules())
        if self.device.type != "cuda" or is_sharded:
            return 1
        if kind not in self._clips_per_call:
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            self._call("encode_document", [sample], 1)
            bytes_per_clip = max(torch.cuda.max_memory_allocated(self.device) - before, 1)
            reserved_bytes = torch.cuda.memory_reserved(self.device) - before
            free = torch.cuda.mem_get_info(self.device)[0] + reserved_bytes
            num_clips = int(MEMORY_FRACTION * free / bytes_per_clip)
            self._clips_per_call[kind] = min(max(num_clips, 1), MAX_CLIPS_PER_CALL)
        return self._clips_per_call[kind]

    def _call(self, task: str, inputs: list[dict[str, Any]], size: int) -> list[Tensor]:
        """Call ``encode_query`` or ``encode_document`` of the library, with its prompt."""
        options: dict[str, Any] = {"batch_size": size, "show_progress_bar": False}
        if "video" in inputs[0]:
            # The frames are sampled already; resize and scale them on the device of the model.
            video_options = {"do_sample_frames": False, "device": str(self.device)}
            options["processing_kwargs"] = {"video": video_options}
        if not self.config.is_multi_vector:
            options["convert_to_tensor"] = True
        with ENCODING_LOCK:
            self._use_fast_precision()
            if torch.is_grad_enabled() and self.is_adapted:
                outputs = self._forward(task, inputs, options)
            else:
                outputs = getattr(self.model, task)(inputs, **options)
        # Cloned, since tensors of inference mode cannot be used in training.
        vectors = [each.float().clone() for each in outputs]
        width = vectors[0].shape[-1]
        if width != self.dim:
            raise ConfigError(
                f"{self.config.source}: vectors of {width} numbers from {task}, {self.dim} from "
                "encode_query; texts and clips cannot be compared"
            )
        return vectors

    def _forward(
        self, task: str, inputs: list[dict[str, Any]], options: Mapping[str, Any]
    ) -> list[Tensor]:
        """Compute vectors like the library's ``encode_*``, but with gradients."""
        from sentence_transformers.util import batch_to_device

        model, size = self.model, options["batch_size"]
        kwargs = {name: options[name] for name in ("processing_kwargs",) if name in options}
        kwargs["task"] = task.removeprefix("encode_")
        names = (name for name in PROMPT_NAMES[task] if name in model.prompts)
        prompt = model.prompts.get(next(names, model.default_prompt_name))
        if self._is_recomputed:
            for module in model.modules():
                # Layers are recomputed only in training mode. Modules inside them, such as dropout,
                # stay in eval mode.
                module.training = getattr(module, "gradient_checkpointing", False)
        vectors: list[Tensor] = []
        for start in range(0, len(inputs), size):
            features = model.preprocess(inputs[start : start + size], prompt=prompt, **kwargs)
            outputs = model(batch_to_device(features, self.device), **kwargs)
            if self.config.is_multi_vector:
                pairs = zip(outputs["token_embeddings"], outputs["attention_mask"], strict=True)
                vectors += [tokens[mask.bool()] for tokens, mask in pairs]
            else:
                vectors += list(outputs["sentence_embedding"][..., : self.dim])
        return vectors

    def _use_fast_precision(self) -> None:
        """Use fp32 if the weights have 16 bits and the device is slow with them."""
        weight = next(self.model.parameters(), None)
        is_half = weight is not None and weight.dtype in (torch.bfloat16, torch.float16)
        if is_half and not has_fast_bf16(self.device):
            self.model.float()

    def _stack_vectors(self, vectors: list[Tensor]) -> Float[Tensor, "items dim"]:
        """Stack vectors of single-vector models; some have an additional axis of length 1."""
        return torch.stack([each.reshape(self.dim) for each in vectors])

    def _without_special_tokens(self, text: str) -> str:
        """Remove tokens of the chat template from a text, since the model would obey them."""
        vocabulary: Mapping[str, int] = getattr(self.model.tokenizer, "get_added_vocab", dict)()
        for token in vocabulary:
            text = text.replace(token, " ")
        return text

    @property
    def is_adapted(self) -> bool:
        """True if the model has low-rank changes, which can be trained."""
        return any(is_adapter(f"model.{name}") for name, _ in self.model.named_parameters())

    def train(self, mode: bool = True) -> StEncoder:
        """Stay in eval mode, without dropout; refuse training without low-rank changes."""
        if mode and not self.is_adapted:
            raise UsageError(
                "models of sentence-transformers can only be trained with low-rank updates: --set "
                "training.lora_rank=16; or store its features and train a method on them "
                "(docs/how-to/features.md)"
            )
        super().train(False)
        return self

    def set_gradient_checkpointing(self, blocks: bool | int = True) -> None:
        """Recompute all layers in the backward pass."""
        transformer = self.model.transformers_model
        self._is_recomputed = bool(blocks)
        if not blocks:
            transformer.gradient_checkpointing_disable()
        elif not getattr(transformer, "supports_gradient_checkpointing", False):
            raise ConfigError(
                f"training.checkpointing: {type(transformer).__name__} cannot recompute its "
                "layers; set training.checkpointing=false"
            )
        else:
            options = {"use_reentrant": False}
            transformer.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)

    def save_own_files(
        self, folder: Path, weights: Mapping[str, Tensor]
    ) -> tuple[StConfig, dict[str, Tensor]]:
        """Write the model with ``weights`` to ``folder/st``; return config and other weights."""
        start = f"encoder.{OWN_WEIGHTS}"
        own = {name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}
        model = open_model(Path(self.config.source), self._truncated_dim)
        model.load_state_dict(own, assign=True)
        with quiet_libraries():
            model.save(str(folder / OWN_FILES), create_model_card=False)
        rest = {name: w for name, w in weights.items() if not name.startswith(start)}
        return dataclasses.replace(self.config, source=OWN_FILES), rest

    @property
    def _truncated_dim(self) -> int | None:
        return None if self.config.is_multi_vector else self.config.dim

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model in place, with ``torch.compile``'s arguments."""
        self.model.compile(*args, **kwargs)


def _hash(config: StConfig) -> UInt8[Tensor, "bytes"]:
    values = {name: value for name, value in dataclasses.asdict(config).items() if name != "source"}
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()
    return torch.tensor(list(digest[:16]), dtype=torch.uint8)


def _image(frame: UInt8[Tensor, "3 height width"]) -> Any:
    from PIL import Image

    return Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy())


def _pad(
    items: Sequence[Tensor], count: int
) -> tuple[Float[Tensor, "items vectors dim"], Bool[Tensor, "items vectors"]]:
    """Stack items of up to ``count`` vectors; return them and a mask of the real vectors."""
    batch = torch.stack([F.pad(each, (0, 0, 0, count - len(each))) for each in items])
    lengths = torch.tensor([len(each) for each in items], device=batch.device)
    return batch, torch.arange(count, device=batch.device)[None] < lengths[:, None]


def _subsample(vectors: Float[Tensor, "vectors dim"], count: int) -> Float[Tensor, "subset dim"]:
    """Return at most ``count`` vectors, evenly spaced."""
    if len(vectors) <= count:
        return vectors
    return vectors[torch.linspace(0, len(vectors) - 1, count).round().long()]


def load_st(name: str) -> Pretrained:
    """Load ``st:MODEL`` or ``st:MODEL:DIM``: a hub id or folder, with vectors truncated to DIM."""
    source, dim = split_st_name(name)
    if not source:
        raise UsageError(
            f"{name!r}: write {ST_PREFIX}MODEL, such as {ST_PREFIX}Qwen/Qwen3-VL-Embedding-2B, or "
            f"{ST_PREFIX}MODEL:512 for vectors of 512 numbers"
        )
    if dim == 0:
        raise UsageError(f"{name}: use a dimension of 1 or more")
    sentence_transformers()  # Raises an error before the download if it is not installed.
    folder = expand_home(source)
    if not folder.is_dir():
        folder = find_snapshot(source)
    if not any((folder / file).is_file() for file in (MODULES, "config.json")):
        raise ModelNotFoundError(
            f"{folder} has no {MODULES} and no config.json; expected a folder of a model of "
            "sentence-transformers or transformers"
        )
    model = open_model(folder, dim)
    encoder = StEncoder(describe(folder, model, dim), model=model).eval()
    encoder.requires_grad_(False)
    return Pretrained(encoder, encoder.tokenizer)


def open_own_files(config: StConfig, folder: Path) -> StEncoder:
    """Open the model that :meth:`StEncoder.save_own_files` wrote into a model folder."""
    encoder = StEncoder(dataclasses.replace(config, source=str(folder / OWN_FILES))).eval()
    encoder.requires_grad_(False)
    return encoder


ENCODERS.add(
    "st",
    EncoderSpec(
        title="a model of sentence-transformers (st:MODEL)",
        config_class=StConfig,
        build=StEncoder,
        open_own_files=open_own_files,
    ),
)
