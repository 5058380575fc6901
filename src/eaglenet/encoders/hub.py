"""Local folders of hub models; downloads missing files.

A hub may be hostile (``HF_ENDPOINT``, plain HTTP). The client library uses the ``ETag`` of a
response as a file name in its cache, and resumes a download as long as any bytes arrive. Hooks on
its HTTP client refuse tags that are not plain names, responses that are too slow, and downloads
that are resumed too often.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from eaglenet.core import untrusted
from eaglenet.core.errors import (
    CheckpointError,
    EagleNetError,
    ModelNotFoundError,
    UsageError,
    shell_quote,
)
from eaglenet.core.files import expand_home
from eaglenet.encoders.catalogue import HUB_IDS, ST_PREFIX, no_such_model, require_licence

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
OPEN_CLIP_CONFIG = "open_clip_config.json"
OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


def shard_names(index: dict[str, Any], path: Path) -> list[str]:
    """Return the files that an index of weights lists; refuse names with a path."""
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(f"{path}: weight_map should be a table of names and files")
    shards = sorted(set(names.values()))
    for name in shards:
        if name != Path(name).name or not name or "\0" in name:
            raise CheckpointError(f"{path}: names {name!r:.60}, which is not a file beside it")
    return shards


SLOW_SECONDS = 30.0
"""Seconds of a download after which its speed is checked."""
MIN_BYTES_PER_SECOND = 4096
MAX_RESPONSES = 24
"""Maximum responses per download: checks of the file, redirects and resumed downloads."""
NAME = re.compile(r"[0-9A-Za-z_-]{1,128}")
"""Tags are hashes: SHA-1 or SHA-256 on the hub, others on mirrors."""
NAME_HEADERS = ("x-linked-etag", "etag", "x-repo-commit")


class HostileHubError(EagleNetError):
    """A response of a hub that must not be used."""


class ResponseGuard:
    """Response hook of an HTTP client (httpx)."""

    def __init__(self) -> None:
        self.num_responses = 0

    def __call__(self, response: Any) -> None:
        self.num_responses += 1
        if self.num_responses > MAX_RESPONSES:
            raise HostileHubError("the download was interrupted too often")
        check_names(response.headers)
        response.stream = watch_speed(response.stream)


def check_names(headers: Any) -> None:
    """Raise ``HostileHubError`` if a header that becomes a file name is not a plain name."""
    for header in NAME_HEADERS:
        value = headers.get(header)
        if value is None:
            continue
        name = value.removeprefix("W/").strip('"')
        # Content networks append the number of parts after a hyphen.
        if not NAME.fullmatch(name):
            raise HostileHubError(f"the hub sent a {header} that is not a hash: {value[:80]!r}")


def watch_speed(stream: Any) -> Any:
    """Return a stream that fails if it is slower than ``MIN_BYTES_PER_SECOND``."""
    # The client checks for its base class, which differs between versions.
    base = next(each for each in type(stream).__mro__ if each.__name__ == "SyncByteStream")

    def iterate(self: Any) -> Iterator[bytes]:
        start, size = time.monotonic(), 0
        for chunk in stream:
            size += len(chunk)
            seconds = time.monotonic() - start
            if seconds > SLOW_SECONDS and size < MIN_BYTES_PER_SECOND * seconds:
                raise HostileHubError(f"the download is too slow ({size} bytes in {seconds:.0f} s)")
            yield chunk

    def close(self: Any) -> None:
        stream.close()

    return type("WatchedStream", (base,), {"__iter__": iterate, "close": close})()


_SESSION_LOCK = threading.RLock()
"""Held during a download, since threads share the session of the library, and so its guard."""


@contextmanager
def guard_downloads() -> Iterator[None]:
    """Check all responses that the hub's library receives inside the block."""
    from huggingface_hub.utils import get_session

    with _SESSION_LOCK:
        session, guard = get_session(), ResponseGuard()
        hooks = session.event_hooks
        session.event_hooks = {**hooks, "response": [*hooks.get("response", []), guard]}
        try:
            yield
        finally:
            session.event_hooks = hooks


