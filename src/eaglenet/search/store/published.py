"""The one object of a store on object storage that says which version is searched."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from eaglenet.core.errors import StoreError, shell_quote
from eaglenet.core.object_storage import ObjectFolder
from eaglenet.search.store.checks import unsealed
from eaglenet.search.store.pieces import Pieces, from_json

PUBLISHED = "snapshot/pieces.json"


@dataclass(frozen=True)
class Published:
    """What ``pieces.json`` says."""

    current: dict[str, Any]
    """As in ``current.json`` of a folder."""
    files: dict[str, Pieces]
    """Pieces of the growing files, by name."""
    small: dict[str, str]
    """Names of the objects with the rows and files, by the name of the file."""
    tag: str

    @classmethod
    def read(cls, folder: ObjectFolder) -> Published:
        content, tag = folder.read(PUBLISHED)
        try:
            values = unsealed(json.loads(content))
            files = {name: from_json(pieces) for name, pieces in values["files"].items()}
            return cls(values["current"], files, values["small"], tag)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{folder.url}/{PUBLISHED} is damaged ({error}); rebuild the snapshot with: "
                f"eaglenet store repair --store {shell_quote(folder.url)}"
            ) from error

    def names(self) -> set[str]:
        """Every object this version needs."""
        pieces = {piece.name for found in self.files.values() for piece in found}
        return pieces | set(self.small.values())
