"""Subtitle files beside a video: ``film.srt``, ``film.en.srt``, ``film.pt-BR.forced.vtt``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import PurePath

from eaglenet.words.subtitles import READERS

NOTES = frozenset({"forced", "sdh", "cc", "default", "foreign", "full", "signs", "auto", "orig"})
"""What may stand in a name beside the language."""
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][a-z0-9]{2,8}){0,2}", re.IGNORECASE)
SHORT = {
    "eng": "en", "deu": "de", "ger": "de", "fra": "fr", "fre": "fr", "spa": "es", "ita": "it",
    "por": "pt", "rus": "ru", "zho": "zh", "chi": "zh", "jpn": "ja", "kor": "ko", "ara": "ar",
    "nld": "nl", "dut": "nl", "swe": "sv", "pol": "pl", "tur": "tr", "hin": "hi", "und": "",
}  # fmt: skip
"""Codes of three letters that are met often, as the codes of two that mean the same."""


@dataclass(frozen=True)
class SubtitleFile:
    """A file that was found; ``language`` as its name tells it."""

    path: str
    size: int
    modified_ns: int
    language: str


class SubtitleFinder:
    """Finds the files beside videos; each folder is listed once."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, os.DirEntry[str]]] = {}

    def beside(self, video: str) -> list[SubtitleFile]:
        """In order of their names; a folder that cannot be read has none."""
        folder, name = os.path.split(video)
        stem = PurePath(name).stem
        found = []
        for other, entry in self._list(folder).items():
            language = language_of(other, stem)
            if language is None:
                continue
            try:
                if entry.is_file():
                    status = entry.stat()
                    found.append(
                        SubtitleFile(entry.path, status.st_size, status.st_mtime_ns, language)
                    )
            except OSError:
                continue  # Gone since the folder was listed.
        return found

    def _list(self, folder: str) -> dict[str, os.DirEntry[str]]:
        if folder not in self._folders:
            try:
                with os.scandir(folder) as entries:
                    names = {
                        entry.name: entry
                        for entry in entries
                        if PurePath(entry.name).suffix.lower() in READERS and _is_text(entry.path)
                    }
            except OSError:
                names = {}
            self._folders[folder] = dict(sorted(names.items()))
        return self._folders[folder]


def language_of(name: str, stem: str) -> str | None:
    """The language a subtitle file's name tells; None where it is not of the video ``stem``.

    >>> language_of("film.eng.forced.srt", "film"), language_of("film.srt", "film")
    ('en', '')
    >>> language_of("film.part2.srt", "film") is None
    True
    """
    rest = PurePath(name).stem
    if not rest.startswith(stem):
        return None
    rest = rest[len(stem) :]
    if not rest:
        return ""
    language = ""
    if not rest.startswith("."):
        return None
    for part in rest[1:].split("."):
        if part.lower() in NOTES:
            continue
        if language or not _LANGUAGE.fullmatch(part):
            return None
        language = short_language(part)
    return language


def short_language(code: str) -> str:
    """A language as two letters where these are known, and its region.

    >>> short_language("eng"), short_language("pt_BR"), short_language("und")
    ('en', 'pt-BR', '')
    """
    first, *region = code.replace("_", "-").split("-")
    first = SHORT.get(first.lower(), first.lower())
    return "-".join([first, *region]) if first else ""


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
