"""Options of an index run, for Python and for the command line.

Imports quickly, because the command line makes its options from these classes
(:mod:`eaglenet.cli.options`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from eaglenet.core.errors import UsageError
from eaglenet.core.frame_spec import Splitting
from eaglenet.core.settings import option
from eaglenet.video.limits import Limits

OWN, OFF = "own", "off"
HubnessChoice = str | Sequence[str] | None
"""``own`` (the model's bank), ``off``, a file of texts, or texts. None: a store keeps its bank, and
a new one takes the model's if there is one."""


@dataclass(frozen=True)
class ClusterOptions:
    """Address of a cluster, and resources of each of its workers.

    address: None for the address in the environment, or for a cluster on this machine alone.
    gpus_per_worker: a fraction if several workers share a GPU; 0 encodes on the CPU.
    """

    address: str | None = option(
        None,
        "Connect to this Ray cluster; default: RAY_ADDRESS.",
        name="--ray-address",
        group="Cluster",
        metavar="HOST:PORT",
    )
    gpus_per_worker: float = option(
        0.0, "Give each Ray worker this many GPUs; 0.1: ten share one.", group="Cluster", min=0
    )


@dataclass(frozen=True)
class IndexOptions:
    """Options of an index run.

    prepare: also store what the exact scorer computes per clip; for new stores only. The store of
        an EagleNet becomes six times larger, and re-ranking on a CPU takes half the time.
    workers: None: depends on the amount of work.
    device: ``auto`` uses a GPU if there is one; a model passed as an object stays where it is.
    executor: name in ``eaglenet.indexing.executor.EXECUTORS``.
    transcripts_from: another store, from which speech, on-screen text and descriptions of the same
        files are copied.
    """

    splitting: Splitting = field(default_factory=Splitting)
    quick: bool = option(
        False,
        "Stop when all files can be searched by keyframes; run again without it for exact clips.",
    )
    fast: bool = option(False, "Use the nearest keyframes instead of exact frames.", group="Clips")
    exclude: tuple[str, ...] = option(
        (),
        "Skip matching files, as in .gitignore; repeatable. Or write the patterns into "
        ".eaglenetignore files.",
        metavar="PATTERN",
    )
    drop_missing: bool = option(
        False, "Remove deleted and newly excluded files from the store.", group="Files"
    )
    retry: bool = option(False, "Try failed files again.", group="Files")
    read_text: bool = option(False, "Index on-screen text; needs eaglenet[ocr].")
    listen: str | None = option(
        None,
        "Index speech with a Whisper model: tiny, base, small, medium, large-v3, "
        "turbo, a folder or a hub id; needs eaglenet[speech].",
        metavar="MODEL",
    )
    describe: str | None = option(
        None,
        "Index sentences that a vision model on this OpenAI-compatible server writes "
        "about each clip.",
        group="Transcripts",
        metavar="URL#MODEL",
    )
    device: str = option("auto", "Encode on auto, cpu, cuda or mps.", group="Resources")
    follow_links: bool = option(
        False, "Follow links that lead out of the folders, and links to folders.", group="Files"
    )
    subtitles: bool = option(
        True, "Index subtitles inside and beside the files (.srt, .vtt, .ass).", group="Transcripts"
    )
    prepare: bool = option(
        False,
        "Make exact ranking of a new store faster, with six times the disk space.",
        group="Ranking",
    )
    hubness: HubnessChoice = option(
        None,
        "Rank clips lower that match every text of this file (one per line); own: the "
        "model's texts; off. Default: the store's setting.",
        group="Ranking",
        metavar="FILE",
        type=str,
    )
    precision: str = option(
        "auto", "Encode in fp32, bf16, int8, or auto (fastest).", group="Resources"
    )
    decode: str = option(
        "cpu",
        "Decode on cpu, gpu (NVIDIA, less confined), or auto: on both where a GPU encodes.",
        group="Resources",
    )
    workers: int | None = option(
        None,
        "Use this many decoding processes; default: depends on the work.",
        group="Resources",
        min=0,
    )
    limits: Limits = field(default_factory=Limits)
    executor: str = option(
        "local",
        "Run the work with local, ray, or an executor of a plug-in.",
        group="Cluster",
        metavar="NAME",
    )
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    transcripts_from: str | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise UsageError(f"workers must be 0 or more, not {self.workers}")
