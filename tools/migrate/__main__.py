"""Move data, users' files and accounting to another cluster.

``python -m tools.migrate --from FILE --to FILE [--apply [--yes]] [--status] [--json]``

Without ``--apply``, it compares and changes nothing. Each step compares before it acts, so that a call
continues where an earlier one was interrupted, and copies again what has changed since.
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from config.cluster import Cluster
from config.reading.loader import load_cluster
from tools.command_line import CommandParser, add_yes_option, confirm, run_command
from tools.json_output import add_json_option, publish
from tools.migrate.advice import by_hand
from tools.migrate.cluster_file import differences, lines_to_add
from tools.migrate.identities import verify_numbers
from tools.migrate.record import FOLDER, Record, open_record
from tools.migrate.steps import Found, open_side, plan_steps
from tools.nodes.node_session import check_programs

CLUSTERS = Path("clusters")
NAME_LINE = re.compile(r"""^name: *["']?([\w-]+)""", re.MULTILINE)
"""Line of a cluster file with the cluster's name. Other files of the folder may be invalid, so they are not
read as cluster files."""
SOMETHING_LEFT = 1
"""Exit status if something is left to copy or to add."""


def main() -> int:
    options = _options()
    source, target = (
        load_cluster(_file(variable, word))
        for variable, word in (("FROM", options.source), ("TO", options.target))
    )
    if source.name == target.name:
        raise ValueError(f"FROM, TO: both are {source.name}; name two clusters")
    record = open_record(
        options.record or FOLDER / f"{source.name}-to-{target.name}.json", source.name, target.name
    )
    verify_numbers(source, target)
    lines = list(lines_to_add(differences(source, target)))
    publish(
        source=source.name,
        target=target.name,
        record=str(record.path),
        lines_to_add=lines,
        applied=False,
    )
    _print_lines(source, target, lines)
    if options.status:
        return _print_record(record)
    check_programs()
    steps = plan_steps(
        open_side(source, options.profile),
        open_side(target, options.profile),
        record,
        contents=options.contents,
    )
    print("\n".join(f"{number}. {step.name}: {step.text}" for number, step in enumerate(steps, 1)))
    if options.apply:
        confirm("copy", options.yes)
        publish(applied=True)
        for step in steps:
            print(f"\n{step.name}", flush=True)
            result = step.act()
            record.finish(step.name, result)
            print(f"  {result}")
    found = {step.name: step.look() for step in steps}
    return _print_found(found, record, by_hand(source, target))


def _options() -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m tools.migrate",
        description="Move data, users' files and accounting to another cluster.",
    )
    parser.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="CLUSTER",
        help="file or name of the old cluster",
    )
    parser.add_argument(
        "--to", dest="target", default="", metavar="CLUSTER", help="file or name of the new cluster"
    )
    parser.add_argument("--profile", help="profile of the aws command to use")
    parser.add_argument("--apply", action="store_true", help="copy; otherwise nothing is changed")
    add_yes_option(parser)
    parser.add_argument(
        "--status", action="store_true", help="print the record of earlier calls, without AWS"
    )
    parser.add_argument(
        "--contents",
        action="store_true",
        help="compare the content of files instead of their sizes and times, which reads all of them",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="record of the steps (migrations/<old>-to-<new>.json)",
    )
    add_json_option(parser)
    options = parser.parse_args()
    if options.status and options.apply:
        raise ValueError(
            "--status, --apply: the record is printed without a copy; give one of them"
        )
    return options


def _file(variable: str, word: str) -> Path:
    """Return the cluster file with this path, or of the cluster with this name.

    Raises:
        ValueError: if there is no such file, or several.
    """
    if not word:
        raise ValueError(
            f"{variable}: name a cluster or its file, as {variable}=clusters/slurm.yaml"
        )
    path = Path(word)
    if path.suffix or path.exists():
        return path
    by_name: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(CLUSTERS.glob("*.yaml")):
        for name in NAME_LINE.findall(file.read_text()):
            by_name[name].append(file)
    found = by_name.get(word, [])
    if not found:
        raise ValueError(
            f"{variable}: got {word}; the files in {CLUSTERS} have the names {', '.join(sorted(by_name))}; "
            "name one of these, or a file"
        )
    if len(found) > 1:
        raise ValueError(
            f"{variable}: got {word}; {', '.join(map(str, found))} have this name; name one of these files"
        )
    return found[0]


def _print_lines(source: Cluster, target: Cluster, lines: Sequence[str]) -> None:
    if lines:
        print(
            f"The file of {target.name} lacks settings of {source.name}. Add them (+), or replace (-):\n"
        )
        print("\n".join(lines) + "\n")
    elif source.scheduler == target.scheduler:
        print(f"The file of {target.name} has the users, accounts and shares of {source.name}.\n")


def _print_record(record: Record) -> int:
    """Print what earlier calls have done, without a look at the clusters."""
    publish(steps=_published(record, {}, record.done))
    if not record.done and not record.tasks:
        print(f"Nothing was copied yet ({record.path})")
        return SOMETHING_LEFT
    for name, time in record.done.items():
        print(f"{name}: done at {time} UTC, {record.found[name]}")
    for name, task in record.tasks.items():
        print(f"{name}: task {task} of FSx was started, and its end was not seen")
    print("Without --status, this command compares the clusters and says what is left.")
    return SOMETHING_LEFT if record.tasks else 0


def _print_found(found: Mapping[str, Found], record: Record, for_people: Sequence[str]) -> int:
    """Print what is left of each step and what people do, and return the exit status."""
    publish(steps=_published(record, found, found), by_hand=list(for_people))
    print()
    for name, comparison in found.items():
        print(f"{name}: {'; '.join(comparison.left) or 'nothing is left'}")
        for note in comparison.notes:
            print(f"  note: {note}")
    print("\nLeft to do by hand:")
    print("\n".join(f"* {text}" for text in for_people))
    return SOMETHING_LEFT if any(comparison.left for comparison in found.values()) else 0


def _published(
    record: Record, found: Mapping[str, Found], names: Iterable[str]
) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "left": found[name].left if name in found else None,
            "notes": found[name].notes if name in found else None,
            "done": record.done.get(name),
            "result": record.found.get(name),
        }
        for name in names
    ]


if __name__ == "__main__":
    run_command(main)
