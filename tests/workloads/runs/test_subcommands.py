"""Subcommands of seqlm and stages of jobs."""

from importlib import import_module

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
