"""Train a run with BioNeMo, in its image: ``seqlm train-bionemo``.

The command starts a process for each GPU: ``torchrun -m seqlm.commands.train_bionemo --config RUN.yaml``.
The same command continues from BioNeMo's newest checkpoint. After SIGTERM, NeMo saves before it ends.
"""

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from seqlm.bionemo.command import (
    Data,
    Devices,
    arguments,
    entry_point_of,
    step_proteins,
    unsupported,
)
from seqlm.bionemo.export import Facts, is_exported, read_facts
from seqlm.bionemo.files import CONTEXT, export_files, make_resumable
from seqlm.bionemo.installed import recorded_release, require, run_entry_point
from seqlm.bionemo.recorder import EVALUATED, Recorder, registered
from seqlm.commands import bionemo_data as export_data
from seqlm.commands.kinds import report
from seqlm.launch.local import on_every_device
from seqlm.launch.progress import bionemo_step
from seqlm.runs.run_file import RunFile, run_stage
from seqlm.training.command_line import STOPPED_BY_SIGNAL, RunError, Usage, tell
from seqlm.training.data.locks import lock_when_free
from seqlm.training.heartbeat import beat
from seqlm.training.tracking.mirror import RunStatus
from seqlm.training.tracking.run_log import (
    METRICS_FILE,
    REPORT_FILE,
    RESULTS_FILE,
    files_line,
    read_metrics,
    write_results,
)


def start(config: RunFile) -> None:
    """Prepare and export the data, train in processes of this machine, and exit with their status.

    Raises:
        RunError: if BioNeMo is not installed.
        ValueError: for mistakes that are found before the processes start.
    """
    require()
    problems = unsupported(config)
    if problems:
        raise ValueError(
            "BioNeMo cannot train this run:\n" + "\n".join(f"  {line}" for line in problems)
        )
    export_data.main(config)
    program = ["seqlm.commands.train_bionemo", *sys.argv[2:]]
    raise SystemExit(on_every_device(f"training {config.name} by BioNeMo", program))


def main(config: RunFile) -> None:
    """Train to ``train.max_steps``.

    Raises:
        SystemExit: with status 143 after a signal, when NeMo has saved.
        ValueError: for settings that BioNeMo does not support, or not on these devices.
        RunError: if BioNeMo is not installed, or another process trains the run.
    """
    beat("starting", slow=True)
    require()
    devices = devices_here()
    is_first = os.environ.get("RANK", "0") == "0"
    data, facts = exported(config)
    words = arguments(config, devices, data)
    check_start(config)
    if is_finished(config):
        if is_first:
            print(f"{config.run_dir} has come to step {config.train.max_steps} already")
        return
    lock = lock_when_free(config.run_dir / METRICS_FILE) if is_first else None
    if is_first and lock is None:
        raise RunError(
            f"{config.run_dir} is being trained by another process; wait for it, stop it (its workers too), "
            "or choose another 'name'"
        )
    recorder = Recorder(config, is_first=is_first)
    started = time.monotonic()
    status: RunStatus = "FAILED"
    try:
        _train(config, words, recorder, is_first)
        status = "FINISHED" if recorder.step >= config.train.max_steps else "KILLED"
    finally:
        recorder.close(status)
        if lock is not None:
            lock.close()
    if status == "KILLED":
        if is_first:
            tell(
                f"stopped at step {recorder.step} of {config.train.max_steps}; the same command continues "
                f"from the newest checkpoint in {config.run_dir}"
            )
        raise SystemExit(STOPPED_BY_SIGNAL)
    if is_first:
        _finish(config, recorder.step, devices, facts, time.monotonic() - started)


def devices_here() -> Devices:
    """Return the devices of the training from torchrun's variables; one device without torchrun."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    gpus_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Devices(num_nodes=world_size // gpus_per_node, gpus_per_node=gpus_per_node)


def _train(config: RunFile, words: list[str], recorder: Recorder, is_first: bool) -> None:
    """Train to the last step, or until NeMo has saved after a signal."""
    done = bionemo_step(config.run_dir)
    if done >= config.train.max_steps:
        # The run was killed after its last save. BioNeMo fails if no proteins are left to draw.
        recorder.begin(done)
        return
    if is_first:
        make_resumable(config.run_dir, config.model.init_from if config.lora else None)
        print(f"{entry_point_of(config)} {shlex.join(words)}", flush=True)
    with registered(recorder):
        run_entry_point(entry_point_of(config), words)


def exported(config: RunFile) -> tuple[Data, Facts]:
    """Return the export of the run's data that BioNeMo reads.

    Raises:
        ValueError: if there is no export of the data.
    """
    files = export_files(config.data.path)
    facts = read_facts(files) if is_exported(config) else None
    if facts is None:
        raise ValueError(
            f"{files.folder} does not exist or was not made from {config.data.path}; create it with python "
            "-m seqlm.commands.bionemo_data and the arguments of this command"
        )
    return Data(files, facts.num_validation, len(facts.classes)), facts


def check_start(config: RunFile) -> None:
    """Raise ValueError if the run starts from anything but a checkpoint in BioNeMo's format."""
    start = config.model.init_from
    if start is not None and not (Path(start) / CONTEXT).is_dir():
        raise ValueError(
            f"model.init_from: got {start}, no checkpoint of BioNeMo's format (no {start}/{CONTEXT}); "
            f'make convert-bionemo ARGS="bionemo.convert=from_transformers model.init_from={start}" makes one'
        )


def is_finished(config: RunFile) -> bool:
    """Return whether an earlier start has reached ``train.max_steps``."""
    try:
        results = json.loads((config.run_dir / RESULTS_FILE).read_text())
    except FileNotFoundError:
        return False
    return int(results.get("steps", 0)) >= config.train.max_steps


def _finish(config: RunFile, steps: int, devices: Devices, facts: Facts, seconds: float) -> None:
    """Write the results and the report of a run that is complete.

    Args:
        config: run file.
        steps: number of optimizer steps of the run.
        devices: devices of the training.
        facts: facts about the export.
        seconds: time since the last start.
    """
    run_dir = config.run_dir
    proteins = steps * step_proteins(config)
    last = {line["kind"]: line for line in read_metrics(run_dir / METRICS_FILE)}
    results: dict[str, Any] = {
        "framework": f"BioNeMo {recorded_release()}",
        "steps": steps,
        "train_loss": last.get("train", {}).get("loss"),
        "train_samples": proteins,
        "epoch": proteins / facts.num_train,
        "last_start_runtime": seconds,
        "newest_checkpoint_step": bionemo_step(run_dir),
        "world_size": devices.world_size,
        **{
            name: value
            for name, value in last.get("eval", {}).items()
            if name in EVALUATED.values()
        },
    }
    write_results(run_dir, results)
    report(run_dir)
    print(
        f"{config.name}: {steps} steps by BioNeMo\nreport  {run_dir / REPORT_FILE}\n{files_line(run_dir)}"
    )


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a text stream, by torchrun
    run_stage(main, usage=Usage(run_file="esm2_8m_sample", options={"--model": "model.init_from"}))