SECONDS_BETWEEN_LINES = 10.0


def download_progress() -> type[Any]:
    """Return a class with which the hub's library displays downloads: name, size, speed."""
    import tqdm

    class DownloadBar(tqdm.tqdm):  # type: ignore[misc]
        """A bar in a terminal; elsewhere lines with name, megabytes and speed."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)  # An option of the library's subclass, unknown to tqdm.
            self._last_line = -SECONDS_BETWEEN_LINES
            self._start = time.monotonic()
            options["disable"] = False
            # Without a short name the library passes a long URL, which would hide the speed in 80
            # columns.
            options["desc"] = str(options.get("desc") or "").rstrip(": ").rsplit("/", 1)[-1]
            super().__init__(*arguments, **options)

        def display(self, *arguments: Any, **options: Any) -> Any:
            if sys.stderr.isatty():
                return super().display(*arguments, **options)
            now = time.monotonic()
            is_done = self.total is not None and self.n >= self.total
            if is_done or now - self._last_line >= SECONDS_BETWEEN_LINES:
                self._last_line = now
                speed = self.n / max(now - self._start, 1e-3) / 1e6
                size = "?" if self.total is None else f"{self.total / 1e6:.1f}"
                progress = f"{self.n / 1e6:.1f} of {size} MB, {speed:.1f} MB/s"
                sys.stderr.write(f"downloading {self.desc.rstrip(': ')}: {progress}\n")
            return True

    return DownloadBar


TIMEOUT = 15
"""Seconds to wait for the first response of a hub."""
TIMM = "architecture"
"""Key in timm's ``config.json``, which may lie beside open_clip's files; transformers has none."""
VOCABULARIES = (("tokenizer.json",), ("spiece.model",), ("vocab.json", "merges.txt"))


def find_hub_folder(name: str) -> Path:
    """Return the local folder of a hub model; download it if it is not in the cache."""
    identifier, revision = split_revision(HUB_IDS.get(name, name))
    if not is_hub_id(identifier):
        raise _not_found(name, "no such folder or file")
    folder = cached_folder(identifier, revision)
    if folder is not None:
        return folder
    return _fetch_model(name, revision, lambda fetch: _fetch_files(fetch, identifier))


def _fetch_model(
    name: str, revision: str | None, fetch_files: Callable[[Callable[[str], Path]], Path]
) -> Path:
    """Download a model with ``fetch_files`` if its licence is accepted."""
    from huggingface_hub import constants

    identifier, _ = split_revision(HUB_IDS.get(name, name))
    if constants.HF_HUB_OFFLINE:
        raise _not_found(name, "offline mode is on")
    require_licence(identifier)
    require_reachable(constants.ENDPOINT, identifier)
    fetch = partial(_download, identifier, revision=revision)
    try:
        require_licence(identifier, _model_page(fetch))
        return fetch_files(fetch)
    except UsageError:
        raise
    except Exception as error:  # Network, authorisation, unknown model, hostile hub.
        lines = str(error).splitlines() or [type(error).__name__]
        raise _not_found(name, f"the hub answered: {lines[0]}") from error


def _download(
    identifier: str, file: str, revision: str | None = None, *, is_local: bool = False
) -> Path:
    """Return one file of a hub model; with ``is_local``, only from the cache."""
    import huggingface_hub

    # A file of the cache is not looked up behind the downloads of other threads.
    with nullcontext() if is_local else _quiet_hub():
        path = huggingface_hub.hf_hub_download(
            identifier,
            file,
            revision=revision,
            local_files_only=is_local,
            tqdm_class=None if is_local else download_progress(),
        )
    return Path(path)


def _model_page(fetch: Callable[[str], Path]) -> str:
    """Return the README of a model, whose header names its licence; "" if it has none."""
    try:
        content = untrusted.read_bytes(fetch("README.md"), untrusted.MAX_CONFIG)
        return content.decode(errors="replace")
    except HostileHubError:
        raise
    except Exception:  # Missing or unreadable; downloading the weights reports the problem.
        return ""


def require_licence_on_hub(identifier: str) -> None:
    """Check the licence of a model that another library is about to download from the hub."""
    import huggingface_hub
    from huggingface_hub import constants

    for file in OPEN_CLIP_WEIGHTS:
        if huggingface_hub.try_to_load_from_cache(identifier, file) is not None:
            return
    if not constants.HF_HUB_OFFLINE:
        require_reachable(constants.ENDPOINT, identifier)
        require_licence(identifier, _model_page(partial(_download, identifier)))


def require_reachable(endpoint: str, name: str) -> None:
    """Raise ``ModelNotFoundError`` if the hub does not answer within ``TIMEOUT``.

    The library retries every file, so it takes minutes to report an unreachable hub. Any response
    counts, even a refusal. The request is for a file, since a hub may serve its front page, but no
    files.
    """
    address = f"{endpoint}/{name}/resolve/main/config.json"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, method="HEAD"), timeout=TIMEOUT
        ):
            return
    except urllib.error.HTTPError:
        return
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        is_timeout = isinstance(error, TimeoutError) or isinstance(reason, TimeoutError)
        cause = f"no answer in {TIMEOUT} s" if is_timeout else str(reason)
        raise ModelNotFoundError(
            f"{name} is not on this machine, and {endpoint} cannot be reached ({cause})",
            "use small (--model small), which comes with the package, or a model folder; or run "
            "this command once with a network",
        ) from error


def is_hub_id(name: str) -> bool:
    """Return whether the name has the form of a hub id; most paths do not.

    >>> is_hub_id("openai/clip-vit-base-patch32"), is_hub_id("my models/mine"), is_hub_id("../run")
    (True, False, False)
    """
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def split_revision(name: str) -> tuple[str, str | None]:
    """Split ``owner/model@commit``; without ``@`` the revision is None, the newest one."""
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{7,40})", name)
    return (match[1], match[2]) if match else (name, None)


OTHER_RUNTIMES = (
    "*.onnx*", "onnx/*", "openvino/*", "coreml/*", "*.msgpack", "*.h5", "*.npz", "*.gguf", "*.ot",
)  # fmt: skip
PINNED = {"google/videoprism-lvt-base-f16r288": "fb6de9f0eb7bc285be86bdca1cf7daa3e3ef51ff"}
"""Commits of hub models whose newest revision has no weights in the format of transformers."""


def split_st_name(name: str) -> tuple[str, int | None]:
    """Split ``st:MODEL:DIM`` into the model and the dimension; None if it is missing.

    >>> split_st_name("st:owner/model:512"), split_st_name("st:/models/a")
    (('owner/model', 512), ('/models/a', None))
    """
    model = name.removeprefix(ST_PREFIX)
    source, _, number = model.rpartition(":")
    if source and re.fullmatch(r"[0-9]{1,6}", number) and not expand_home(model).is_dir():
        return source, int(number)
    return model, None


WEIGHTS = (".safetensors", ".bin")
"""Suffixes of the weights that are downloaded."""


def find_snapshot(name: str) -> Path:
    """Return the local folder of a hub model with all its files, for other libraries.

    Downloads it if it is not in the cache, without weights for other runtimes.
    """
    identifier, revision = split_revision(name)
    if not is_hub_id(identifier):
        raise ModelNotFoundError(
            f"there is no model {ST_PREFIX}{name} (no such folder)",
            f"use {ST_PREFIX}FOLDER or {ST_PREFIX}OWNER/MODEL, or another of `eaglenet models`",
        )

    def fetch_all(fetch: Callable[[str], Path]) -> Path:
        import huggingface_hub

        # All other files come from the commit of the first one.
        folder = fetch("config.json").parent
        with _quiet_hub():
            names = huggingface_hub.HfApi().list_repo_files(identifier, revision=folder.name)
        for file in select_files(names):
            _download(identifier, file, folder.name)
        return folder

    folder = cached_snapshot(name)
    if folder is not None:
        return folder
    return _fetch_model(name, revision or PINNED.get(identifier), fetch_all)


def select_files(names: Sequence[str]) -> list[str]:
    """Select the files that libraries based on torch read; ignore names that are not plain.

    Weights come last, those of the main folder (or else of the first one) at the end: a model
    counts as cached once they are there.

    >>> select_files(["config.json", "onnx/model.onnx", "../a", "1_Dense/model.safetensors"])
    ['config.json', '1_Dense/model.safetensors']
    >>> select_files(["model.safetensors", "pytorch_model.bin"])
    ['model.safetensors']
    >>> select_files(["0/model.bin", "1/model.bin", "model.safetensors", "modules.json"])
    ['modules.json', '1/model.bin', '0/model.bin', 'model.safetensors']
    """
    plain = [name for name in names if re.fullmatch(r"\w[\w.+-]*(/\w[\w.+-]*)*", name)]
    safe_folders = {name.rpartition("/")[0] for name in plain if name.endswith(".safetensors")}
    selected = [
        name
        for name in plain
        if not any(fnmatch(name, pattern) for pattern in OTHER_RUNTIMES)
        and not (name.endswith(".bin") and name.rpartition("/")[0] in safe_folders)
    ]
    weights = [name for name in selected if name.endswith(WEIGHTS)]
    others = [name for name in selected if name not in weights]
    return [*others, *sorted(weights, key=lambda name: name.rpartition("/")[0], reverse=True)]


def cached_snapshot(name: str) -> Path | None:
    """Return the cached folder of a hub model; None unless all its weights are there."""
    identifier, revision = split_revision(name)
    try:
        import huggingface_hub

        folder = Path(
            huggingface_hub.snapshot_download(
                identifier, revision=revision or PINNED.get(identifier), local_files_only=True
            )
        )
        # An interrupted download leaves a folder without all weights.
        indices = list(folder.rglob("*.index.json"))
        shards = [
            index.parent / shard
            for index in indices
            for shard in shard_names(untrusted.read_object(index, untrusted.MAX_VOCABULARY), index)
        ]
        encoder = _encoder_folder(folder)
        files = encoder.glob("*") if (encoder / "config.json").is_file() else folder.rglob("*")
        weights = shards or [file for file in files if file.suffix in WEIGHTS]
        return folder if weights and all(file.is_file() for file in weights) else None
    except Exception:  # Not cached, partly cached, or the hub's library is not installed.
        return None


def _encoder_folder(folder: Path) -> Path:
    """Return the folder of the first module of an ``st:`` model, whose weights come last."""
    path = folder / "modules.json"
    modules = untrusted.read_json(path) if path.is_file() else []
    return folder / modules[0]["path"] if modules else folder


def exact_name(name: str) -> str:
    """Return a hub model as ``owner/model@commit`` of the cached commit, other names unchanged.

    The folder of an ``st:`` model becomes absolute.
    """
    name = HUB_IDS.get(name, name)
    if name.startswith(ST_PREFIX):
        source, dim = split_st_name(name)
        path = expand_home(source)
        if path.is_dir():
            source = os.path.abspath(path)
        elif split_revision(source)[1] is None:
            snapshot = cached_snapshot(source)
            source = source if snapshot is None else f"{source}@{snapshot.name}"
        return f"{ST_PREFIX}{source}" + (f":{dim}" if dim else "")
    identifier, revision = split_revision(name)
    if revision is not None or not is_hub_id(identifier):
        return name if revision is None else f"{identifier}@{revision}"
    folder = cached_folder(identifier)
    if folder is None or not re.fullmatch(r"[0-9a-f]{7,40}", folder.name):
        return identifier
    return f"{identifier}@{folder.name}"


def cached_folder(identifier: str, revision: str | None = None) -> Path | None:
    """Return the cached folder of a hub model; None unless all its files are there."""
    fetch = partial(_download, identifier, revision=revision, is_local=True)
    try:
        return _fetch_files(fetch, identifier)
    except Exception:  # Not cached, or partly cached.
        return None


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Check the hub's responses, and hide messages about retries, since an error follows."""
    hub = logging.getLogger("huggingface_hub")
    with guard_downloads():
        level = hub.level
        hub.setLevel(logging.ERROR)
        try:
            yield
        finally:
            hub.setLevel(level)


