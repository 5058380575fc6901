"""Base classes of encoders."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import (
    Abilities,
    BlockLayers,
    Clips,
    PlainConfig,
    Resize,
    TextFeatures,
    TextStack,
    Tokens,
    VideoFeatures,
)
from eaglenet.encoders.blocks import ResidualBlock
from eaglenet.encoders.weights import is_deferred, release_weights

CHUNK_FRAMES = 12
"""Frames per chunk on a CPU: one clip. Fewer take more calls per frame, more exceed the caches."""

TextSource = Tokens | TextFeatures
"""Texts that an encoder reads: tokens, or stored features."""
VideoSource = Clips | VideoFeatures
"""Videos that an encoder reads: decoded clips, or stored features."""
Frames = Shaped[Tensor, "videos frames 3 height width"]
Mask = Bool[Tensor, "videos frames"]
ReadFrames = Callable[[Frames, Mask | None], Float[Tensor, "videos frames tokens dim"]]


def encode_in_chunks(
    read: ReadFrames, frames: Frames, mask: Mask | None
) -> Float[Tensor, "videos frames tokens dim"]:
    """Apply ``read`` to independent videos; on a CPU, to a few at a time in each thread."""
    size = max(1, CHUNK_FRAMES // frames.shape[1])
    is_whole = frames.device.type != "cpu" or torch.is_grad_enabled() or len(frames) <= size
    if is_whole or torch.compiler.is_compiling():
        return read(frames, mask)
    chunks = frames.split(size)
    masks = [None] * len(chunks) if mask is None else list(mask.split(size))
    threads = torch.get_num_threads()
    # Autocast applies to one thread only.
    if threads == 1 or torch.is_autocast_enabled("cpu"):
        return torch.cat(list(map(read, chunks, masks)))
    is_inference = torch.is_inference_mode_enabled()

    def read_chunk(chunk: Frames, chunk_mask: Mask | None) -> Tensor:
        with torch.inference_mode(is_inference), torch.no_grad():
            return read(chunk, chunk_mask)

    return torch.cat(list(_single_threads(threads).map(read_chunk, chunks, masks)))


@cache
def _single_threads(count: int) -> ThreadPoolExecutor:
    """Return a pool of ``count`` threads; torch uses one thread in each of them."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="chunks")
    barrier = threading.Barrier(count)

    def start() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # Before this call, the number is not specific to the thread.
        barrier.wait()

    for future in [pool.submit(start) for _ in range(count)]:
        future.result()
    # New threads inherit the number that was set last.
    torch.set_num_threads(count)
    return pool


_RESTORE_LOCK = threading.RLock()
"""Held while a released tower is restored."""


class BaseEncoder(nn.Module, ABC):
    """Base of encoders (:class:`eaglenet.core.types.Encoder`) without blocks that read no frames.

    A subclass sets ``family``, ``config``, ``dim`` and ``logit_scale``, and implements
    ``encode_text`` and ``encode_video``.
    """

    family: ClassVar[str]
    abilities: ClassVar[Abilities] = Abilities()
    resize: ClassVar[Resize] = "crop"
    tower_names: ClassVar[tuple[str, ...]] = ()
    """Names of the modules to which low-rank changes apply."""

    config: PlainConfig
    dim: int
    image_size: int | None = None
    num_frames: int | None = None
    """Frames per clip of the model; None if the method determines them."""
    context_length: int | None = None
    vocabulary_size: int | None = None
    logit_scale: Tensor
    logit_bias: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("logit_bias", None)  # Set by families that have one.

    @abstractmethod
    def encode_text(self, texts: TextSource, *, words: bool = False) -> TextFeatures: ...

    @abstractmethod
    def encode_video(self, videos: VideoSource, *, patches: bool = False) -> VideoFeatures: ...

    def encode_frames(
        self, frames: Frames, mask: Mask | None = None, *, patches: bool = False
    ) -> Float[Tensor, "videos frames tokens dim"]:
        raise UsageError(f"an encoder of {self.family} reads no frames; use encode_video")

    @property
    def num_blocks(self) -> int:
        return 0

    def text_stack(self) -> TextStack | None:
        return None

    def set_token_shift(self, blocks: tuple[int, ...]) -> None:
        if blocks:
            raise ConfigError(
                f"token shift works inside the image towers of CLIP and of compact models, which "
                f"{self.family} does not have; switch it off or choose such a model"
            )

    def set_gradient_checkpointing(self, blocks: bool | int = True) -> None:
        if blocks:
            raise ConfigError("training.checkpointing: this encoder has no blocks to recompute")

    @property
    def device(self) -> torch.device:
        return self.logit_scale.device


