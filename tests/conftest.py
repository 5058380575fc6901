"""Shapes in signatures are checked in every test; tests are single-threaded and offline."""

import contextlib
import functools
import gc
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Kernels run under Triton's interpreter where there is no GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")
# `torch.set_num_threads` does not reach the library that multiplies on ARM: its idle threads spin,
# and a small product takes five times as long. Read when torch is imported, here and in children.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A child that compiles all that it imports takes up to a second longer to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest

# Stores sync all that they write, and a busy disk makes a test of seconds one of a minute.
IN_MEMORY = "/dev/shm"
if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)

# Triton reads the source of its kernels, so scoring stays unwrapped.
CHECKED = [
    "eaglenet.core.types",
    "eaglenet.layers",
    "eaglenet.energy",
    "eaglenet.losses",
    "eaglenet.encoders",
    "eaglenet.methods",
    "eaglenet.research.evaluation",
]


def value_of(option: str, arguments: list[str]) -> str:
    return next((after for before, after in pairwise(arguments) if before == option), "")


# Tests expect the CPU: a command that chooses a GPU would move models that they share.
if "gpu" not in value_of("-m", sys.argv).replace("not gpu", "") and not os.environ.get(
    "PYTEST_XDIST_WORKER"
):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def starts_workers(arguments: list[str]) -> bool:
    """Return whether this process is `pytest -n NUMBER`, which hands all tests to workers."""
    number = value_of("-n", arguments) or "0"
    return number != "0" and "PYTEST_XDIST_WORKER" not in os.environ


def prepare() -> None:
    """Import and change what tests share, before the first of them is imported."""
    import torch
    import typer.testing

    from eaglenet.core import progress

    sys.dont_write_bytecode = False
    # Importing all tests makes millions of objects that stay: nothing to look through repeatedly.
    gc.disable()
    # A machine that has a GPU but not the development tools still runs its tests, unchecked.
    if find_spec("beartype"):
        from checked_signatures import check_signatures

        check_signatures(CHECKED)
    if find_spec("torchvision"):
        from eaglenet.encoders.openclip import declare_operators

        declare_operators()  # Before a test imports transformers, as the product does.
    if find_spec("hypothesis"):
        from hypothesis import HealthCheck, settings

        # On a busy machine inputs are made slowly, which says nothing about what is tested.
        settings.register_profile(
            "patient", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )
        settings.load_profile("patient")
    torch.set_num_threads(1)
    # On a busy machine a log names work that lasts half a second.
    progress.HEARTBEAT_SECONDS = 600.0
    # A seed for a device that is not there is noted with the whole stack: up to 2 ms for each test.
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None  # type: ignore[method-assign]
    # The tree of commands is made once, not for each command that a test runs.
    typer.testing._get_command = functools.cache(typer.testing._get_command)
    # pytest adds its handlers to each logger that does not propagate, six times per test.
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.name.split(".")[0] == "torch":
            logger.propagate = True
    # A job in the background starts with this signal ignored, and would hand that on to every test.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Workers start only when this file is read, and need seconds to import torch themselves.
if not starts_workers(sys.argv):
    prepare()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def one_meaning_encoder() -> Iterator[None]:
    """Its weights are read once, and every line of a transcript is encoded once."""
    from eaglenet.models.light_model import MEANING_MODEL, LightModel, MeaningEncoder

    model = functools.cache(lambda: LightModel.open(MEANING_MODEL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MeaningEncoder, "open", lambda: MeaningEncoder(model()))
        yield


@pytest.fixture(scope="session", autouse=True)
def forked_hosts() -> Iterator[None]:
    """Hosts of decoders are forked from one process on Linux, unless a test uses `real_hosts`."""
    if sys.platform != "linux":
        yield
        return
    from eaglenet.video import worker_host
    from forked_hosts import Template

    template = Template()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_host, "start_child", template.start)
        yield
    template.close()


@pytest.fixture
def real_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of decoders are new interpreters, as in the product."""
    from eaglenet.core.process import start_child
    from eaglenet.video import worker_host

    monkeypatch.setattr(worker_host, "start_child", start_child)


@pytest.fixture(scope="session")
def bag() -> Any:
    """A method whose texts and videos are bags of words."""
    from synthetic_store import BagMethod

    return BagMethod()


@pytest.fixture
def decoded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Videos of a dataset are decoded in this process: workers take two seconds each to start."""
    from eaglenet.video import decoding

    with_workers = decoding.decode_many

    def decode(*arguments: Any, **options: Any) -> Any:
        return with_workers(*arguments, **{**options, "workers": 0})

    monkeypatch.setattr(decoding, "decode_many", decode)


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone that is seven hours behind UTC."""
    monkeypatch.setenv("TZ", "XYZ7")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
