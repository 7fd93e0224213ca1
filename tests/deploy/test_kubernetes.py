"""The manifests are what Kubernetes takes, and the configuration in them is what the router takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from steersman.serving.config import RouterSettings
from steersman.traces.settings import parse_settings

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"
OBJECTS: list[dict[str, Any]] = [
    each for path in sorted(MANIFESTS.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())
]
BY_KIND = {each["kind"]: each for each in OBJECTS}


@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("manifest", OBJECTS, ids=lambda each: str(each["kind"]))
def test_it_fits_the_schema(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_configuration_is_one() -> None:
    text = BY_KIND["ConfigMap"]["data"]["router.yaml"]
    settings = parse_settings(yaml.safe_load(text), RouterSettings, source="router.yaml")
    (watched,) = settings.discovery.kubernetes
    assert (watched.namespace, watched.service) == ("inference", "vllm")


def test_names_and_ports_meet() -> None:
    pod = BY_KIND["Deployment"]["spec"]["template"]
    container = pod["spec"]["containers"][0]
    labels = pod["metadata"]["labels"]
    assert BY_KIND["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert BY_KIND["Service"]["spec"]["selector"] == labels
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (port,) = container["ports"]
    assert BY_KIND["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    text = BY_KIND["ConfigMap"]["data"]["router.yaml"]
    settings = parse_settings(yaml.safe_load(text), RouterSettings, source="router.yaml")
    assert settings.port == port["containerPort"]
    assert pod["spec"]["serviceAccountName"] == BY_KIND["ServiceAccount"]["metadata"]["name"]
    rules = BY_KIND["Role"]["rules"]
    assert rules == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        }
    ]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
    written = (settings.bundle.directory, settings.outcome_log.directory)
    paths = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert all(any(each.startswith(path) for path in paths) for each in written)


def test_there_is_time_to_drain() -> None:
    pod = BY_KIND["Deployment"]["spec"]["template"]["spec"]
    pause_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    text = BY_KIND["ConfigMap"]["data"]["router.yaml"]
    settings = parse_settings(yaml.safe_load(text), RouterSettings, source="router.yaml")
    assert pod["terminationGracePeriodSeconds"] > pause_s + settings.timeouts.drain_s + 10
