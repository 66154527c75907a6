"""The manifest for Kubernetes: its fields and their types, as JobSet and Kubernetes document them. Nothing runs it."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import yaml

MANIFEST = Path(__file__).parents[2] / "examples/kubernetes/jobset.yaml"

#: A field's type; for objects their fields, of which those with "!" must be there.
Schema = Any
CONTAINER = {
    "name!": str,
    "image!": str,
    "command": [str],
    "args": [str],
    "env": [{"name!": str, "value": str}],
    "ports": [{"containerPort!": int, "name": str}],
    "resources": {"limits": {"*": (str, int)}, "requests": {"*": (str, int)}},
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}],
}
VOLUME = {
    "name!": str,
    "secret": {"secretName!": str, "defaultMode": int},
    "emptyDir": {"medium": str, "sizeLimit": str},
}
POD = {
    "restartPolicy!": {"Never", "OnFailure"},
    "securityContext": {"runAsUser": int, "runAsGroup": int, "fsGroup": int},
    "containers!": [CONTAINER],
    "volumes": [VOLUME],
}
JOB = {
    "parallelism!": int,
    "completions!": int,
    "completionMode!": {"Indexed"},
    "backoffLimit": int,
    "template!": {"spec!": POD},
}
JOBSET = {
    "apiVersion!": {"jobset.x-k8s.io/v1alpha2"},
    "kind!": {"JobSet"},
    "metadata!": {"name!": str, "labels": {"*": str}},
    "spec!": {
        "failurePolicy": {"maxRestarts": int},
        "successPolicy": {"operator": {"All", "Any"}, "targetReplicatedJobs": [str]},
        "network": {"enableDNSHostnames": bool, "subdomain": str},
        "replicatedJobs!": [{"name!": str, "replicas": int, "template!": {"spec!": JOB}}],
    },
}


def wrong(value: object, schema: Schema, at: str = "") -> list[str]:
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{at}: is no object"]
        known = {key.rstrip("!"): part for key, part in schema.items()}
        lacks = [f"{at}.{k[:-1]}: is missing" for k in schema if k.endswith("!") and k[:-1] not in value]
        found = [
            w
            for k, v in value.items()
            for w in (
                wrong(v, known.get(k, known.get("*")), f"{at}.{k}")
                if k in known or "*" in known
                else [f"{at}.{k}: is not known"]
            )
        ]
        return lacks + found
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{at}: is no list"]
        return [w for i, item in enumerate(value) for w in wrong(item, schema[0], f"{at}[{i}]")]
    if isinstance(schema, set):
        return [] if value in schema else [f"{at}: {value!r} is not one of {sorted(schema)}"]
    good = isinstance(value, schema) and not (isinstance(value, bool) and schema is int)
    return [] if good else [f"{at}: {value!r} has the wrong type"]


def manifest() -> dict[str, Any]:
    return yaml.safe_load(MANIFEST.read_text())


def test_the_manifest_has_only_documented_fields() -> None:
    assert wrong(manifest(), JOBSET) == []


def test_the_schema_finds_mistakes() -> None:
    spec = manifest()
    spec["spec"]["replicatedJobs"][0]["template"]["spec"]["completionMode"] = "Index"
    spec["spec"]["replicateJobs"] = []
    del spec["kind"]
    found = wrong(spec, JOBSET)
    assert len(found) == 3 and any("replicateJobs: is not known" in w for w in found), found


def test_names_and_numbers_fit() -> None:
    spec = manifest()
    jobs = spec["spec"]["replicatedJobs"]
    job = jobs[0]["template"]["spec"]
    pod = job["template"]["spec"]
    script = pod["containers"][0]["command"][2]
    name, worker = spec["metadata"]["name"], jobs[0]["name"]
    # JobSet's names: JOBSET-REPLICATEDJOB-JOBINDEX-PODINDEX.SUBDOMAIN, where the subdomain is the set's name.
    assert f"--rendezvous {name}-{worker}-0-0.{name}:29400" in script
    assert f"--nnodes {job['completions']} " in script and job["parallelism"] == job["completions"]
    mounted = {m["name"] for m in pod["containers"][0]["volumeMounts"]}
    assert mounted == {v["name"] for v in pod["volumes"]}
    words = shlex.split(re.sub(r"\\\n", " ", script))
    assert words[words.index("--node-rank") + 1] == "$JOB_COMPLETION_INDEX"
    # The shell takes it.
    subprocess.run(["sh", "-n", "-c", script], check=True, timeout=20)
