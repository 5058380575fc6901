"""Opening of files with every supported PyAV: 18 needs an argument that 19 refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import pytest
from videos import write_numbered

from eaglenet.video import containers
from eaglenet.video.streaming import open_source


@pytest.mark.parametrize(
    ("version", "extra"), [("18.1.0", {"metadata_errors": "replace"}), ("19.0.2", {}), ("20.0", {})]
)
def test_arguments_fit_the_installed_version(
    version: str, extra: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, Any]] = []
    stand_in = SimpleNamespace(
        __version__=version, open=lambda file, **arguments: calls.append(arguments)
    )
    monkeypatch.setattr(containers, "pyav", lambda: stand_in)
    containers.open_input("a.mp4")
    (arguments,) = calls
    assert arguments.pop("options")["protocol_whitelist"] == "none"
    assert arguments == {"hwaccel": None, **extra}


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi"])
def test_metadata_in_another_encoding_does_not_stop_reading(tmp_path: Path, name: str) -> None:
    whole = write_numbered(tmp_path / name, 8)
    titled_file = tmp_path / f"titled-{name}"
    with av.open(str(whole)) as source, av.open(str(titled_file), "w") as target:
        target.metadata["title"] = "caf_ au lait"
        video = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = video
                target.mux(packet)
    content = titled_file.read_bytes()
    assert b"caf_ au lait" in content
    titled_file.write_bytes(content.replace(b"caf_ au lait", b"caf\xe9 au lait"))
    with containers.open_container(titled_file) as container:
        assert container.streams.video[0].codec_context is not None
        assert "au lait" in container.metadata["title"]
    with titled_file.open("rb") as file:
        video_source = open_source(file)
        assert video_source.video.codec_context is not None
        video_source.container.close()
