"""Installing: pins that fit the ranges and each other, hashes, and workflows that are pinned."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DEVELOPMENT = ("dev", "docs", "bench")


@pytest.fixture
def resolve() -> ModuleType:
    """tools/resolve.py as a module."""
    spec = importlib.util.spec_from_file_location("resolve", ROOT / "tools" / "resolve.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def requirements(path: Path) -> list[Requirement]:
    """The lines of a requirements file, without hashes."""
    lines = path.read_text("utf-8").replace("\\\n", " ").splitlines()
    return [
        Requirement(re.split(r"\s--hash", line)[0])
        for line in lines
        if line.strip() and not line.startswith("#")
    ]


def pins(path: Path) -> dict[str, Version]:
    """Pinned version by name, for this Python and platform."""
    versions = {}
    for pin in requirements(path):
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        if pin.marker is None or pin.marker.evaluate():
            assert canonicalize_name(pin.name) not in versions, pin
            versions[canonicalize_name(pin.name)] = Version(specifier.version)
    return versions


def direct() -> list[Requirement]:
    """Requirements of the package and of every extra, without references to itself."""
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    return [wanted for wanted in map(Requirement, texts) if wanted.name != PROJECT["name"]]


def test_every_direct_dependency_is_pinned_within_its_range() -> None:
    versions = pins(ROOT / "constraints.txt")
    for wanted in direct():
        assert versions[canonicalize_name(wanted.name)] in wanted.specifier, wanted


def test_what_users_install_has_both_bounds() -> None:
    extras = [texts for name, texts in EXTRAS.items() if name not in DEVELOPMENT]
    for text in [*PROJECT["dependencies"], *(text for texts in extras for text in texts)]:
        wanted = Requirement(text)
        if wanted.name != PROJECT["name"]:
            assert {each.operator for each in wanted.specifier} == {">=", "<"}, text


def test_pins_satisfy_the_packages_that_are_installed() -> None:
    """As torch, which wants one version of triton on Linux."""
    versions = pins(ROOT / "constraints.txt")
    for name, version in versions.items():
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if Version(installed.version).public != version.public:
            continue
        for text in installed.requires or []:
            wanted = Requirement(text)
            pinned = versions.get(canonicalize_name(wanted.name))
            is_wanted = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
            if pinned is not None and is_wanted:
                assert wanted.specifier.contains(pinned, prereleases=True), f"{name}: {wanted}"


@pytest.mark.parametrize("name", ["requirements-hashed.txt", "tools/requirements.txt"])
def test_hashed_files_have_the_pinned_versions(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if "==" in line]
    assert all("--hash=sha256:" in line for line in lines)
    pinned = pins(ROOT / "constraints.txt")
    for package, version in pins(ROOT / name).items():
        if not re.match("nvidia-|cuda-", package):
            assert pinned[package] == version, package


def test_the_hashed_file_has_everything_that_a_plain_installation_needs() -> None:
    hashed = pins(ROOT / "requirements-hashed.txt")
    for text in PROJECT["dependencies"]:
        assert canonicalize_name(Requirement(text).name) in hashed, text
    assert "torch" not in hashed


def test_a_marker_is_kept_only_where_versions_differ(resolve: ModuleType) -> None:
    text = (
        "b==2 ; python_full_version >= '3.12'\nb==1 ; python_full_version < '3.12'\n"
        "a==1 ; sys_platform == 'win32'\nnvidia-cublas==13.1 ; sys_platform == 'linux'\n"
    )
    lines = resolve.plain_pins(text).splitlines()
    assert lines[0] == "a==1"
    assert sorted(lines[1:]) == [
        "b==1 ; python_full_version < '3.12'",
        "b==2 ; python_full_version >= '3.12'",
    ]


def test_the_table_names_what_does_not_resolve(resolve: ModuleType) -> None:
    results = {
        ("Linux", python): {"ray": "no wheel"} if python == "3.14" else {}
        for python in resolve.PYTHONS
    }
    last = resolve.table(results).splitlines()[-1]
    assert last == "| Linux | all extras | all extras | all extras | all but ray |"


def test_supported_pythons_are_classified(resolve: ModuleType) -> None:
    named = [each.rpartition(":: ")[2] for each in PROJECT["classifiers"] if ":: 3." in each]
    assert named == list(resolve.PYTHONS)
    assert PROJECT["requires-python"] == f">={resolve.PYTHONS[0]}"


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    """Every step of every job."""
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_their_actions_and_may_only_read(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in used)
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_the_matrix_has_every_supported_python(resolve: ModuleType) -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text("utf-8"))
    assert workflow["jobs"]["matrix"]["strategy"]["matrix"]["python"] == list(resolve.PYTHONS)
    targets = {step["run"].split()[1] for step in steps(workflow) if "make" in step.get("run", "")}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(target.partition("${{")[0] in makefile for target in targets)


@pytest.mark.slow
def test_one_clip_is_read_indexed_and_found_with_this_environment() -> None:
    tool = ROOT / "tools" / "smoke.py"
    done = subprocess.run([sys.executable, str(tool)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_fast_files_are_chosen_by_the_sum_of_their_tests(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("quick", ROOT / "tools" / "quick.py")
    assert spec is not None
    assert spec.loader is not None
    quick = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(quick)
    report = tmp_path / "report.xml"
    cases = [
        ("tests.a.test_slow", 0.6),
        ("tests.a.test_slow", 0.6),
        ("tests.b.test_fast.TestX", 0.2),
    ]
    lines = [f'<testcase classname="{name}" name="t" time="{time}"/>' for name, time in cases]
    lines.append('<testcase classname="tests.test_page" name="t" time="0"><skipped/></testcase>')
    report.write_text(f"<testsuites><testsuite>{''.join(lines)}</testsuite></testsuites>")
    assert quick.choose(report) == ["test_fast.py"]
    assert quick.fast_files()


@pytest.mark.parametrize(("broken", "code"), [("mteb", 0), ("ocr", 1)])
def test_resolving_fails_for_extras_that_limits_does_not_list(
    resolve: ModuleType,
    broken: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failure(platform: str, python: str, extras: list[str]) -> str:
        return "no wheels" if platform == "aarch64-manylinux_2_28" and broken in extras else ""

    monkeypatch.setattr(resolve, "failure", failure)
    monkeypatch.setattr(sys, "argv", ["resolve.py"])
    with pytest.raises(SystemExit) as ended:
        resolve.main()
    assert ended.value.code == code
    printed = capsys.readouterr().out
    assert f"Linux ARM64, Python 3.11: all but {broken}" in printed
    assert "Windows x86-64, Python 3.11: all extras" in printed
