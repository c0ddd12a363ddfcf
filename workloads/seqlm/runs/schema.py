"""Documentation of run files, from the dataclasses of their sections: ``--help`` and a JSON schema."""

import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from seqlm.training.config import RunConfig, flat, section_of

SCHEMA_FILE = Path(__file__).parents[1] / "configs" / "run.schema.json"
NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
"""YAML 1.1 reads 1e-4, which has no point, as text."""
_TYPES: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"anyOf": [{"type": "number"}, {"type": "string", "pattern": NUMBER}]},
    str: {"type": "string"},
}


def field_docs(cls: type) -> dict[str, str]:
    """Return the text below each field of a dataclass in its source, without line breaks."""
    docs: dict[str, str] = {}
    for owner in reversed([base for base in cls.__mro__ if dataclasses.is_dataclass(base)]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for item, below in itertools.pairwise(definition.body):
            match item, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                    value=ast.Constant(value=str(text))
                ):
                    docs[name] = " ".join(text.split())
    return docs


def fields_text(cls: type, prefixes: Sequence[str]) -> str:
    """List the fields below these names, one entry each: name, default and meaning.

    Args:
        cls: dataclass of the run file.
        prefixes: sections or single fields, such as ``inference`` and ``model.max_residues``.
    """
    lines = []
    for name, default, doc in _fields(cls, ""):
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes):
            lines.append(f"  {name}={default}")
            lines += textwrap.wrap(doc, 78, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _fields(cls: type, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield (dotted name, default as YAML, documentation) of each field, those of sections included."""
    docs = field_docs(cls)
    hints = typing.get_type_hints(cls)
    for item in dataclasses.fields(cls):
        name = prefix + item.name
        section, optional = section_of(hints[item.name])
        if section is None:
            doc = docs.get(item.name, "")
            allowed = _allowed(hints[item.name])
            yield name, _default(item), f"{doc} Allowed: {', '.join(allowed)}." if allowed else doc
            continue
        if optional and item.name in docs:
            yield name, "null", docs[item.name]
        yield from _fields(section, f"{name}.")


def _allowed(kind: Any) -> list[str]:
    """Return the values that a field allows, if its type lists them."""
    if typing.get_origin(kind) is Literal:
        return [str(value) for value in typing.get_args(kind)]
    return [value for part in typing.get_args(kind) for value in _allowed(part)]


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default is dataclasses.MISSING:
        return "<required>"
    return json.dumps(list(item.default) if isinstance(item.default, tuple) else item.default)


def json_schema(cls: type) -> dict[str, Any]:
    """Return the JSON schema of a run file, or of one of its sections."""
    docs = field_docs(cls)
    hints = typing.get_type_hints(cls)
    properties = {}
    for item in dataclasses.fields(cls):
        section, optional = section_of(hints[item.name])
        found = _value(hints[item.name]) if section is None else json_schema(section)
        if optional:
            found = {"anyOf": [found, {"type": "null"}]}
        if item.name in docs:
            found = {"description": docs[item.name], **found}
        if item.default is not dataclasses.MISSING:
            found["default"] = json.loads(_default(item))
        properties[item.name] = found
    required = [
        item.name
        for item in dataclasses.fields(cls)
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
    ]
    if "name" in required:
        required.remove("name")  # a run without a name has the name of its file
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": required,
    }


def _value(kind: Any) -> dict[str, Any]:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_value(arguments[0]), {"type": "null"}]}
    if origin is tuple:
        item = {"type": ["string", "number"]} if arguments[0] is str else _value(arguments[0])
        return {"anyOf": [{"type": "array", "items": item}, item]}
    return dict(_TYPES[kind])


def dry_run_text(config: RunConfig, reads: Sequence[str], inputs: Sequence[str]) -> str:
    """Return the text of a stage's ``--dry-run``.

    Args:
        config: run file.
        reads: sections and fields of it that the stage reads, whose values are listed.
        inputs: files and addresses that the stage reads; the text says which are missing.
    """
    values = [
        f"{name}={json.dumps(value)}"
        for name, value in flat(config.to_dict())
        if any(f"{name}.".startswith(f"{prefix}.") for prefix in reads)
    ]
    folders = []
    for title, folder in {
        "run folder": config.run_dir,
        "prepared data": Path(config.data.path),
    }.items():
        state = "exists" if folder.exists() else "does not exist yet"
        folders.append(f"{title}: {folder} ({state})")
    missing = [path for path in inputs if "://" not in path and not Path(path).exists()]
    listed = [f"input: {path} (does not exist on this machine)" for path in missing]
    end = "dry run: the run file is valid; nothing was started or written, and no table was read"
    return "\n".join([*values, *folders, *listed, end])
