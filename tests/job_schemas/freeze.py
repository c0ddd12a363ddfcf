"""Write the schemas of the job kinds again, from the packages that carry their models:

    python -m pip install --no-deps --target /tmp/kinds sagemaker-hyperpod==3.12.0 \\
        hyperpod-pytorch-job-template==1.5.0 kubeflow-training==1.9.4
    .venv/bin/python -m tests.job_schemas.freeze /tmp/kinds

Their other requirements clash with ours. Kubeflow's leaves the pods' template open, for Kubernetes' own
schema. HyperPod's command line takes less there than Kubernetes does: no fsGroup, for one.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HYPERPOD_MODELS = "sagemaker/hyperpod/training/config/hyperpod_pytorch_job_unified_config.py"
KUBEFLOW_MODELS = "kubeflow/training/models"
HYP_SCHEMA = "hyperpod_pytorch_job_template/v1_1/schema.json"
PLAIN = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "float": {"type": "number"},
}


def hyperpod_schema(packages: Path) -> dict[str, Any]:
    """Return the schema of HyperPodPyTorchJob's spec, with the cluster's names."""
    spec = importlib.util.spec_from_file_location("hyperpod_models", packages / HYPERPOD_MODELS)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    schema: dict[str, Any] = module._HyperPodPytorchJob.model_json_schema(by_alias=False)
    schema["additionalProperties"] = False
    return _reachable(schema)


def _reachable(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove unused definitions and texts."""
    definitions = schema.pop("$defs")
    kept: dict[str, Any] = {}
    waiting = _references(schema)
    while waiting:
        name = waiting.pop()
        if name not in kept:
            kept[name] = definitions[name]
            waiting |= _references(kept[name])
    return _without_texts({**schema, "$defs": dict(sorted(kept.items()))})


def _references(value: Any) -> set[str]:
    return set(re.findall(r"#/\$defs/(\w+)", json.dumps(value)))


def _without_texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_texts(item) for item in value]
    if not isinstance(value, dict):
        return value
    texts = {"description", "title"}
    return {
        key: _without_texts(item)
        for key, item in value.items()
        if key not in texts or isinstance(item, dict)
    }


def hyp_schema(packages: Path) -> dict[str, Any]:
    """Return the schema of the config.yaml that HyperPod's command line reads."""
    schema: dict[str, Any] = _without_texts(json.loads((packages / HYP_SCHEMA).read_text()))
    return schema


def kubeflow_schema(packages: Path, model: str = "KubeflowOrgV1PyTorchJobSpec") -> dict[str, Any]:
    """Return the schema of PyTorchJob's spec, from the client's generated classes."""
    definitions: dict[str, Any] = {}
    waiting = [model]
    while waiting:
        name = waiting.pop()
        if name in definitions:
            continue
        definitions[name] = {}
        found = _class_tables(packages / KUBEFLOW_MODELS, name)
        properties = {
            found["attribute_map"][field]: _schema_of(kind, waiting)
            for field, kind in found["openapi_types"].items()
        }
        definitions[name] = {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{model}", "$defs": dict(sorted(definitions.items()))}


def _class_tables(folder: Path, name: str) -> dict[str, dict[str, str]]:
    """The class's two tables, read without running it: it imports the whole client of Kubernetes."""
    path = next(path for path in folder.glob("*.py") if path.stem.replace("_", "") == name.lower())
    tree = ast.parse(path.read_text())
    tables = {}
    for node in ast.walk(tree):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id in ("openapi_types", "attribute_map"):
            tables[target.id] = ast.literal_eval(node.value)
    return tables


def _schema_of(kind: str, waiting: list[str]) -> dict[str, Any]:
    if kind in PLAIN:
        return dict(PLAIN[kind])
    if found := re.fullmatch(r"list\[(.+)\]", kind):
        return {"type": "array", "items": _schema_of(found[1], waiting)}
    if found := re.fullmatch(r"dict\(str, (.+)\)", kind):
        return {"type": "object", "additionalProperties": _schema_of(found[1], waiting)}
    if kind.startswith("KubeflowOrgV1"):
        waiting.append(kind)
        return {"$ref": f"#/$defs/{kind}"}
    return {}  # Kubernetes' own, or any object


def main() -> None:
    packages = Path(sys.argv[1])
    schemas = {
        "hyperpod": hyperpod_schema(packages),
        "kubeflow": kubeflow_schema(packages),
        "hyp_config": hyp_schema(packages),
    }
    for name, schema in schemas.items():
        path = HERE / f"{name}.json"
        path.write_text(json.dumps(schema, indent=1) + "\n")
        print(path)


if __name__ == "__main__":
    main()
