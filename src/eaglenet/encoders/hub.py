"""Where a hub model lies on this machine; the network is asked only for what is missing."""

from __future__ import annotations

import http.client
import logging
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from eaglenet.core import untrusted
from eaglenet.core.errors import ModelNotFoundError, UsageError, shell_quote
from eaglenet.encoders.catalogue import HUB_IDS, ST_PREFIX, require_licence
from eaglenet.encoders.file_names import (
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_WEIGHTS,
    WEIGHT_FILES,
    shard_names,
)
from eaglenet.encoders.hub_guard import HostileHubError, guard_downloads

# Downloads told as they go: a bar on a terminal, now and then a line elsewhere.

SECONDS_BETWEEN_LINES = 10.0


def download_progress() -> type[Any]:
    """The class that the hub's library shows a download with: name, size, speed."""
    import tqdm

    class Told(tqdm.tqdm):  # type: ignore[misc]
        """A bar on a terminal; lines with name, megabytes and speed where there is none."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)  # the library's own subclass knows it, tqdm does not
            self._told = -SECONDS_BETWEEN_LINES
            self._begun = time.monotonic()
            options["disable"] = False
            # The library shows a long address where it has no short name, and of a line of 80
            # columns nothing is left for the speed.
            options["desc"] = str(options.get("desc") or "").rstrip(": ").rsplit("/", 1)[-1]
            super().__init__(*arguments, **options)

        def display(self, *arguments: Any, **options: Any) -> Any:
            if sys.stderr.isatty():
                return super().display(*arguments, **options)
            now = time.monotonic()
            is_done = self.total is not None and self.n >= self.total
            if is_done or now - self._told >= SECONDS_BETWEEN_LINES:
                self._told = now
                speed = self.n / max(now - self._begun, 1e-3) / 1e6
                size = "?" if self.total is None else f"{self.total / 1e6:.1f}"
                done = f"{self.n / 1e6:.1f} of {size} MB, {speed:.1f} MB/s"
                sys.stderr.write(f"downloading {self.desc.rstrip(': ')}: {done}\n")
            return True

    return Told


PATIENCE = 15
"""Seconds that a hub may take to say anything at all."""
TIMM = "architecture"
"""What a ``config.json`` of timm has and none of transformers; open_clip's files lie beside it."""
VOCABULARIES = (("tokenizer.json",), ("spiece.model",), ("vocab.json", "merges.txt"))


def find_hub_folder(name: str) -> Path:
    """The local folder of a hub model: from the cache where it is there, else downloaded."""
    identifier, revision = split_revision(HUB_IDS.get(name, name))
    # No import where the name cannot be a hub id: the message is the same, the wait is not.
    if not is_hub_id(identifier):
        raise _not_found(name, [Path(name)], "no such folder or file")
    import huggingface_hub
    from huggingface_hub import constants

    def fetch(file: str, *, is_local: bool) -> Path:
        with _quiet_hub():
            path = huggingface_hub.hf_hub_download(
                identifier,
                file,
                revision=revision,
                local_files_only=is_local,
                tqdm_class=None if is_local else download_progress(),
            )
        return Path(path)

    locations = [Path(name), Path(constants.HF_HUB_CACHE)]
    try:
        return _fetch_files(lambda file: fetch(file, is_local=True), identifier)
    except Exception as error:  # not cached, or cached in part
        if constants.HF_HUB_OFFLINE:
            raise _not_found(name, locations, "offline mode is on") from error
    require_licence(identifier)
    knock(constants.ENDPOINT, identifier)
    try:
        page = _page(lambda: fetch("README.md", is_local=False))
    except HostileHubError as error:
        raise _not_found(name, locations, str(error)) from error
    require_licence(identifier, page)
    try:
        return _fetch_files(lambda file: fetch(file, is_local=False), identifier)
    except HostileHubError as error:
        raise _not_found(name, locations, str(error)) from error
    except Exception as error:  # network, authorisation, no such model: each with its own class
        lines = str(error).splitlines() or [type(error).__name__]
        cause = f"the hub answered: {lines[0]}"
        raise _not_found(name, locations, cause) from error


def _page(fetch: Callable[[], Path]) -> str:
    """The README of a model, whose head names its licence; "" where it has none."""
    try:
        return untrusted.read_bytes(fetch(), untrusted.MAX_CONFIG).decode(errors="replace")
    except HostileHubError:
        raise
    except Exception:  # no such file, or none that can be read: the weights say what is wrong
        return ""


def require_licence_on_hub(identifier: str) -> None:
    """Ask for the licence of a model that another library is about to download from the hub."""
    import huggingface_hub
    from huggingface_hub import constants

    for file in OPEN_CLIP_WEIGHTS:
        if huggingface_hub.try_to_load_from_cache(identifier, file) is not None:
            return
    if not constants.HF_HUB_OFFLINE:
        knock(constants.ENDPOINT, identifier)
        with _quiet_hub():
            page = _page(lambda: Path(huggingface_hub.hf_hub_download(identifier, "README.md")))
        require_licence(identifier, page)


