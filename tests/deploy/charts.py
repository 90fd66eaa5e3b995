"""The chart, rendered by Helm itself, and its manifests as values to look into.

Helm and Kubernetes' own schemas are those that scripts/lib.sh (set_up_helm) put in .cache/deploy.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "headgate"
EXAMPLE = DEPLOY / "helm" / "example"
TOOLS = ROOT / ".cache" / "deploy"
VALUES = Path(__file__).parent / "values"
SETS = sorted(path.stem for path in VALUES.glob("*.yaml"))
VERSIONS = ("v1.25.0", "v1.37.0")
NAMESPACE = "data"
LOADER = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # In C where there is one: ten times as fast.
HELM_S = 60.0

Manifest = Mapping[str, Any]


def need(tool: str) -> Path:
    """Its path; the test is skipped where it is not to be had."""
    path = TOOLS / tool
    if not path.exists():
        pytest.skip(f"{tool} is not in .cache/deploy (scripts/test deploy fetches it if it can)")
    return path


class Rejected(Exception):
    """What Helm said."""


def helm(*arguments: str | Path) -> str:
    done = subprocess.run(
        [need("helm"), *arguments], capture_output=True, text=True, timeout=HELM_S
    )
    if done.returncode != 0:
        raise Rejected(done.stderr + done.stdout)
    return done.stdout


@dataclass(frozen=True, slots=True)
class Rendered:
    manifests: Sequence[Manifest]

    def of(self, kind: str, name: str = "") -> Manifest:
        found = [m for m in self.all_of(kind) if not name or m["metadata"]["name"] == name]
        assert len(found) == 1, f"{kind} {name}: {[m['metadata']['name'] for m in found]}"
        return found[0]

    def all_of(self, kind: str) -> list[Manifest]:
        return [m for m in self.manifests if m["kind"] == kind]

    def settings(self, part: str) -> str:
        """headgate.toml of the agent or of the view."""
        (text,) = (
            str((m.get("data") or m["stringData"])["headgate.toml"])
            for m in self.manifests
            if m["metadata"]["name"].endswith(f"-{part}")
            and m["kind"] in ("ConfigMap", "Secret")
            and not is_hook(m)
        )
        return text

    def pods(self) -> Iterator[tuple[str, Manifest]]:
        """Each pod that is described: of the view, of a hook, and the patch of a sidecar."""
        for manifest in self.manifests:
            if "template" in manifest.get("spec", {}):
                yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]
        patch = self.patch()
        if patch is not None:
            yield "patch", patch["spec"]["template"]["spec"]

    def patch(self) -> Manifest | None:
        for manifest in self.all_of("ConfigMap"):
            if "patch.yaml" in manifest["data"]:
                found: Manifest = yaml.load(manifest["data"]["patch.yaml"], LOADER)
                return found
        return None

    def view_pod(self) -> Manifest:
        pod: Manifest = self.of("Deployment")["spec"]["template"]
        return pod

    def sidecar(self) -> Manifest:
        patch = self.patch()
        assert patch is not None
        pod: Manifest = patch["spec"]["template"]["spec"]
        return pod


def is_hook(manifest: Manifest) -> bool:
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def render(chart: Path, *arguments: str | Path, release: str = "rel") -> Rendered:
    text = helm("template", release, chart, "--namespace", NAMESPACE, *arguments)
    return Rendered([m for m in yaml.load_all(text, LOADER) if m is not None])


@cache
def rendered(values: str) -> Rendered:
    return render(CHART, "--values", VALUES / f"{values}.yaml")


@cache
def _schemas(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(need(f"kubernetes-{version}.json").read_text())
    return found


@cache
def _validator(version: str, api: str, kind: str) -> jsonschema_rs.Draft202012Validator:
    schemas = _schemas(version)
    group, _, number = api.rpartition("/")
    said = {"group": group, "version": number, "kind": kind}
    name = next(
        name
        for name, schema in schemas["$defs"].items()
        if said in schema.get("x-kubernetes-group-version-kind", [])
    )
    return jsonschema_rs.Draft202012Validator({**schemas, "$ref": f"#/$defs/{name}"})


def faults(manifest: Manifest, version: str) -> list[str]:
    validator = _validator(version, manifest["apiVersion"], manifest["kind"])
    return [
        f"{manifest['kind']}/{manifest['metadata']['name']} {error.instance_path}: {error.message}"
        for error in validator.iter_errors(manifest)
    ]


def example_chart(folder: Path) -> Path:
    """As `helm dependency build` would lay it out, without writing into the checkout."""
    copy = folder / "example"
    shutil.copytree(EXAMPLE, copy)
    shutil.copytree(CHART, copy / "charts" / "headgate")
    return copy
