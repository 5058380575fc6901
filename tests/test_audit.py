"""The audit of the dependencies: pins, known vulnerabilities (if there is a network), an SBOM."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import av
import pytest

TOOL = Path(__file__).parent.parent / "tools" / "audit.py"


@pytest.fixture
def audit() -> ModuleType:
    """The tool as a module."""
    spec = importlib.util.spec_from_file_location("audit", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stand_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, report: object = None, error: str = ""
) -> None:
    """A pip-audit beside the interpreter that prints this, and fails as the real one does."""
    (folder / "report.json").write_text("" if report is None else json.dumps(report))
    program = folder / "pip-audit"
    program.write_text(f"#!/bin/sh\ncat {folder}/report.json\necho '{error}' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))


SAFE = {"name": "av", "version": "18.0", "vulns": []}
UNSAFE = {
    "name": "pillow",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}],
}
UNKNOWN = {"name": "zipp", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("parts", "code", "words"),
    [
        ([UNSAFE, SAFE], 1, ["pillow 1.0: PYSEC-1, fixed in 2", "2 pins checked, 1 known"]),
        ([UNKNOWN, SAFE], 0, ["1 of 2 pins were not found", "1 pins checked, 0 known"]),
        ([UNKNOWN, UNKNOWN], 0, ["2 of 2 pins were not found", "0 pins checked, 0 known"]),
    ],
)
def test_the_audit_counts_vulnerabilities_and_what_it_could_not_check(
    audit: ModuleType,
    parts: list[object],
    code: int,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand_in(tmp_path, monkeypatch, report={"dependencies": parts})
    assert audit.known_vulnerabilities() == code
    printed = capsys.readouterr().out
    assert all(line in printed for line in words), printed


def test_without_a_network_that_is_said_and_no_failure(
    audit: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stand_in(tmp_path, monkeypatch, error="ConnectionError: Max retries exceeded")
    assert audit.known_vulnerabilities() == 0
    assert "no network" in capsys.readouterr().out


def test_an_audit_that_fails_otherwise_fails(
    audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, error="No matching distribution found")
    assert audit.known_vulnerabilities() == 1


def test_a_package_unlike_its_pin_is_named(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "pins", lambda: {"a": "1.0", "b": "2.0"})
    monkeypatch.setattr(audit, "installed", lambda: {"a": "1.0+cpu", "b": "2.1", "c": "3"})
    assert audit.unlike_their_pins() == ["b is 2.1, pinned to 2.0"]


def test_the_list_of_parts_names_every_package(audit: ModuleType) -> None:
    parts = json.loads(json.dumps(audit.sbom()))
    assert (parts["bomFormat"], parts["specVersion"]) == ("CycloneDX", "1.5")
    assert {"torch", "av", "eaglenet"} <= {part["name"] for part in parts["components"]}
    assert all(part["purl"].startswith("pkg:") for part in parts["components"])
    versions = {part["name"]: part["version"] for part in parts["components"]}
    assert versions["ffmpeg"] == av.ffmpeg_version_info
    assert {"libavcodec", "libavformat"} <= set(versions)


@pytest.mark.parametrize(
    ("version", "is_old"),
    [
        ("8.1.2", False),
        ("n8.1", False),
        ("9.0", False),
        ("8.0.3", True),
        ("7.1", True),
        ("git", True),
    ],
)
def test_an_old_ffmpeg_fails_the_audit(
    audit: ModuleType, version: str, is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(av, "ffmpeg_version_info", version)
    assert bool(audit.old_ffmpeg()) == is_old


def test_every_core_dependency_is_pinned(audit: ModuleType) -> None:
    import tomllib

    project = tomllib.loads((TOOL.parent.parent / "pyproject.toml").read_text())["project"]
    names = {
        audit.normal(audit.re.split(r"[<>=!~\[; ]", each)[0]) for each in project["dependencies"]
    }
    assert names <= set(audit.pins()), names - set(audit.pins())