def knock(endpoint: str, name: str) -> None:
    """Ask the hub for a sign of life, with a short patience.

    The library tries again and again, file by file: minutes pass before it says that nobody is
    there. Any answer, a refusal too, is a sign of life; it is asked for a file as the library does,
    because what serves a hub's front page may answer when nothing behind it does.
    """
    address = f"{endpoint}/{name}/resolve/main/config.json"
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, method="HEAD"), timeout=PATIENCE
        ):
            return
    except urllib.error.HTTPError:
        return
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        waited = isinstance(error, TimeoutError) or isinstance(reason, TimeoutError)
        cause = f"no answer in {PATIENCE} s" if waited else str(reason)
        raise ModelNotFoundError(
            f"{name} is not on this machine, and {endpoint} cannot be reached ({cause})",
            "give small (--model small), which comes with the package, or a model folder; or run "
            "this once where there is a network",
        ) from error


def is_hub_id(name: str) -> bool:
    """Whether a hub could know the name; paths of folders mostly are none.

    >>> is_hub_id("openai/clip-vit-base-patch32"), is_hub_id("my models/mine"), is_hub_id("../run")
    (True, False, False)
    """
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def split_revision(name: str) -> tuple[str, str | None]:
    """``owner/model@commit`` in its two parts; without ``@`` the newest revision is meant."""
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{7,40})", name)
    return (found[1], found[2]) if found else (name, None)


OTHER_RUNTIMES = (
    "*.onnx*", "onnx/*", "openvino/*", "coreml/*", "*.msgpack", "*.h5", "*.npz", "*.gguf", "*.ot",
)  # fmt: skip
PINNED = {"google/videoprism-lvt-base-f16r288": "fb6de9f0eb7bc285be86bdca1cf7daa3e3ef51ff"}
"""Commits of hub models whose newest revision has no weights in the format of transformers."""


def split_st_name(name: str) -> tuple[str, int | None]:
    """Split ``st:MODEL:DIM`` into the model and the dimension, which may be missing.

    >>> split_st_name("st:owner/model:512"), split_st_name("st:/models/a")
    (('owner/model', 512), ('/models/a', None))
    """
    model = name.removeprefix(ST_PREFIX)
    source, _, number = model.rpartition(":")
    if source and re.fullmatch(r"[0-9]{1,6}", number) and not Path(model).expanduser().is_dir():
        return source, int(number)
    return model, None


def find_snapshot(name: str) -> Path:
    """The local folder of a hub model with all its files, for libraries that read them themselves.

    It is downloaded if it is not here; weights for other runtimes are left out.
    """
    identifier, revision = split_revision(name)
    if not is_hub_id(identifier):
        raise ModelNotFoundError(
            f"there is no model {ST_PREFIX}{name} (no such folder)",
            f"give {ST_PREFIX}FOLDER or {ST_PREFIX}OWNER/MODEL, or another of `eaglenet models`",
        )
    import huggingface_hub
    from huggingface_hub import constants

    locations = [Path(name), Path(constants.HF_HUB_CACHE)]
    folder = cached_snapshot(name)
    if folder is not None:
        return folder
    if constants.HF_HUB_OFFLINE:
        raise _not_found(name, locations, "offline mode is on")
    require_licence(identifier)
    knock(constants.ENDPOINT, identifier)

    def fetch(file: str, commit: str | None) -> Path:
        with _quiet_hub():
            path = huggingface_hub.hf_hub_download(
                identifier, file, revision=commit, tqdm_class=download_progress()
            )
        return Path(path)

    revision = revision or PINNED.get(identifier)
    try:
        require_licence(identifier, _page(lambda: fetch("README.md", revision)))
        # All further files are of the commit of the first one.
        folder = fetch("config.json", revision).parent
        with _quiet_hub():
            names = huggingface_hub.HfApi().list_repo_files(identifier, revision=folder.name)
        for file in select_files(names):
            fetch(file, folder.name)
    except UsageError:
        raise
    except Exception as error:  # network, authorisation, no such model, a hub that lies
        lines = str(error).splitlines() or [type(error).__name__]
        raise _not_found(name, locations, f"the hub answered: {lines[0]}") from error
    return folder


def select_files(names: Sequence[str]) -> list[str]:
    """Files of a hub model that libraries on torch read: plain relative names alone.

    >>> select_files(["config.json", "onnx/model.onnx", "../a", "1_Dense/model.safetensors"])
    ['config.json', '1_Dense/model.safetensors']
    >>> select_files(["model.safetensors", "pytorch_model.bin"])
    ['model.safetensors']
    """
    plain = [name for name in names if re.fullmatch(r"\w[\w.+-]*(/\w[\w.+-]*)*", name)]
    safe = {name.rpartition("/")[0] for name in plain if name.endswith(".safetensors")}
    return [
        name
        for name in plain
        if not any(fnmatch(name, pattern) for pattern in OTHER_RUNTIMES)
        and not (name.endswith(".bin") and name.rpartition("/")[0] in safe)
    ]


