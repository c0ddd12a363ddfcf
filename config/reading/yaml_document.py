"""Strict YAML reader for cluster and endpoint files."""

import re
from pathlib import Path
from typing import Any

from config.cluster_files import DEFAULT_CLUSTER_FILE
from seqlm.training.strict_yaml import StrictLoader, read_yaml_file

_WANTED = (
    f"the path of a cluster file ({DEFAULT_CLUSTER_FILE}) or an endpoint file (endpoints/esm2.yaml)"
)


class _ClusterLoader(StrictLoader):
    """Loader that reads ``1e3`` as a number, like YAML 1.2; in a run file it is a string."""


_ClusterLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def read_document(path: Path) -> dict[str, Any]:
    """Return the file's top-level mapping.

    Raises:
        ValueError: if the file does not exist, or is not a YAML mapping without repeated keys. The text
            begins with the path and contains the line number, if there is one.
    """
    if not path.exists():
        raise ValueError(f"{path}: no such file; set {_WANTED}")
    if not path.is_file():
        raise ValueError(f"{path}: not a file; set {_WANTED}")
    document = read_yaml_file(path, _ClusterLoader)
    if document is None:
        raise ValueError(f"{path}: the file is empty; start from {DEFAULT_CLUSTER_FILE}")
    if not isinstance(document, dict):
        kind = "a list" if isinstance(document, list) else "a single value"
        raise ValueError(
            f"{path}: got {kind}; a cluster file is a mapping; start from {DEFAULT_CLUSTER_FILE}"
        )
    return document
