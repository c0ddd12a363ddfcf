"""Reading a cluster file's YAML, strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class _StrictLoader(yaml.SafeLoader):
    """YAML takes the last of two equal keys in silence; here the second one is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in seen:
                raise ValueError(
                    f"line {line}: got {key} again; it was set in line {seen[key]}; remove one of the two"
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


def read_document(path: Path) -> dict[str, Any]:
    """The file's top-level mapping.

    Raises:
        ValueError: if there is no such file, or it is not a YAML mapping without repeated keys. The text
            begins with the path, and names the line where there is one.
    """
    if not path.exists():
        raise ValueError(f"{path}: no such file; set the path of a cluster file, as clusters/slurm.yaml")
    if not path.is_file():
        raise ValueError(f"{path}: not a file; set the path of a cluster file, as clusters/slurm.yaml")
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8 text") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {_told(error)}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if document is None:
        raise ValueError(f"{path}: the file is empty; start from clusters/slurm.yaml")
    if not isinstance(document, dict):
        kind = "a list" if isinstance(document, list) else "a single value"
        raise ValueError(f"{path}: got {kind}; a cluster file is a mapping; start from clusters/slurm.yaml")
    return document


def _told(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}; correct the YAML there"
    reason = " ".join(str(error).split())
    return f"{reason}; save the file as plain text"
