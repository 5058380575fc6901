"""Check the dependencies: pins, known vulnerabilities, the FFmpeg inside PyAV, an SBOM.

    python tools/audit.py --sbom dist/sbom.json

Exit code 1 if an installed package is not the pinned version or has a known vulnerability, or if
FFmpeg is older than the oldest version without one. Vulnerabilities need a network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.markers import Marker

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;#]+)")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Pinned version by name, for this Python and platform."""
    versions = {}
    for line in CONSTRAINTS.read_text("utf-8").splitlines():
        match = PIN.match(line.strip())
        marker = line.partition(";")[2].strip()
        if match and (not marker or Marker(marker).evaluate()):
            versions[normal(match.group(1))] = match.group(2)
    return versions


def installed() -> dict[str, str]:
    return {normal(each.metadata["Name"]): each.version for each in distributions()}


def unlike_their_pins() -> list[str]:
    wanted = pins()
    return [
        f"{name} is {version}, pinned to {wanted[name]}"
        for name, version in sorted(installed().items())
        if name in wanted and version.partition("+")[0] != wanted[name].partition("+")[0]
    ]


def bundled() -> dict[str, str]:
    """Versions of the libraries inside wheels that decode untrusted files."""
    import av
    from PIL import features

    versions = {"ffmpeg": str(av.ffmpeg_version_info)}
    for name, (major, minor, micro) in sorted(av.library_versions.items()):
        versions[name] = f"{major}.{minor}.{micro}"
    for name in ("libjpeg_turbo", "libtiff", "webp", "zlib"):
        if features.check(name):
            versions[name] = str(features.version(name))
    return versions


def old_ffmpeg() -> list[str]:
    """Say whether the FFmpeg inside PyAV is older than the floor."""
    from eaglenet.video.containers import FFMPEG_FLOOR, ffmpeg_version

    version = ffmpeg_version()
    if version >= FFMPEG_FLOOR:
        return []
    shown, floor = (".".join(map(str, numbers)) for numbers in (version, FFMPEG_FLOOR))
    name = shown or "(unknown version)"
    return [f"FFmpeg {name} has known vulnerabilities; {floor} or newer is needed"]


def sbom() -> dict[str, object]:
    """Return a CycloneDX 1.5 list of the installed packages and of the libraries inside them."""
    parts = [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
        for name, version in sorted(installed().items())
    ]
    parts += [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:generic/{name}@{version}",
        }
        for name, version in bundled().items()
    ]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": parts}


def known_vulnerabilities() -> int:
    """Print the pins with known vulnerabilities, and how many could not be checked; return 1 or 0.

    0 also if pip-audit or the network is missing, which is printed.
    """
    # Beside this interpreter first: a virtual environment need not be on the path.
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    program = shutil.which("pip-audit", path=places)
    if program is None:
        print(
            "pip-audit is not installed (pip install pip-audit); vulnerabilities were not checked"
        )
        return 0
    # Without pip, which refuses pins that only other versions of Python can install.
    options = ["--progress-spinner", "off", "--format", "json", "--no-deps", "--disable-pip"]
    run = subprocess.run(
        [program, *options, "-r", str(CONSTRAINTS)], capture_output=True, text=True, check=False
    )
    try:
        parts = json.loads(run.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        offline = ("ConnectionError", "Max retries", "Name or service", "resolve")
        if run.returncode and any(word in run.stderr for word in offline):
            print("no network; vulnerabilities were not checked")
            return 0
        print(run.stdout or run.stderr)
        return 1
    skipped = [part["name"] for part in parts if "skip_reason" in part]
    found = [(part, each) for part in parts for each in part.get("vulns", [])]
    for part, each in found:
        fixed = ", ".join(each["fix_versions"]) or "no version yet"
        print(f"{part['name']} {part['version']}: {each['id']}, fixed in {fixed}")
    if skipped:
        print(
            f"{len(skipped)} of {len(parts)} pins were not found and not checked: {skipped[0]}, …"
        )
    print(f"{len(parts) - len(skipped)} pins checked, {len(found)} known vulnerabilities")
    return int(bool(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sbom", type=Path, help="write the list of parts here")
    target = parser.parse_args().sbom
    wrong = unlike_their_pins() + old_ffmpeg()
    for line in wrong:
        print(line)
    print(
        f"{len(pins())} pins, {len(installed())} packages installed, "
        f"FFmpeg {bundled()['ffmpeg']}, {len(wrong)} problems"
    )
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(sbom(), indent=2) + "\n")
        print(f"wrote {target}")
    sys.exit(1 if known_vulnerabilities() or wrong else 0)


if __name__ == "__main__":
    main()