def _fetch_files(fetch: Callable[[str], Path], name: str) -> Path:
    """Fetch config, weights (all shards) and vocabulary; return their folder.

    Knows three layouts: transformers', open_clip's, and Meta's, a file named like the repository.
    """
    try:
        config = fetch("config.json")
        folder = config.parent
        if TIMM in untrusted.read_object(config, untrusted.MAX_VOCABULARY):
            raise FileNotFoundError("config.json is of timm's image tower alone")
        # Before the weights: a model counts as cached once these are there. CLIP's pixel statistics
        # are the default; a tokenizer may need no other file.
        _fetch_optional(fetch, "preprocessor_config.json", "tokenizer_config.json")
        weights = _first_of(fetch, [(name,) for name in WEIGHT_FILES])
    except HostileHubError:
        raise
    except Exception as error:  # Another layout, or no such model.
        try:
            return _fetch_other_layout(fetch, name)
        except Exception:
            raise error from None
    if weights.name.endswith(".index.json"):
        for shard in shard_names(untrusted.read_object(weights, untrusted.MAX_VOCABULARY), weights):
            fetch(shard)
    _first_of(fetch, VOCABULARIES)
    return folder


def _fetch_other_layout(fetch: Callable[[str], Path], name: str) -> Path:
    try:
        folder = fetch(OPEN_CLIP_CONFIG).parent
    except Exception:
        return fetch(f"{name.split('/')[-1]}.pt").parent  # Its vocabulary is CLIP's.
    _fetch_optional(fetch, "tokenizer.json", "tokenizer_config.json")
    _first_of(fetch, [(file,) for file in OPEN_CLIP_WEIGHTS])
    return folder


