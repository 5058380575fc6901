"""Which files are left out, as git would leave them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglenet.core.errors import UsageError
from eaglenet.indexing.files import IGNORE_FILE, Exclusions, find_videos

NAMES = ("a.mp4", "draft/b.mp4", "keep/c.mp4", "keep/draft/d.mp4", "keep/e.mov", "raw/f.mov")


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """Empty files are enough: their names say that they are videos."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def found(root: Path, *exclude: str) -> list[str]:
    """Names of the files that would be indexed."""
    files = find_videos([root], lambda path: False, leave_out=root / "store", exclude=exclude)
    return [str(Path(file.path).relative_to(root)) for file in files]


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ((), set(NAMES)),
        (("draft/",), {"a.mp4", "keep/c.mp4", "keep/e.mov", "raw/f.mov"}),
        (("/draft",), {*NAMES} - {"draft/b.mp4"}),
        (("*.mov", "!keep/e.mov"), {*NAMES} - {"raw/f.mov"}),
        (("keep/*", "raw"), {"a.mp4", "draft/b.mp4"}),
    ],
)
def test_patterns_mean_what_they_mean_to_git(
    films: Path, patterns: tuple[str, ...], left: set[str]
) -> None:
    """On the command line and in a file alike; files that were known before are covered too."""
    assert set(found(films, *patterns)) == left
    (films / IGNORE_FILE).write_text("# not these\n" + "\n".join(patterns))
    assert set(found(films)) == left
    covers = Exclusions(films).covers
    assert {name for name in NAMES if not covers(str(films / name))} == left
    assert not covers("/elsewhere/draft/b.mp4")


def test_a_deeper_file_overrules_but_cannot_bring_back_from_an_excluded_folder(
    films: Path,
) -> None:
    """The two rules of git that surprise."""
    (films / IGNORE_FILE).write_text("*.mp4\ndraft/\n")
    (films / "keep" / IGNORE_FILE).write_text("!*.mp4\n*.mov\n")
    assert found(films) == ["keep/c.mp4", "raw/f.mov"]


def test_a_file_of_patterns_that_is_no_text_is_refused(films: Path) -> None:
    """What it leaves out cannot be guessed."""
    (films / IGNORE_FILE).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=IGNORE_FILE):
        found(films)
