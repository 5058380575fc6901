"""What is deployed: nothing runs as root or writes outside its volumes, and options exist."""

from __future__ import annotations

import json
import os
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from typer.main import get_command

from eaglenet.cli.main import app

DEPLOY = Path(__file__).parents[1] / "deploy"


def documents(name: str) -> list[dict[str, Any]]:
    content = yaml.safe_load((DEPLOY / "kubernetes" / name).read_text())
    return list(content["items"]) if content["kind"] == "List" else [content]


def pods() -> list[dict[str, Any]]:
    """The specification of every pod that is started."""
    found = []
    for document in (*documents("search.yaml"), *documents("index.yaml")):
        spec = document["spec"]
        if document["kind"] == "RayJob":
            cluster = spec["rayClusterSpec"]
            groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
            found += [group["template"]["spec"] for group in groups]
        elif "template" in spec:
            found.append(spec["template"]["spec"])
    return found


def options_of(command: str) -> set[str]:
    commands: Any = get_command(app)
    return {name for option in commands.commands[command].params for name in option.opts}


def test_pods_are_not_root_and_cannot_write_but_to_their_volumes() -> None:
    assert len(pods()) == 4
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] is True
            assert rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
            volumes = {volume["name"] for volume in pod["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert "memory" in container["resources"]["limits"]


def test_services_of_kubernetes_find_their_pods_and_look_at_their_health() -> None:
    items = documents("search.yaml")
    labels = [
        item["spec"]["template"]["metadata"]["labels"]
        for item in items
        if "replicas" in item["spec"]
    ]
    for item in items:
        if item["kind"] == "Service":
            assert item["spec"]["selector"] in labels
        else:
            container = item["spec"]["template"]["spec"]["containers"][0]
            for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
                assert container[probe]["httpGet"]["path"] == "/health"
            assert item["spec"]["selector"]["matchLabels"] in labels


def test_kubernetes_knows_every_field() -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    for item in documents("search.yaml"):
        schemas.validate(item, schemas.latest_version(), strict=True)


def test_kubernetes_knows_every_field_of_the_pods_that_kuberay_starts() -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    metadata = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}}
    for pod in pods():
        schemas.validate({**metadata, "spec": pod}, schemas.latest_version(), strict=True)


@pytest.mark.skipif("EAGLENET_RAYJOB_CRD" not in os.environ, reason="no schema of KubeRay given")
def test_kuberay_knows_every_field() -> None:
    """Its schema, ``ray.io_rayjobs.yaml``, is in no package: download it and name it."""
    definition = yaml.safe_load(Path(os.environ["EAGLENET_RAYJOB_CRD"]).read_text())
    version = next(each for each in definition["spec"]["versions"] if each["name"] == "v1")
    schema = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    (job,) = documents("index.yaml")
    assert problems(schema, job) == []
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["nonsense"] = 1
    assert problems(schema, job)


def closed(schema: Any) -> Any:
    """With no other fields than the named ones, as Kubernetes has it."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(part) for name, part in schema.items()}
    if found.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    is_open = "additionalProperties" in found or "x-kubernetes-preserve-unknown-fields" in found
    if found.get("type") == "object" and "properties" in found and not is_open:
        found["additionalProperties"] = False
    return found


def problems(schema: Any, document: Any) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    found = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [error.message for error in found]


def test_the_specification_of_compose_knows_every_field() -> None:
    checks = pytest.importorskip("check_jsonschema")
    folder = Path(checks.__file__).parent / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text())
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert problems(schema, compose) == []
    compose["services"]["front"]["nonsense"] = 1
    assert problems(schema, compose)


def test_composed_services_are_read_only_and_wait_for_each_other() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in compose["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["build"]["dockerfile"] == "deploy/Dockerfile"
    front = compose["services"]["front"]
    assert set(front["depends_on"]) <= set(compose["services"])
    assert front["ports"] == ["127.0.0.1:8000:8000"]


def test_every_option_that_is_used_exists() -> None:
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.suffix == ".yaml"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in compose["services"].values():
        command, *arguments = service["command"]
        used = {argument for argument in arguments if argument.startswith("--")}
        assert used <= options_of(command)
    for line in re.findall(r"eaglenet (serve|index) ([^\"\n]*)", "\n".join(texts)):
        assert set(re.findall(r"--[a-z-]+", line[1])) <= options_of(line[0])


def test_the_image_is_not_root_and_has_a_health_check() -> None:
    lines = (DEPLOY / "Dockerfile").read_text()
    instructions = re.findall(r"^([A-Z]+) ", lines, re.MULTILINE)
    assert instructions.count("FROM") == 2
    assert re.search(r"^USER 10001:10001$", lines, re.MULTILINE)
    assert "HEALTHCHECK" in instructions
    assert instructions.index("USER") < instructions.index("ENTRYPOINT")
    # Everything that is copied from the repository is there.
    for names in re.findall(r"^COPY ((?!--from).*) \./?\S*$", lines, re.MULTILINE):
        for name in names.split():
            assert (DEPLOY.parent / name).exists(), name


def test_the_image_has_what_jobs_and_ray_serve_need() -> None:
    """A job goes through Ray's dashboard; KubeRay calls wget. The pins allow these extras."""
    lines = (DEPLOY / "Dockerfile").read_text()
    installed = [
        Requirement(name) for name in re.findall(r"'([a-z]\S*)'", lines) if name.startswith("ray")
    ]
    assert [each.extras for each in installed] == [{"default", "serve"}]
    assert re.search(r"apt-get install [^&]*\bwget\b", lines)
    pytest.importorskip("ray")
    pinned = dict(
        line.split("==")
        for line in (DEPLOY.parent / "constraints.txt").read_text().splitlines()
        if re.fullmatch(r"[\w.-]+==[\w.+-]+", line)
    )
    assert metadata.version("ray") == pinned["ray"]
    for text in metadata.requires("ray") or []:
        wanted = Requirement(text)
        needed = wanted.marker is None or any(
            wanted.marker.evaluate({"extra": extra}) for extra in installed[0].extras
        )
        if needed and wanted.name in pinned:
            assert pinned[wanted.name] in wanted.specifier, wanted


def test_login_shells_of_the_image_find_the_commands() -> None:
    """KubeRay before 1.4 starts Ray in one: /etc/profile sets PATH, then reads profile.d."""
    lines = (DEPLOY / "Dockerfile").read_text()
    (folder,) = re.findall(r"^ENV PATH=(\S+):\$PATH \\$", lines, re.MULTILINE)
    profile = f"RUN echo 'export PATH={folder}:$PATH' > /etc/profile.d/eaglenet.sh"
    assert lines.index(profile) < lines.index("USER 10001")


def test_readers_are_told_who_writes_the_store() -> None:
    """The image is not root, and a folder that is mounted keeps its owner."""
    (user,) = re.findall(r"^USER (\d+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert f"chown {user}" in (DEPLOY / "README.md").read_text()
