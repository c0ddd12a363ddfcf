"""``--json`` of operator commands, and the table of their forms."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import pytest

from seqlm.commands import run_list
from tests.tools.json_documents import RunJson
from tools.command_line import CommandParser
from tools.cost import __main__ as cost
from tools.documents.json_page import pages
from tools.json_forms import (
    COMMANDS,
    COMMON_STATUSES,
    NO_TARGETS,
    RUN_COMMANDS,
    WITHOUT_JSON,
    top_level,
)
from tools.json_output import add_json_option, command_of, publish, recording
from tools.plan import __main__ as plan
from tools.stacks import diff

CLUSTER = "clusters/slurm.yaml"
OF_JOBS = ("status", "tail", "cancel", "fetch", "runs", "compare")
"""Targets of the Makefile's first section that operators use, too."""


def operator_targets() -> list[str]:
    """Return the targets of the Makefile's section for platform engineers, and those for jobs."""
    _, _, rest = Path("Makefile").read_text().partition("##@ Platform engineer")
    section, _, _ = rest.partition("##@ ")
    return [*re.findall(r"^([a-z-]+):.*## ", section, re.MULTILINE), *OF_JOBS]


def test_every_operator_command_is_in_the_table() -> None:
    tables = (COMMANDS, WITHOUT_JSON, RUN_COMMANDS)
    for target in operator_targets():
        assert sum(target in table for table in tables) == 1, target
    named = {name for table in tables for name in table if name not in COMMANDS}
    named |= COMMANDS.keys() - NO_TARGETS
    assert named == set(operator_targets())


@pytest.mark.parametrize("name", COMMANDS)
def test_modules_of_the_table_take_the_option(name: str) -> None:
    command = COMMANDS[name]
    module = Path(command.module.replace(".", "/"))
    file = module / "__main__.py" if module.is_dir() else module.with_suffix(".py")
    assert "add_json_option(" in file.read_text()
    assert command_of(command.module, ["--cluster", CLUSTER, command.word]) == name
    assert command.statuses and command.fields and not set(command.statuses) & set(COMMON_STATUSES)


def test_the_table_has_the_fields_of_listed_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_list.main([str(tmp_path), "--json"])
    document = json.loads(capsys.readouterr().out)
    table = RUN_COMMANDS["runs"].fields
    assert list(document["result"]) == top_level(table)
    columns = {f"runs[].{field.name}" for field in dataclasses.fields(run_list.ListedRun)}
    assert columns == {path for path in table if path.startswith("runs[].")}


def test_the_pages_have_the_table() -> None:
    for page, text in pages().items():
        assert page.read_text() == text, "run python -m tools.documents.json_page"


def test_cost(run_json: RunJson) -> None:
    result = run_json(cost.main, "--cluster", CLUSTER, "hours=200")["result"]
    assert result["name"] == "esm2-slurm" and result["kind"] == "slurm"
    amounts = [line["monthly_usd"] or 0 for line in result["lines"]]
    assert sum(amounts) == pytest.approx(result["monthly_usd"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hours=800"], "a month has 730 hours"),
        (["--clusters", CLUSTER], "unrecognized arguments: --clusters"),
        (["--cluster", "missing.yaml"], "missing.yaml"),
    ],
)
def test_errors_are_in_the_document(words: list[str], message: str, run_json: RunJson) -> None:
    document = run_json(cost.main, *words)
    assert document["exit_status"] == 2 and message in document["error"]
    assert set(document["result"].values()) == {None}


def test_plans_of_runs_that_fit_and_that_do_not(run_json: RunJson) -> None:
    options = ("--config", "workloads/seqlm/configs/esm2_650m.yaml", "--cluster", CLUSTER)
    too_large = run_json(plan.main, *options)
    assert too_large["exit_status"] == 1 and too_large["result"]["fits"] is False
    change = too_large["result"]["changes"][0]
    fits = run_json(plan.main, *options, change)
    assert fits["exit_status"] == 0 and fits["result"]["fits"] is True
    result = fits["result"]
    assert 0 < result["hours"]["low"] <= result["hours"]["high"]
    assert 0 < result["nodes_usd"]["low"] < result["cluster_usd"]["low"]
    assert 0 < result["memory_states_bytes"] < result["memory_states_usable_bytes"]
    alone = run_json(plan.main, *options, change, "--nodes", "1")["result"]
    assert alone["memory_states_bytes"] == 0 and alone["memory_states_usable_bytes"] is None


def test_differences_of_two_templates(tmp_path: Path, run_json: RunJson) -> None:
    bucket = {"Type": "AWS::S3::Bucket", "DeletionPolicy": "Retain"}
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"Resources": {"Data": bucket}}))
    new = tmp_path / "new.json"
    new.write_text(json.dumps({"Resources": {}}))
    options = ("--cluster", CLUSTER, "--old", str(old), "--new", str(new))
    document = run_json(diff.main, *options)
    assert document["exit_status"] == 1
    [loss] = document["result"]["losses"]
    assert loss["logical_id"] == "Data" and loss["kind"] == "is deleted" and loss["is_kept"]


def test_output_of_programs_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with recording("preflight") as document:
        print("of Python")
        subprocess.run(["echo", "of a program"], check=True)
        publish(ready=True)
    print(document.as_text(exit_status=0, error=None))
    said = capfd.readouterr()
    assert json.loads(said.out)["result"]["ready"] is True
    assert "of Python" in said.err and "of a program" in said.err


def test_a_defect_has_a_document_and_a_traceback(
    run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> int:
        raise KeyError("nodes")

    monkeypatch.setattr(broken, "__module__", "tools.preflight.__main__")
    document = run_json(broken)
    assert document["exit_status"] == 1 and "KeyError: 'nodes'" in document["error"]


def test_fields_outside_of_the_table_are_refused() -> None:
    with recording("cost"), pytest.raises(KeyError, match="no field monthly_eur of cost"):
        publish(monthly_eur=1.0)


def test_the_option_cannot_be_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    parser = CommandParser()
    add_json_option(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--js"])
    assert "write --json" in capsys.readouterr().err
