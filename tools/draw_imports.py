"""Draw who imports whom into docs/explanation/architecture.md, from the imports in the source.

    python tools/draw_imports.py            # write the diagram
    python tools/draw_imports.py --check    # exit code 1 where the page shows other imports

Modules directly under ``eaglenet`` (errors, types, settings, ...) are one box, the ground floor. An
arrow that follows from others is left out of the diagram; the table below it has every import.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
SOURCE = ROOT / "src" / "eaglenet"
BEGIN = "<!-- drawn by tools/draw_imports.py: begin -->"
END = "<!-- drawn by tools/draw_imports.py: end -->"
GROUND = "ground floor"

Imports = dict[str, set[str]]


def box(module: str, packages: set[str]) -> str:
    """The box of the diagram that a module belongs to."""
    name = module.split(".")[1]
    return name if name in packages else GROUND


def read_imports() -> Imports:
    """For each box, the other boxes that it imports."""
    graph = grimp.build_graph("eaglenet", cache_dir=None)
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    found: Imports = {name: set() for name in sorted({*packages, GROUND})}
    for importer in graph.modules - {"eaglenet", "eaglenet.__main__"}:
        for imported in graph.find_modules_directly_imported_by(importer) - {"eaglenet"}:
            source, target = box(importer, packages), box(imported, packages)
            if source != target:
                found[source].add(target)
    return found


def reachable(imports: Imports, start: str) -> set[str]:
    """Every box that ``start`` imports, directly or through others."""
    seen: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(imports[name])
    return seen


def needed_arrows(imports: Imports) -> list[tuple[str, str]]:
    """The arrows that do not follow from others (the transitive reduction)."""
    below = {name: reachable(imports, name) for name in imports}
    circles = sorted(name for name in imports if name in below[name])
    if circles:
        raise SystemExit(f"these import each other in a circle: {', '.join(circles)}")
    return [
        (name, target)
        for name in imports
        for target in sorted(imports[name])
        if not any(target in below[other] for other in imports[name])
    ]


def draw(imports: Imports) -> str:
    """The diagram (Mermaid) and the table of all imports, as Markdown."""
    identifiers = {name: name.replace(" ", "_") for name in imports}
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'  {identifiers[name]}["{name}"]' for name in imports]
    lines += [f"  {identifiers[a]} --> {identifiers[b]}" for a, b in needed_arrows(imports)]
    lines += ["```", "", "| folder | imports |", "|---|---|"]
    for name, targets in imports.items():
        lines.append(f"| {name} | {', '.join(sorted(targets)) or 'no other folder'} |")
    return "\n".join(lines)


def with_drawing(page: str, drawing: str) -> str:
    """The page with the part between the two marks replaced."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{drawing}\n{END}{after}"


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    drawn = with_drawing(page, draw(read_imports()))
    if arguments.check and drawn != page:
        sys.exit(f"{PAGE.name} shows other imports; draw it with: python tools/draw_imports.py")
    if not arguments.check:
        PAGE.write_text(drawn)


if __name__ == "__main__":
    main()
