"""Many videos through a tower on a CPU: a few frames at once in each thread.

What a block makes of a few frames takes a few megabytes, which stay near the processor; of hundreds
it is hundreds of megabytes, fetched and cleared anew at every step. Threads that each do a piece
wait for each other once a batch; those inside torch's operations would at every step, and while one
of them has lost its core to another process the others turn in circles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

FRAMES = 12
"""Of a piece, at least: one clip. Fewer cost more calls a frame, more leave the caches."""

Frames = Shaped[Tensor, "videos frames 3 height width"]
Mask = Bool[Tensor, "videos frames"]
Read = Callable[[Frames, Mask | None], Float[Tensor, "videos frames tokens dim"]]


def in_pieces(
    read: Read, frames: Frames, mask: Mask | None
) -> Float[Tensor, "videos frames tokens dim"]:
    """What ``read`` gives for all videos, none of which depends on another."""
    size = max(1, FRAMES // frames.shape[1])
    is_whole = frames.device.type != "cpu" or torch.is_grad_enabled() or len(frames) <= size
    if is_whole or torch.compiler.is_compiling():
        return read(frames, mask)
    parts = frames.split(size)
    masks = [None] * len(parts) if mask is None else list(mask.split(size))
    threads = torch.get_num_threads()
    # Other threads know nothing of an autocast here.
    if threads == 1 or torch.is_autocast_enabled("cpu"):
        return torch.cat(list(map(read, parts, masks)))
    is_inference = torch.is_inference_mode_enabled()

    def read_apart(part: Frames, its_mask: Mask | None) -> Tensor:
        with torch.inference_mode(is_inference), torch.no_grad():
            return read(part, its_mask)

    return torch.cat(list(_single_threads(threads).map(read_apart, parts, masks)))


@cache
def _single_threads(count: int) -> ThreadPoolExecutor:
    """``count`` threads in each of which torch has one."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="pieces")
    all_there = threading.Barrier(count)

    def begin() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # Only from now on the number is this thread's own.
        all_there.wait()

    for begun in [pool.submit(begin) for _ in range(count)]:
        begun.result()
    # One that begins takes what was set last.
    torch.set_num_threads(count)
    return pool
