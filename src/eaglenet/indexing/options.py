"""Options of an index run, for Python and for the command line.

Quick to import: the command line makes its options from these classes
(:mod:`eaglenet.cli.dataclass_options`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from eaglenet.core.frame_spec import Splitting
from eaglenet.video.limits import Limits

OWN, OFF = "own", "off"
HubnessChoice = str | Sequence[str] | None
"""``own`` (the model's bank), ``off``, a file of texts, or texts. None: a store keeps its bank, and
a new one takes the model's if there is one."""


@dataclass(frozen=True)
class ClusterOptions:
    """Where a cluster is, and what one of its workers gets.

    address: None for the address in the environment, or for a cluster on this machine alone.
    gpus_per_worker: a fraction if several workers share a GPU; 0 encodes on the CPU.
    """

    address: str | None = field(
        default=None,
        metadata={
            "option": "--ray-address",
            "group": "Cluster",
            "metavar": "HOST:PORT",
            "help": "Connect to this Ray cluster; default: RAY_ADDRESS.",
        },
    )
    gpus_per_worker: float = field(
        default=0.0,
        metadata={
            "group": "Cluster",
            "min": 0,
            "help": "Give each Ray worker this many GPUs; 0.1: ten share one.",
        },
    )


@dataclass(frozen=True)
class IndexOptions:
    """Options of an index run.

    prepare: for a new store, also keep what the exact scorer computes per clip. Takes six times the
        disk for an EagleNet; re-ranking takes half the time on a CPU.
    workers: None chooses by the amount of work.
    device: ``auto`` uses a GPU if there is one; a model passed as an object stays where it is.
    executor: name in ``eaglenet.indexing.executor.EXECUTORS``.
    transcripts_from: another store, from which speech, on-screen text and descriptions of the same
        files are copied.
    """

    splitting: Splitting = field(default_factory=Splitting)
    quick: bool = field(
        default=False,
        metadata={
            "help": "Stop when all can be searched by keyframes; a later run without it completes "
            "the clips."
        },
    )
    fast: bool = field(
        default=False,
        metadata={"group": "Clips", "help": "Use the nearest keyframes instead of exact frames."},
    )
    exclude: tuple[str, ...] = field(
        default=(),
        metadata={
            "metavar": "PATTERN",
            "help": "Skip matching files, as in .gitignore; repeatable. Or write the patterns into "
            ".eaglenetignore files.",
        },
    )
    drop_missing: bool = field(
        default=False,
        metadata={"help": "Drop files that were deleted or are excluded now from the store."},
    )
    retry: bool = field(default=False, metadata={"help": "Try files again that failed before."})
    read_text: bool = field(
        default=False, metadata={"help": "Index on-screen text; needs eaglenet[ocr]."}
    )
    listen: str | None = field(
        default=None,
        metadata={
            "metavar": "MODEL",
            "help": "Index speech with a Whisper model: tiny, base, small, medium, large-v3, "
            "turbo, a folder or a hub id; needs eaglenet[speech].",
        },
    )
    describe: str | None = field(
        default=None,
        metadata={
            "metavar": "URL#MODEL",
            "help": "Index sentences that a vision model on this OpenAI-compatible server writes "
            "about each clip.",
        },
    )
    device: str = field(default="auto", metadata={"help": "Encode on auto, cpu, cuda or mps."})
    follow_links: bool = field(
        default=False,
        metadata={
            "group": "Files",
            "help": "Follow links that lead out of the folders, and links to folders.",
        },
    )
    subtitles: bool = field(
        default=True,
        metadata={
            "group": "Files",
            "help": "Index subtitles inside and beside the files (.srt, .vtt, .ass).",
        },
    )
    prepare: bool = field(
        default=False,
        metadata={
            "group": "Ranking",
            "help": "Make exact ranking of a new store faster, for six times the disk.",
        },
    )
    hubness: HubnessChoice = field(
        default=None,
        metadata={
            "group": "Ranking",
            "metavar": "FILE",
            "type": str,
            "help": "Rank clips lower that match every text of this file (one per line); own: the "
            "model's texts; off. Default: as the store is.",
        },
    )
    precision: str = field(
        default="auto",
        metadata={"group": "Resources", "help": "Encode in fp32, bf16, int8, or auto (fastest)."},
    )
    decode: str = field(
        default="auto",
        metadata={
            "group": "Resources",
            "help": "Decode on cpu, gpu (NVIDIA), or auto: on both where a GPU encodes.",
        },
    )
    workers: int | None = field(
        default=None,
        metadata={
            "group": "Resources",
            "min": 0,
            "help": "Use this many decoding processes; default: depends on the work.",
        },
    )
    limits: Limits = field(default_factory=Limits)
    executor: str = field(
        default="local",
        metadata={
            "group": "Cluster",
            "metavar": "NAME",
            "help": "Run the work on local, ray, or an executor of a plug-in.",
        },
    )
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    transcripts_from: str | None = None