def _fetch_optional(fetch: Callable[[str], Path], *files: str) -> None:
    """Fetch the files that exist; a file that cannot be fetched is an error.

    Without it, the model would read its inputs in another way, and find other videos.
    """
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    for file in files:
        try:
            fetch(file)
        except EntryNotFoundError as error:
            # If the hub does not answer, the library raises this error with the cause.
            if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
                raise


def _first_of(fetch: Callable[[str], Path], choices: Sequence[Sequence[str]]) -> Path:
    """Fetch the first set of files that exists; raise the last error if none does."""
    for position, files in enumerate(choices):
        try:
            return [fetch(file) for file in files][-1]
        except Exception:
            if position == len(choices) - 1:
                raise
    raise AssertionError("choices is never empty")


def _not_found(name: str, cause: str) -> ModelNotFoundError:
    identifier, revision = split_revision(HUB_IDS.get(name, name))
    if not is_hub_id(identifier):
        return no_such_model(name, cause)
    fetch = f"hf download {shell_quote(identifier)}"
    if revision is not None:
        fetch += f" --revision {shell_quote(revision)}"
    from huggingface_hub import constants

    return ModelNotFoundError(
        f"model {name!r} was not found ({cause}; looked in {name}, {constants.HF_HUB_CACHE})",
        "use small (--model small), which comes with the package, or download the model with a "
        f"network: {fetch}",
    )
