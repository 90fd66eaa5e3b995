"""The chart: what Helm makes of it is what Kubernetes takes, and what the agent takes."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml  # type: ignore[import-untyped]

from headgate.cli.lint import notes_on
from headgate.version import VERSION
from tests.deploy.charts import (
    CHART,
    NAMESPACE,
    SETS,
    VALUES,
    VERSIONS,
    Manifest,
    Rejected,
    Rendered,
    example_chart,
    faults,
    helm,
    is_hook,
    render,
    rendered,
)

PARTS = [
    (values, part)
    for values in SETS
    for part in ("agent", "view")
    if (values, part) not in {("view", "agent"), ("agent", "view")}
]
FIELDS = {"$(POD_NAME)": "db-0", "$(POD_NAMESPACE)": "data", "$(POD_IP)": "10.1.2.3"}


def pod_of(values: str, part: str) -> Manifest:
    found = rendered(values)
    pod: Manifest = found.sidecar() if part == "agent" else found.view_pod()["spec"]
    return pod


def environment_of(container: Manifest) -> dict[str, str]:
    """As the kubelet would fill it in."""
    told = {}
    for entry in container["env"]:
        value = entry.get("value", "")
        for field, filled in FIELDS.items():
            value = value.replace(field, filled)
        told[entry["name"]] = value
    return told


def paths_in(settings: object) -> Iterator[str]:
    """Files that settings name: what begins with / and lies where we mount things."""
    if isinstance(settings, Mapping):
        for value in settings.values():
            yield from paths_in(value)
    elif isinstance(settings, str) and re.match(r"/(etc|run|var)/", settings):
        yield settings


# ── Kubernetes takes it ──


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", SETS)
def test_kubernetes_takes_every_manifest(values: str, version: str) -> None:
    found = rendered(values)
    assert found.manifests
    assert [fault for manifest in found.manifests for fault in faults(manifest, version)] == []


def test_the_schemas_would_find_a_fault() -> None:
    wrong = json.loads(json.dumps(rendered("view").of("Deployment")))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    assert "livenessProb" in faults(wrong, VERSIONS[-1])[0]


@pytest.mark.parametrize("values", SETS)
def test_helm_has_nothing_to_say_against_it(values: str) -> None:
    told = helm("lint", CHART, "--strict", "--values", VALUES / f"{values}.yaml")
    assert "0 chart(s) failed" in told


@pytest.mark.parametrize("version", VERSIONS)
def test_a_statefulset_of_ones_own_includes_the_agent(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = render(example_chart(tmp_path))
    assert [fault for manifest in found.manifests for fault in faults(manifest, version)] == []
    pod = found.of("StatefulSet")["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["containers"]] == ["postgres", "headgate"]
    assert_mounts_are_there(pod, pod["containers"][1], claims={"headgate"})
    for name, value in environment_of(pod["containers"][1]).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "headgate.toml").write_text(found.settings("agent"))
    assert notes_on(tmp_path / "headgate.toml") == []


def test_the_patch_fits_a_statefulset() -> None:
    """A strategic merge appends containers and volumes by their names."""
    for values in ("agent", "everything"):
        sidecar = rendered(values).sidecar()
        patched = {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "db"},
            "spec": {
                "serviceName": "db",
                "selector": {"matchLabels": {"app": "db"}},
                "template": {"metadata": {"labels": {"app": "db"}}, "spec": sidecar},
            },
        }
        assert faults(patched, VERSIONS[-1]) == []
        names = [one["name"] for one in sidecar["volumes"]]
        assert len(names) == len(set(names))
        assert all(re.fullmatch(r"[a-z0-9-]{1,63}", name) for name in names), names


# ── The agent takes it ──


@pytest.mark.parametrize(("values", "part"), PARTS)
def test_the_settings_pass_headgate_lint(
    values: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = pod_of(values, part)["containers"][0]
    for name, value in environment_of(container).items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "headgate.toml"
    path.write_text(rendered(values).settings(part))
    assert notes_on(path) == []


@pytest.mark.parametrize(("values", "part"), PARTS)
def test_every_file_that_the_settings_name_is_mounted(values: str, part: str) -> None:
    pod = pod_of(values, part)
    container = pod["containers"][0]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    named = {*paths_in(tomllib.loads(rendered(values).settings(part))), container["args"][-1]}
    assert len(named) >= 3
    for path in named:
        mount = max(
            (m for m in container["volumeMounts"] if f"{path}/".startswith(f"{m['mountPath']}/")),
            key=lambda m: len(m["mountPath"]),
            default=None,
        )
        assert mount is not None, f"{path} is on no volume, and the root is read-only"
        items = volumes.get(mount["name"], {}).get("secret", {}).get("items")
        file = path.removeprefix(mount["mountPath"] + "/")
        assert items is None or file in [item["path"] for item in items]


def assert_mounts_are_there(pod: Manifest, container: Manifest, claims: set[str]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]} | claims
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


@pytest.mark.parametrize("values", SETS)
def test_every_mount_has_its_volume_and_every_volume_its_source(values: str) -> None:
    found = rendered(values)
    made = {(m["kind"], m["metadata"]["name"]) for m in found.manifests}
    # Of the pod that is patched, and of the one who wrote the values.
    others = {"data", "pg-headgate"}
    given = (VALUES / f"{values}.yaml").read_text()
    for _, pod in found.pods():
        assert_mounts_are_there(pod, pod["containers"][0], others)
        for volume in pod["volumes"]:
            if "secret" in volume:
                name = volume["secret"]["secretName"]
                assert ("Secret", name) in made or name in given, name
            if "configMap" in volume:
                name = volume["configMap"]["name"]
                assert ("ConfigMap", name) in made or name in given, name


WRITTEN: dict[str, Any] = {
    "agent": {"name": 'quotes " and \\ and <&>', "max_clients": 100_000, "forward": False},
    "databases": {
        "with.dot": {
            "dsn": "tab\tand line\nand ü",
            "idle_after_s": 0.25,
            "connections": 3,
            "default_metrics": ["lag", "pool usage"],
            "labels": {},
            "metrics": {"lag": {"threshold": -1.5, "big": 16_777_216, "none": []}},
        }
    },
    "tokens": [{"name": "ana", "more": {"deep": [1, 2.5, True]}}, {"name": "ben"}],
}


def test_settings_come_out_as_they_went_in(tmp_path: Path) -> None:
    """Numbers stay whole, quotes stay quotes, and tables of lists stay in order."""
    values = tmp_path / "values.yaml"
    agent = {"enabled": True, "allowPlaintext": True, "settings": WRITTEN}
    values.write_text(yaml.safe_dump({"view": {"enabled": False}, "agent": agent}))
    read = tomllib.loads(render(CHART, "--values", values).settings("agent"))
    for name in ("listen", "log", "socket", "state", "allow_plaintext", "hosts"):
        del read["agent"][name]  # The chart's own.
    # As text: 8087 and 8087.0 are equal, and only one of them is a port.
    assert json.dumps(read, sort_keys=True) == json.dumps(WRITTEN, sort_keys=True)


@pytest.mark.parametrize("part", ["agent", "view"])
def test_in_the_clear_it_goes_by_the_names_of_its_service(part: str) -> None:
    """L1: the agent rejects requests under other names."""
    read = tomllib.loads(rendered(part).settings(part))
    service = f"rel-headgate-{part}"
    assert read["agent"]["hosts"] == [
        service,
        f"{service}.{NAMESPACE}",
        f"{service}.{NAMESPACE}.svc",
        f"{service}.{NAMESPACE}.svc.cluster.local",
    ]


# ── It is safe to run ──


@pytest.mark.parametrize("values", SETS)
def test_nothing_runs_as_root_or_writes_to_its_root(values: str) -> None:
    for name, pod in rendered(values).pods():
        for container in pod["containers"]:
            context = {**pod.get("securityContext", {}), **container["securityContext"]}
            assert context["runAsNonRoot"] is True, name
            assert context["runAsUser"] > 0
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert "memory" in container["resources"]["limits"]
        if name != "patch":
            assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("values", SETS)
def test_secrets_stand_in_secrets_only(values: str) -> None:
    for manifest in rendered(values).manifests:
        if manifest["kind"] != "Secret":
            assert "very:secret" not in json.dumps(manifest)
            assert "very-secret" not in json.dumps(manifest)


def test_a_throttler_at_fault_leaves_its_database_in_service() -> None:
    """A probe that fails makes the whole pod not ready; so there is none but for liveness."""
    container = rendered("agent").sidecar()["containers"][0]
    assert "readinessProbe" not in container and "startupProbe" not in container
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    asked = rendered("everything").sidecar()["containers"][0]
    assert asked["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_no_limit_of_disk_evicts_a_database() -> None:
    sidecar = rendered("agent").sidecar()
    assert "sizeLimit" not in json.dumps(sidecar["volumes"])
    assert "ephemeral-storage" not in json.dumps(sidecar["containers"][0]["resources"])


def test_no_policy_cuts_a_database_off() -> None:
    """A NetworkPolicy that selects a pod shuts out all that it does not name."""
    policy = rendered("everything").of("NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "view"


@pytest.mark.parametrize("values", ["view", "everything"])
def test_the_view_is_checked_for_its_health(values: str) -> None:
    (container,) = rendered(values).view_pod()["spec"]["containers"]
    scheme = "HTTPS" if values == "everything" else "HTTP"
    told = {
        probe: container[f"{probe}Probe"]["httpGet"]
        for probe in ("startup", "liveness", "readiness")
    }
    assert {probe: get["path"] for probe, get in told.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        "readiness": "/readyz",
    }
    assert {get["scheme"] for get in told.values()} == {scheme}
    assert {get["port"] for get in told.values()} == {container["ports"][0]["name"]}


@pytest.mark.parametrize("values", ["view", "everything"])
def test_selectors_choose_the_views_pods_and_no_others(values: str) -> None:
    found = rendered(values)
    labels = found.view_pod()["metadata"]["labels"]
    chosen = [
        found.of("Deployment")["spec"]["selector"]["matchLabels"],
        found.of("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        found.of("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        found.of("Service", "rel-headgate-view")["spec"]["selector"],
    ]
    for selector in chosen:
        assert selector.items() <= labels.items()
        assert selector == chosen[0]
    for job in found.all_of("Job"):
        hook = job["spec"]["template"]["metadata"]["labels"]
        assert not chosen[0].items() <= hook.items()


def test_the_view_reaches_etcd_and_names_and_nobody_else() -> None:
    """R39: it asks no agent."""
    names, etcd, *more = rendered("everything").of("NetworkPolicy")["spec"]["egress"]
    assert {one["port"] for one in names["ports"]} == {53}
    assert [one["port"] for one in etcd["ports"]] == [2379, 12379, 443]
    assert etcd["to"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    assert len(more) == 1, "as the values say"


def test_other_settings_make_other_pods_of_the_view() -> None:
    def checksum(found: Rendered) -> Any:
        return found.view_pod()["metadata"]["annotations"]["checksum/settings"]

    other = render(CHART, "--values", VALUES / "view.yaml", "--set", "fleet.region=eu")
    assert checksum(other) != checksum(rendered("view"))


def test_an_agents_name_fits_however_long_the_release_is() -> None:
    release = "r" * 53
    found = render(CHART, "--values", VALUES / "view.yaml", release=release)
    for manifest in found.manifests:
        assert len(manifest["metadata"]["name"]) <= 63
    pod = found.of("Deployment")["metadata"]["name"] + "-7d9f8c6b5d-x7k2p"
    assert len(pod) <= 63, "an agent's name has at most 63 characters"


# ── Before it is too late ──


def test_settings_are_validated_before_anything_is_changed() -> None:
    found = rendered("everything")
    jobs = found.all_of("Job")
    assert [job["metadata"]["name"] for job in jobs] == [
        "rel-headgate-lint-agent",
        "rel-headgate-lint-view",
    ]
    for job in jobs:
        assert is_hook(job)
        pod, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
        assert pod["containers"][0]["args"][0] == "lint"
        (settings,) = (v for v in pod["volumes"] if v["name"] == "headgate-settings")
        assert settings["secret"]["secretName"] == name
        judged = found.of("Secret", name)["stringData"]["headgate.toml"]
        assert judged == found.settings(name.rpartition("-")[2])
    mounts = jobs[0]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert [mount["name"] for mount in mounts] == ["headgate-settings", "policies"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "fleet.endpoints is empty: the fleet view reads etcd and nothing else"),
        ("fleet.endpoints={https://e:2379}", "view.tls.secretName is empty: name a Secret"),
        (
            "view.enabled=false,agent.enabled=true",
            "agent.tls.secretName is empty: name a Secret",
        ),
        (
            "view.allowPlaintext=true,fleet.endpoints={https://e:2379},fleet.username=u",
            "fleet.username needs fleet.passwordSecret.name",
        ),
        (
            "view.enabled=false,agent.enabled=true,agent.allowPlaintext=true,"
            "agent.service.enabled=true",
            "agent.service.selector is empty: give the labels",
        ),
        ("fleet.endpoint=https://e:2379", "Additional property endpoint is not allowed"),
        ("fleet.endpoints={etcd:2379}", "fleet.endpoints.0: Does not match pattern"),
        ("agent.settings.databses.main.engine=mysql", "Additional property databses"),
        ("view.replicas=many", "view.replicas: Invalid type"),
        ("settingsIn=File", "settingsIn"),
    ],
)
def test_values_that_cannot_work_are_rejected_in_words(said: str, words: str) -> None:
    with pytest.raises(Rejected) as rejection:
        render(CHART, "--set", said)
    assert words in str(rejection.value)


def test_the_notes_say_what_to_do_next(tmp_path: Path) -> None:
    """Helm shows them after an install only, which needs a cluster: so they are put elsewhere."""
    copy = example_chart(tmp_path) / "charts" / "headgate" / "templates"
    notes = (copy / "NOTES.txt").read_text()
    (copy / "_notes.tpl").write_text('{{ define "notes" }}' + notes + "{{ end }}")
    (copy / "notes.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\n"
        'data: {notes: {{ include "notes" . | toJson }}}\n'
    )
    told = {
        values: render(copy.parent, "--values", VALUES / f"{values}.yaml").of("ConfigMap", "notes")
        for values in ("trial", "everything")
    }
    trial, everything = (told[name]["data"]["notes"] for name in ("trial", "everything"))
    assert "exec deploy/rel-headgate-view -- headgate fleet status" in everything
    assert 'include "headgate.agent.containers" .Subcharts.headgate' in everything
    assert "plain text" not in everything and "plain text" in trial
    assert "for a trial" in trial and "very:secret" not in trial
    assert "-- sh -c 'kill -HUP 1'" in everything


# ── Its own papers ──


def _leaves(values: Mapping[str, Any], schema: Manifest, place: str = "") -> Iterator[str]:
    """Where the schema and the values that are given do not know the same names."""
    properties = schema.get("properties")
    if properties is None:
        return
    yield from (f"{place}{name}" for name in values.keys() ^ properties.keys() - {"global"})
    for name in values.keys() & properties.keys():
        if isinstance(values[name], Mapping) and values[name]:
            yield from _leaves(values[name], _resolved(properties[name]), f"{place}{name}.")


def _resolved(schema: Manifest) -> Manifest:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Manifest = _schema()["definitions"][name] if name else schema
    return found


def _schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


def test_every_value_is_in_the_schema_and_every_name_of_it_has_a_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = _schema()
    jsonschema_rs.meta.validate(schema)
    assert list(jsonschema_rs.Draft7Validator(schema).iter_errors(values)) == []
    assert list(_leaves(values, schema)) == []


@pytest.mark.parametrize("values", SETS)
def test_the_values_of_these_tests_fit_the_schema(values: str) -> None:
    given = yaml.safe_load((VALUES / f"{values}.yaml").read_text())
    assert list(jsonschema_rs.Draft7Validator(_schema()).iter_errors(given)) == []


def test_the_chart_runs_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == VERSION
    (container,) = rendered("view").view_pod()["spec"]["containers"]
    assert container["image"] == f"headgate:{VERSION}"
