"""One small store, its service and a client of it, for all tests of the service."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import BROWSER, FLAGS
from demo_store import DemoStore, make_demo_store
from fastapi.testclient import TestClient

from eaglenet.search.engine import Engine
from eaglenet.serve.app import create_app


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the scenes of all stores are rendered."""
    return tmp_path_factory.mktemp("world") / "demo"


@pytest.fixture(scope="session")
def demo(world: Path, tmp_path_factory: pytest.TempPathFactory) -> DemoStore:
    """Eleven real files; tests that change them make their own."""
    return make_demo_store(tmp_path_factory.mktemp("served"), world)


@pytest.fixture(scope="session")
def engine(demo: DemoStore) -> Engine:
    """The store, open for searching."""
    return demo.open()


@pytest.fixture(scope="module")
def client(engine: Engine) -> Iterator[TestClient]:
    """A client of a service with the usual settings."""
    with TestClient(create_app(engine), base_url="http://localhost") as made:
        yield made


@pytest.fixture(scope="session")
def clip_id(engine: Engine) -> str:
    """One clip of the store."""
    return engine.search("red", k=1)[0].clip_id


@pytest.fixture(scope="session")
def made_once(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoStore]:
    """A copy of everything in a store's folder, and the store."""
    folder = tmp_path_factory.mktemp("own")
    made = make_demo_store(folder / "demo", world)
    shutil.copytree(folder / "demo", folder / "copy")
    return folder / "copy", made


@pytest.fixture
def own_demo(made_once: tuple[Path, DemoStore]) -> DemoStore:
    """For tests that change files: as it was when it was made, in the same folder."""
    copy, made = made_once
    shutil.rmtree(made.folder.parent)
    shutil.copytree(copy, made.folder.parent)
    return made


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Chromium, where there is one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield opened
        opened.close()
