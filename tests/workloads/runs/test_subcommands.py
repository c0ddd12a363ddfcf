"""Subcommands of seqlm and stages of jobs."""

import dataclasses
from collections.abc import Mapping
from importlib import import_module

import pytest

from seqlm.launch.progress import PROGRESS
from seqlm.runs.stages import STAGES, SUBCOMMANDS, program_of


def test_the_function_of_every_stage_exists() -> None:
    missing = []
    for name, stage in {**SUBCOMMANDS, **STAGES}.items():
        module, _, function = stage.start.partition(":")
        if not callable(getattr(import_module(f"seqlm.{module}"), function, None)):
            missing.append((name, stage.start))
    assert missing == []


def test_processes_on_a_cluster_start_the_subcommand_or_a_program_of_their_own() -> None:
    programs = {stage: program_of(stage) for stage in STAGES}
    own = {stage: program for stage, program in programs.items() if program[0] != "seqlm"}
    assert own == {
        "train-bionemo": ("seqlm.commands.train_bionemo",),
        "bandwidth": ("seqlm.launch.network.bandwidth",),
    }
    assert all(
        program == ("seqlm", stage) for stage, program in programs.items() if stage not in own
    )


@dataclasses.dataclass(frozen=True)
class Interface:
    """Fields of a stage that clusters use."""

    program: tuple[str, ...]
    data_program: tuple[str, ...]
    reads_data: str
    framework: str
    progress: str
    on_all_nodes: bool
    retries: int
    results: Mapping[str, str]


RECORDED = {
    "train-bionemo": Interface(
        program=("seqlm.commands.train_bionemo",),
        data_program=("seqlm.commands.bionemo_data",),
        reads_data="bionemo",
        framework="bionemo",
        progress="bionemo",
        on_all_nodes=True,
        retries=10,
        results={"metrics": "/run/metrics.jsonl", "report": "/run/report.html"},
    ),
    "convert-bionemo": Interface(
        program=("seqlm", "convert-bionemo"),
        data_program=("seqlm", "data"),
        reads_data="",
        framework="bionemo",
        progress="checkpoints",
        on_all_nodes=False,
        retries=3,
        results={},
    ),
    "bandwidth": Interface(
        program=("seqlm.launch.network.bandwidth",),
        data_program=("seqlm", "data"),
        reads_data="",
        framework="",
        progress="checkpoints",
        on_all_nodes=True,
        retries=1,
        results={"results": "/run/bandwidth.json", "report": "/run/report.html"},
    ),
}
"""Interfaces of the stages that need an image or a cluster, which no test here runs."""


@pytest.mark.parametrize("name", RECORDED)
def test_stages_that_need_an_image_or_a_cluster_have_their_recorded_interface(name: str) -> None:
    stage = STAGES[name]
    found = Interface(
        program=program_of(name),
        data_program=stage.data_program,
        reads_data=stage.reads_data,
        framework=stage.framework,
        progress=stage.progress,
        on_all_nodes=stage.on_all_nodes,
        retries=stage.retries,
        results=stage.results("/run", ""),
    )
    assert found == RECORDED[name]


def test_every_measure_of_progress_is_known() -> None:
    assert {stage.progress for stage in STAGES.values()} == {*PROGRESS}


def test_results_are_those_that_a_stage_leaves() -> None:
    assert STAGES["train"].results("/run", "") == RECORDED["train-bionemo"].results
    assert STAGES["layers"].results("/run", "/run/layers.csv") == {"results": "/run/layers.csv"}
    assert STAGES["evaluate"].results("/run", "") == {}
