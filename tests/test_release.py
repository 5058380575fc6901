"""What is released: wheel and sdist that PyPI takes, of a version that is tagged and told of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MOST_BYTES = 60 * 2**20
"""PyPI takes 100 MiB a file; the model in the wheel is 45 MB."""


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_release_wants_its_tag_and_its_section(tmp_path: Path) -> None:
    """Before anything else is run; make here only says what it was asked for."""
    for name in (".ci/release", "src/eaglenet/version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "src/eaglenet/version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
    make = tmp_path / "bin" / "make"
    make.parent.mkdir()
    make.write_text('#!/bin/sh\necho "made $1"\n')
    make.chmod(0o755)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    environment = {**os.environ, "PATH": f"{make.parent}:{os.environ['PATH']}"}

    def release() -> subprocess.CompletedProcess[str]:
        command = [str(tmp_path / ".ci/release")]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    assert "the tag 'none'" in release().stderr
    git(tmp_path, "tag", "v1.2.3")
    assert "no section [1.2.3]" in release().stderr
    (tmp_path / "CHANGELOG.md").write_text("## [1.2.3]\n")
    done = release()
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (
        0,
        ["made test", "made audit", "made dist"],
    )


def test_releases_are_published_without_a_password() -> None:
    """Only the job that publishes may sign, and it runs no code of the repository."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))["jobs"]
    assert "permissions" not in jobs["build"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert all(set(step) <= {"uses", "with"} for step in jobs["publish"]["steps"])
    assert not any("password" in step["with"] for step in jobs["publish"]["steps"])


@pytest.mark.slow
def test_wheel_and_sdist_are_built_and_pass_the_checks_of_pypi(tmp_path: Path) -> None:
    """As ``make dist`` does it, without a network; the wheel has the model and the page in it."""
    for module, *arguments in (
        ["build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        ["twine", "check", "--strict", *(f"{tmp_path}/*.{end}" for end in ("whl", "tar.gz"))],
    ):
        command = [sys.executable, "-m", module, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    wheel, source = next(tmp_path.glob("*.whl")), next(tmp_path.glob("*.tar.gz"))
    assert max(wheel.stat().st_size, source.stat().st_size) < MOST_BYTES
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        metadata = opened.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {"eaglenet/py.typed", "eaglenet/serve/page/index.html"} <= set(names)
    assert any(name.startswith("eaglenet/models/small/") for name in names)
    assert all(name.startswith(("eaglenet/", "eaglenet-")) for name in names)
    assert "Classifier: Typing :: Typed" in metadata
