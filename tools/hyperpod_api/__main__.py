"""Write the page about HyperPod's API, or report what newer packages add: ``python -m tools.hyperpod_api``.

``--newest FOLDER`` compares the table with botocore and aws-cdk-lib in a folder of installed packages. It
only reports, and its exit status is 0 even if they differ.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from cfnlint.schema import PROVIDER_SCHEMA_MANAGER  # type: ignore[import-untyped]

from tools.command_line import run_command
from tools.hyperpod_api.coverage import WHOLE, Entries, Entry, Way, covering_path, differences
from tools.hyperpod_api.members import (
    Member,
    Property,
    cdk_members,
    request_members,
    service_model,
    type_properties,
)
from tools.hyperpod_api.table import CREATED_BY, REQUESTS, TYPES

PAGE = Path("docs/hyperpod-api.md")
START = "<!-- hyperpod-api -->"
END = "<!-- /hyperpod-api -->"
SCHEMA_REGION = "us-west-2"
"""Region of the registry's schemas; the regions with HyperPod have the same schema of a cluster."""
LABELS = {Way.FIELD: "field", Way.COMMAND: "command", Way.FIXED: "fixed", Way.LEFT_OUT: "left out"}


def registry_properties(type_name: str) -> dict[str, Property]:
    """Return the properties of a CloudFormation type in the registry that cfn-lint contains."""
    found = PROVIDER_SCHEMA_MANAGER.get_resource_schema(SCHEMA_REGION, type_name)
    return type_properties(found.schema)


def page_tables(requests: Mapping[str, Sequence[Member]]) -> str:
    """Return the generated part of the page.

    Args:
        requests: members of each request.
    """
    detailed = [name for name, entries in REQUESTS.items() if WHOLE not in entries]
    whole = [name for name in REQUESTS if name not in detailed]
    sections = []
    for name in detailed:
        properties = registry_properties(TYPES[name]) if name in TYPES else None
        sections.append(f"### {name}\n\n{_introduction(name)}{_table(name, requests, properties)}")
    rows = [f"| `{name}` | {_cell(REQUESTS[name][WHOLE])} |" for name in whole]
    others = "\n".join(["| request | set by |", "|---|---|", *rows])
    return "\n\n".join([*sections, f"### Other requests\n\n{others}"])


def _introduction(name: str) -> str:
    if name in TYPES:
        return f"CloudFormation's type is `{TYPES[name]}`.\n\n"
    if name in CREATED_BY:
        return f"The other members are those of `{CREATED_BY[name]}`.\n\n"
    return ""


def _table(
    name: str,
    requests: Mapping[str, Sequence[Member]],
    properties: Mapping[str, Property] | None,
) -> str:
    if properties is None:
        return _short_table(REQUESTS[name])
    lines = ["| member | set by | in CloudFormation |", "|---|---|---|"]
    covered: dict[str, list[Member]] = defaultdict(list)
    for member in requests[name]:
        covered[covering_path(member, REQUESTS[name]) or WHOLE].append(member)
    for path, entry in REQUESTS[name].items():
        mark = _mark(path, covered[path], properties)
        lines.append(f"| `{path}` | {_cell(entry)} | {mark} |")
    return "\n".join(lines)


def _short_table(entries: Entries) -> str:
    """Return the table of a request that CloudFormation lacks, with a row for each way to set members."""
    paths: dict[str, list[str]] = defaultdict(list)
    for path, entry in entries.items():
        paths[_cell(entry)].append(f"`{path}`")
    rows = [f"| {', '.join(found)} | {cell} |" for cell, found in paths.items()]
    return "\n".join(["| members | set by |", "|---|---|", *rows])


def _cell(entry: Entry) -> str:
    text = f"`{entry.text}`" if entry.way in (Way.FIELD, Way.COMMAND) else entry.text
    return f"{LABELS[entry.way]}: {text}"


def _mark(path: str, members: Sequence[Member], properties: Mapping[str, Property]) -> str:
    """Return whether a stack can set an entry's members, and what its schema lacks of them.

    Args:
        path: path of the entry.
        members: members of the API that the entry covers: one, or all below a structure.
        properties: properties of the CloudFormation type.
    """
    if path not in properties:
        return "**no**"
    lacking: list[str] = []
    for member in members:
        found = properties.get(member.path)
        name = member.path.removeprefix(path).lstrip("[].")
        if found is None:
            lacking.append(name)
        elif found.is_read_only:
            lacking.append(f"{name} (read only)")
        elif found.values:
            lacking += [value for value in member.values if value not in found.values]
    return f"**without {', '.join(_highest(lacking))}**" if lacking else "yes"


def _highest(names: Sequence[str]) -> list[str]:
    """Return the structures of members with dots in their names, and the other names as they are."""
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def with_tables(page: str) -> str:
    """Return the text of the page with current tables between its marks."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{page_tables(request_members(service_model()))}\n{END}{after}"


def news(folder: Path) -> Iterator[str]:
    """Yield what botocore and aws-cdk-lib in a folder of packages have and the table or the pin lacks.

    Args:
        folder: folder of installed packages.
    """
    requests = request_members(service_model(folder))
    yield from (f"botocore: request {name} no longer exists" for name in REQUESTS.keys() - requests)
    for name, members in requests.items():
        own = REQUESTS.get(name)
        if own is None:
            yield f"botocore: request {name} is new"
            continue
        created_by = CREATED_BY.get(name, "")
        found = differences(members, own, REQUESTS.get(created_by, {}))
        yield from (f"botocore: {name}.{path} is new" for path in found.without_entry)
        yield from (f"botocore: {name}.{path} no longer exists" for path in found.without_member)
    pinned = _values(request_members(service_model()))
    for path, values in _values(requests).items():
        new = sorted(values - pinned.get(path, values))
        if new:
            yield f"botocore: {path} accepts {', '.join(new)}"
    added = cdk_members(folder) - cdk_members(installed_packages())
    yield from (f"aws-cdk-lib: {name} is new" for name in sorted(added))


def _values(requests: Mapping[str, Sequence[Member]]) -> dict[str, set[str]]:
    return {
        f"{name}.{member.path}": set(member.values)
        for name, members in requests.items()
        for member in members
    }


def installed_packages() -> Path:
    """Return the folder with the pinned packages, without the seconds that importing the CDK takes."""
    spec = find_spec("aws_cdk")
    assert spec is not None and spec.origin is not None, "it is pinned"
    return Path(spec.origin).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.hyperpod_api",
        description="Write the tables of docs/hyperpod-api.md, or report what newer packages add.",
    )
    parser.add_argument(
        "--newest",
        type=Path,
        metavar="FOLDER",
        help="folder of packages with the newest botocore and aws-cdk-lib; nothing is written",
    )
    options = parser.parse_args()
    if options.newest is None:
        PAGE.write_text(with_tables(PAGE.read_text()))
        print(PAGE)
        return 0
    lines = list(news(options.newest))
    print("\n".join(lines) or "nothing new")
    print(f"{len(lines)} differences from the pinned packages", file=sys.stderr)
    return 0


if __name__ == "__main__":
    run_command(main)