def cached_snapshot(name: str) -> Path | None:
    """Find the folder of a hub model on this machine; None unless all its weights are there."""
    import huggingface_hub

    identifier, revision = split_revision(name)
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                identifier, revision=revision or PINNED.get(identifier), local_files_only=True
            )
        )
        # A download that was interrupted leaves a folder without all weights.
        indices = list(folder.rglob("*.index.json"))
        shards = [
            index.parent / shard
            for index in indices
            for shard in shard_names(untrusted.read_object(index, untrusted.MAX_VOCABULARY), index)
        ]
        weights = shards or [*folder.rglob("*.safetensors"), *folder.rglob("*.bin")]
        return folder if weights and all(file.is_file() for file in weights) else None
    except Exception:  # not cached, or cached in part
        return None


def exact_name(name: str) -> str:
    """A hub model as ``owner/model@commit``, the one that lies here; any other name as it is.

    The folder of an ``st:`` model is made absolute.
    """
    name = HUB_IDS.get(name, name)
    if name.startswith(ST_PREFIX):
        source, dim = split_st_name(name)
        path = Path(source).expanduser()
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


def cached_folder(identifier: str) -> Path | None:
    """Where a hub model lies on this machine, whole; None where it would have to be downloaded."""
    import huggingface_hub

    def fetch(file: str) -> Path:
        with _quiet_hub():
            return Path(
                huggingface_hub.hf_hub_download(
                    identifier, file, revision=None, local_files_only=True
                )
            )

    try:
        return _fetch_files(fetch, identifier)
    except Exception:  # not cached, or cached in part
        return None


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Check the hub's responses, and hide retries: the error that follows says all of it."""
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        with guard_downloads():
            yield
    finally:
        hub.setLevel(level)


def _fetch_files(fetch: Callable[[str], Path], name: str) -> Path:
    """The folder, once it holds config, weights (every shard) and a vocabulary.

    Three layouts: transformers', open_clip's, and Meta's one file named like the repository.
    """
    try:
        config = fetch("config.json")
        folder = config.parent
        if TIMM in untrusted.read_object(config, untrusted.MAX_VOCABULARY):
            raise FileNotFoundError("config.json is of timm's image tower alone")
        weights = _first_of(fetch, [(name,) for name in WEIGHT_FILES])
    except HostileHubError:
        raise
    except Exception as error:  # not in transformers' layout, or not there at all
        try:
            return _fetch_other_layout(fetch, name)
        except Exception:
            raise error from None
    if weights.name.endswith(".index.json"):
        for shard in shard_names(untrusted.read_object(weights, untrusted.MAX_VOCABULARY), weights):
            fetch(shard)
    _first_of(fetch, VOCABULARIES)
    for optional in ("preprocessor_config.json", "tokenizer_config.json"):
        # CLIP's own pixel statistics are the default; a tokenizer may be whole by itself.
        with suppress(Exception):
            fetch(optional)
    return folder


def _fetch_other_layout(fetch: Callable[[str], Path], name: str) -> Path:
    try:
        folder = fetch(OPEN_CLIP_CONFIG).parent
    except Exception:
        return fetch(f"{name.split('/')[-1]}.pt").parent  # its vocabulary is CLIP's
    _first_of(fetch, [(file,) for file in OPEN_CLIP_WEIGHTS])
    for optional in ("tokenizer.json", "tokenizer_config.json"):
        with suppress(Exception):
            fetch(optional)
    return folder


def _first_of(fetch: Callable[[str], Path], choices: Sequence[Sequence[str]]) -> Path:
    """The first set of files that is there; the last failure where none is."""
    for position, files in enumerate(choices):
        try:
            return [fetch(file) for file in files][-1]
        except Exception:
            if position == len(choices) - 1:
                raise
    raise AssertionError("choices is never empty")


def _not_found(name: str, locations: list[Path], cause: str) -> ModelNotFoundError:
    """In one short line; a name that no hub could know is not asked for there."""
    identifier, revision = split_revision(HUB_IDS.get(name, name))
    if not is_hub_id(identifier):
        return ModelNotFoundError(
            f"there is no model {name!r} ({cause})",
            "give small (--model small), which comes with the package, another of "
            "`eaglenet models`, or a model folder",
        )
    fetch = f"hf download {shell_quote(identifier)}"
    if revision is not None:
        fetch += f" --revision {shell_quote(revision)}"
    looked_in = ", ".join(str(location) for location in locations)
    return ModelNotFoundError(
        f"model {name!r} was not found ({cause}; looked in {looked_in})",
        "give small (--model small), which comes with the package, or get it where there is a "
        f"network: {fetch}",
    )
