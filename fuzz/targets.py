"""Fuzz targets: one function per reader of untrusted bytes.

Each takes any bytes and returns, or raises only what its reader documents. Coverage-guided fuzzing
runs them with Atheris (``fuzz_target.py``); ``tests/hostile/test_fuzz_targets.py`` runs them with
random damage, which needs nothing installed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from eaglenet.core.errors import EagleNetError

Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {}
REFUSALS = (EagleNetError, ValueError, OSError)
"""Errors that readers document; everything else is a finding."""


def target(*refusals: type[BaseException]) -> Callable[[Target], Target]:
    """Register a target; its reader may raise these errors, by default ``REFUSALS``."""

    def register(function: Target) -> Target:
        @functools.wraps(function)
        def run(content: bytes) -> None:
            with contextlib.suppress(*(refusals or REFUSALS)):
                function(content)

        TARGETS[function.__name__] = run
        return run

    return register


@contextlib.contextmanager
def file_with(content: bytes, suffix: str = "") -> Iterator[Path]:
    """Write the bytes to a file that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder, f"input{suffix}")
        path.write_bytes(content)
        yield path


@target(EagleNetError)
def video(content: bytes) -> None:
    """Probe and decode a video."""
    from eaglenet.core.frame_spec import FrameSpec
    from eaglenet.video.decoding import decode, probe

    with file_with(content) as path:
        probe(path)
        decode(path, FrameSpec(num_frames=2, size=16), threads=1)


@target(EagleNetError)
def image(content: bytes) -> None:
    """Decode an image, also with extreme sizes and orientations."""
    from eaglenet.video.images import decode_image

    with file_with(content) as path:
        decode_image(path, 16)


@target(EagleNetError)
def audio(content: bytes) -> None:
    """Decode the audio of a file."""
    from eaglenet.video.audio import AudioFormat, decode_audio

    with file_with(content) as path:
        decode_audio(path, 0.0, 2.0, AudioFormat(16_000, "mono"))


@target(EagleNetError, ValueError)
def embedded_subtitles(content: bytes) -> None:
    """Read the subtitles inside a video."""
    from eaglenet.transcripts.subtitles import read_embedded_subtitles

    with file_with(content) as path:
        read_embedded_subtitles(path)


@target(ValueError)
def subtitles(content: bytes) -> None:
    """Read a subtitle file; the first byte chooses its format."""
    from eaglenet.transcripts.subtitles import read_subtitles

    suffix = (".srt", ".vtt", ".ass", ".ssa")[content[0] % 4] if content else ".srt"
    with file_with(content[1:], suffix) as path:
        read_subtitles(path)


@target(ValueError)
def ignore_patterns(content: bytes) -> None:
    """Match names against the patterns of an ignore file."""
    from eaglenet.indexing.ignore import Pattern

    for line in content.decode("utf-8", "replace").splitlines()[:50]:
        with contextlib.suppress(ValueError):
            Pattern.parse(line)


@target(ValueError)
def worker_reply(content: bytes) -> None:
    """Unpack the reply of a hostile decoder."""
    import numpy as np

    from eaglenet.indexing.decoding import DecodedClips
    from eaglenet.indexing.inspection import Inspection
    from eaglenet.video.messages import layout_of, unpack

    kinds = (DecodedClips, Inspection)
    body = np.frombuffer(content[1:], np.uint8)
    unpack(layout_of(kinds[content[0] % len(kinds)] if content else Inspection), [body])


@target(ValueError, EOFError)
def worker_stream(content: bytes) -> None:
    """Receive a message piece by piece."""
    from eaglenet.video.messages import Receiver

    rest = memoryview(content)

    def read(buffer: memoryview) -> int:
        nonlocal rest
        count = min(len(buffer), len(rest), 7)
        buffer[:count] = rest[:count]
        rest = rest[count:]
        return count

    receiver = Receiver(read, 2**24)
    while receiver.advance() is None:
        pass


@target(ValueError)
def json_text(content: bytes) -> None:
    """Parse JSON with limits on its depth."""
    from eaglenet.core.untrusted import parse_json

    parse_json(content)