class TowerEncoder(BaseEncoder):
    """Encoder with two towers for a joint space; its features are not normalised.

    A subclass sets ``family`` and ``abilities``, and calls :meth:`set_towers` in its ``__init__``
    (and sets the logit bias, if it has one).

    ``vision(pixels, num_frames=, frame_mask=, patches=)`` returns [images, tokens, dim], the
    vector of the frame first; ``text.read(ids, mask, words=)`` returns :class:`TextFeatures`. Both
    have ``blocks`` and ``gradient_checkpointing``, the number of blocks to recompute. Training
    freezes parameters under ``vision.`` and ``text.``, or sets their learning rate.
    """

    tower_names = ("vision", "text")
    image_size: int
    context_length: int
    vision: nn.Module
    text: nn.Module
    _restore_vision: Callable[[], nn.Module] | None = None

    def set_towers(
        self, config: Any, vision: Any, text: Any, *, logit_scale: float, seed: int
    ) -> None:
        """Set two new towers and their sizes, with random weights unless on the meta device.

        logit_scale: initial natural logarithm of the factor on cosines.
        """
        self.config = config
        self.dim = config.dim
        self.image_size = config.vision.image_size
        self.context_length = config.text.context_length
        self.vocabulary_size = config.text.vocabulary_size
        self.vision, self.text = vision, text
        self.logit_scale = nn.Parameter(torch.tensor(logit_scale))
        if not self.logit_scale.is_meta:
            generator = torch.Generator().manual_seed(seed)
            vision.initialise(generator)
            text.initialise(generator)

    def release_vision(self, restore: Callable[[], nn.Module]) -> None:
        """Release the weights of the image tower, which text queries do not need.

        restore: returns the tower; called on the next access.
        """
        release_weights(self.vision)
        self._restore_vision = restore

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TowerEncoder:
        """Apply ``fn`` to all weights except those of an image tower that is not loaded."""
        with _RESTORE_LOCK:
            vision = self._modules["vision"]
            assert vision is not None
            if self._restore_vision is not None or is_deferred(vision):
                self._modules["vision"] = None
            try:
                super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            finally:
                self._modules["vision"] = vision
        return self

    def __getattr__(self, name: str) -> Any:
        if name == "vision" and self.__dict__.get("_restore_vision") is not None:
            with _RESTORE_LOCK:
                restore = self.__dict__.get("_restore_vision")
                if restore is not None:
                    self.vision = restore().to(self.device).eval()
                    self._restore_vision = None  # Last, since other threads wait for it.
        return super().__getattr__(name)  # Last, since another thread may restore the tower.

    def encode_text(self, texts: TextSource, *, words: bool = False) -> TextFeatures:
        """Encode texts; with ``words``, also every token, with a mask of the real ones."""
        if not isinstance(texts, Tokens):
            raise UsageError(f"the {self.family} encoder reads Tokens, got {type(texts).__name__}")
        if words and not self.abilities.words:
            raise UsageError(
                f"the {self.family} encoder returns one vector per text, none per word"
            )
        if texts.ids.shape[1] > self.context_length:
            limit = self.context_length
            raise UsageError(
                f"texts are {texts.ids.shape[1]} tokens long, this tower takes {limit}; "
                f"tokenize with max_length={limit} or less"
            )
        texts = texts.to(self.device)
        features: TextFeatures = self.text.read(texts.ids, texts.mask, words=words)  # type: ignore[operator]
        return features

    def encode_video(self, videos: VideoSource, *, patches: bool = False) -> VideoFeatures:
        """Encode one vector per frame; with ``patches``, also its patches.

        ``patches`` of the result is [videos, frames, 1 + patches, dim], the vectors of the frames
        first.
        """
        if not isinstance(videos, Clips):
            raise UsageError(f"the {self.family} encoder reads Clips, got {type(videos).__name__}")
        if patches and not self.abilities.patches:
            raise UsageError(
                f"the {self.family} encoder returns vectors of frames, none of patches"
            )
        mask = videos.mask.to(self.device)
        tokens = self._encode_frames_once(videos.frames, mask, patches)
        return VideoFeatures(
            frames=tokens[:, :, 0],
            mask=mask,
            patches=tokens if patches else None,
        )

    def _encode_frames_once(
        self, frames: Frames, mask: Mask, patches: bool
    ) -> Float[Tensor, "videos frames tokens dim"]:
        """Encode frames; those that repeat within a video or in the next one are encoded once.

        Overlapping clips share frames, and images and short videos repeat them.
        """
        first_indices = (
            None if torch.is_grad_enabled() or self._depends_on_time else _first_occurrences(frames)
        )
        if first_indices is None:
            return self.encode_frames(frames, mask, patches=patches)
        is_first = first_indices == torch.arange(len(first_indices), device=first_indices.device)
        once = self.encode_frames(
            frames.flatten(0, 1)[is_first][:, None],
            mask.to(is_first.device).flatten()[is_first][:, None],
            patches=patches,
        )
        # Index of each frame's first occurrence among the encoded frames.
        index = (is_first.cumsum(dim=0) - 1)[first_indices].view(frames.shape[:2])
        return once[:, 0][index.to(once.device)]

    @property
    def _depends_on_time(self) -> bool:
        """True if the tokens of a frame depend on its position in the video."""
        shifts = (getattr(block, "token_shift", False) for block in _blocks(self.vision))
        parts = (getattr(self.vision, name, None) for name in ("frame_embedding", "temporal_stem"))
        return any(part is not None for part in parts) or any(shifts)

    def encode_frames(
        self, frames: Frames, mask: Mask | None = None, *, patches: bool = False
    ) -> Float[Tensor, "videos frames tokens dim"]:
        """Encode frames: uint8, or normalised floats.

        On a CPU without gradients, a few videos are encoded at a time (:func:`encode_in_chunks`).
        ``mask`` marks the real frames; only token shift and a temporal stem use it.
        """
        frames = frames.to(self.device, non_blocking=True)
        return encode_in_chunks(partial(self._read_frames, patches=patches), frames, mask)

    def _read_frames(
        self, frames: Frames, mask: Mask | None, *, patches: bool
    ) -> Float[Tensor, "videos frames tokens dim"]:
        num_videos, num_frames = frames.shape[:2]
        tokens: Tensor = self.vision(
            frames.flatten(0, 1), num_frames=num_frames, frame_mask=mask, patches=patches
        )
        return tokens.reshape(num_videos, num_frames, *tokens.shape[1:])

    def set_token_shift(self, blocks: tuple[int, ...]) -> None:
        """Shift tokens in time in exactly these vision blocks (numbered from 0)."""
        if self.abilities.token_shift:
            self.vision.set_token_shift(blocks)  # type: ignore[operator]
        else:
            super().set_token_shift(blocks)

    @property
    def num_blocks(self) -> int:
        return len(self.vision.blocks)  # type: ignore[arg-type]

    def text_stack(self) -> TextStack | None:
        """Return blocks and positions of the text tower; None without :class:`ResidualBlock`."""
        blocks = [block for block in _blocks(self.text) if isinstance(block, ResidualBlock)]
        positions = self.text.positional_embedding
        if not blocks or not isinstance(positions, Tensor):
            return None
        layers = tuple(
            BlockLayers(
                ln_1=block.ln_1,
                qkv=block.attention.qkv,
                out=block.attention.out,
                ln_2=block.ln_2,
                up=block.mlp.up,
                down=block.mlp.down,
            )
            for block in blocks
        )
        return TextStack(blocks[0].attention.heads, positions, layers)

    def set_gradient_checkpointing(self, blocks: bool | int = True) -> None:
        """Recompute blocks in the backward pass, which saves memory and is up to a third slower.

        A number recomputes only that many of the first vision blocks.
        """
        if blocks is True or blocks is False:
            self.text.gradient_checkpointing = len(_blocks(self.text)) if blocks else 0  # type: ignore[assignment]
            blocks = self.num_blocks if blocks else 0
        self.vision.gradient_checkpointing = blocks  # type: ignore[assignment]

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile both towers in place, with ``torch.compile``'s arguments.

        Use the default mode: it fuses norms, activations and pixel normalisation between the
        matrix products, which makes ViT-B/16 about a third faster in bf16 on an H200
        (``benchmarks/encoding.py``). Each new batch shape compiles again, so keep batches of one
        size. Names and weights do not change.
        """
        self.vision.compile(*args, **kwargs)
        self.text.compile(*args, **kwargs)


def _blocks(tower: nn.Module) -> list[nn.Module]:
    blocks = tower.blocks
    return list(blocks) if isinstance(blocks, nn.ModuleList) else []


def _first_occurrences(frames: Frames) -> Int[Tensor, "images"] | None:
    """Return, for each frame, the index of the first frame with equal pixels; None if all differ.

    Frames are compared with those of their video and of the previous one.
    """
    flat = frames.flatten(0, 1)
    # The middle rows already distinguish nearly all frames.
    rows = flat[:, :, flat.shape[2] // 2].flatten(1)
    kinds = torch.unique(rows, dim=0, return_inverse=True)[1].tolist()
    latest: dict[int, int] = {}
    pairs = []
    for index, kind in enumerate(kinds):
        before = latest.get(kind, -1)
        if before >= 0 and before // frames.shape[1] >= index // frames.shape[1] - 1:
            pairs.append((index, before))
        latest[kind] = index
    if not pairs:
        return None
    later, earlier = torch.tensor(pairs, device=flat.device).unbind(1)
    is_same = (flat[later] == flat[earlier]).flatten(1).all(dim=1).tolist()
    first = list(range(len(flat)))
    for (index, before), same in zip(pairs, is_same, strict=True):
        first[index] = first[before] if same else index
    return torch.tensor(first, device=flat.device) if any(is_same) else None