@target(ValueError, OSError)
def array_file(content: bytes) -> None:
    """Read an array of numpy."""
    from eaglenet.core.untrusted import read_array

    with file_with(content, ".npy") as path:
        read_array(path)


@target(ValueError)
def compressed(content: bytes) -> None:
    """Unpack gzip with a limit."""
    from eaglenet.core.untrusted import gunzip

    gunzip(content, 2**20)


@target(ValueError, OSError)
def archive(content: bytes) -> None:
    """Check the directory of a zip archive."""
    from eaglenet.core.untrusted import check_zip

    with file_with(content, ".zip") as path:
        check_zip(path)


@target()
def tags(content: bytes) -> None:
    """Read a table of tags."""
    from eaglenet.indexing.files import read_tags

    with file_with(content, ".csv") as path:
        read_tags(path)


@target()
def file_list(content: bytes) -> None:
    """Read a list of files to index."""
    from eaglenet.indexing.fetching import read_list

    with file_with(content, ".txt") as path:
        read_list(path)


@target(EagleNetError)
def merges(content: bytes) -> None:
    """Read the table of merges of a tokenizer, plain or compressed."""
    from eaglenet.encoders.tokenizers import ClipTokenizer

    with file_with(content, ".txt.gz" if content[:2] == b"\x1f\x8b" else ".txt") as path:
        ClipTokenizer.from_table(path)


@target(EagleNetError)
def hub_config(content: bytes) -> None:
    """Read the configuration of a model from a hub."""
    from eaglenet.core.untrusted import parse_json
    from eaglenet.encoders.clip_files import config_from_hub

    try:
        values = parse_json(content)
    except ValueError:
        return
    if isinstance(values, dict):
        config_from_hub(values)


@target(EagleNetError)
def openai_weights(content: bytes) -> None:
    """Read weights in OpenAI's archive, without running code."""
    from eaglenet.encoders.clip_files import read_openai_weights

    with file_with(content, ".pt") as path:
        read_openai_weights(path)


@target(EagleNetError)
def hub_headers(content: bytes) -> None:
    """Check the headers of a hub's response."""
    from eaglenet.encoders.hub import check_names

    lines = [line.partition(":") for line in content.decode("latin-1").splitlines()]
    check_names({name.lower(): value for name, _, value in lines})


@target(EagleNetError)
def shard_rows(content: bytes) -> None:
    """Unpack the rows that a shard found, and merge them with those of an honest one."""
    import numpy as np

    from eaglenet.cluster.shards import unpack_near, unpack_shortlist
    from eaglenet.core.untrusted import parse_json
    from eaglenet.search.shortlist import Shortlist, merge_shortlists
    from eaglenet.store.codes import NearestRows, merge_best

    own = np.arange(100, 110)
    for has_prefixes in (None, False, True):
        try:
            lists = parse_json(content)["lists"]
            if has_prefixes is None:
                shortlists = [unpack_shortlist(each, (0, 100)) for each in lists]
            else:
                near = [unpack_near(each, (0, 100), has_prefixes) for each in lists]
        except (ValueError, KeyError, TypeError):  # What the front catches.
            continue
        if has_prefixes is None:
            for shortlist in shortlists:
                honest = Shortlist(own, np.zeros(10, np.float32))
                merged = merge_shortlists([shortlist, honest], 20)
                assert len(set(merged.rows.tolist())) == len(merged.rows)
                assert np.isfinite(merged.cosines).all()
        else:
            distances = np.zeros(10, np.uint16)
            prefixes = distances if has_prefixes else None
            honest_near = NearestRows(own, distances, prefixes, scores=np.full(10, 2**20, np.int32))
            for each in near:
                rows = merge_best([each, honest_near], 10, 200)
                assert len(set(rows.tolist())) == len(rows)
                # An honest row at distance 0 with a high score is hidden by no claim of the other.
                assert len(each.rows) >= 10 or set(own) & set(rows.tolist())


if __name__ == "__main__":
    sys.stdout.write(os.linesep.join(TARGETS) + os.linesep)
