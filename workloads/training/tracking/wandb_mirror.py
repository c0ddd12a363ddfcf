"""Copy a run's metrics and configuration to Weights & Biases.

W&B's own process sends them from ``<run>/wandb``. Without a network or an account at the start of a run, they
stay in that folder until ``wandb sync``. ``WANDB_MODE``, ``WANDB_ENTITY`` and W&B's other variables apply.
"""

import json
import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from workloads.training.whole_file import write_whole

from .mirror import CLOSE_TIMEOUT_SECONDS, Entry, Mirror, RunStatus, shortened, without_login

# W&B would report errors of its own to its makers. What the user has set stays.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
RUN_ID_FILE = "wandb_run_id"
SETTINGS: Mapping[str, Any] = {
    # Records of the machine and of the code that W&B would make by itself.
    **dict.fromkeys(("disable_code", "disable_git", "disable_job_creation", "x_disable_meta"), True),
    **dict.fromkeys(("x_disable_machine_info", "x_disable_stats"), True),
    **{"x_save_requirements": False, "silent": True, "console": "off"},
    "init_timeout": 2 * CLOSE_TIMEOUT_SECONDS,
    # The exit of the process, too, waits for an upload no longer than this.
    **{"finish_timeout": CLOSE_TIMEOUT_SECONDS - 2, "finish_timeout_raises": True},
    "stop_fn": lambda: None,  # the button of W&B's page would interrupt this process
}
EXIT_CODES: Mapping[RunStatus, int] = {"FINISHED": 0, "FAILED": 1, "KILLED": 255}
"""W&B shows 255 as killed."""


class WandbMirror(Mirror):
    """One run of W&B: the one whose id is in the run folder, or else a new one."""

    def __init__(self, run_dir: Path, *, project: str, config: Mapping[str, Any]) -> None:
        super().__init__(run_dir, f"W&B project {project}")
        self._project = project
        self._config = json.loads(without_login(json.dumps(config)))
        self._run: Any = None
        self._thread.start()

    def _prepare(self) -> None:
        from wandb import init  # noqa: F401  # import wandb alone succeeds on any folder of this name

    def _open(self) -> None:
        import wandb

        id_file = self._run_dir / RUN_ID_FILE
        if not id_file.exists():
            write_whole(id_file, secrets.token_hex(8) + "\n")
        try:
            self._init(id_file.read_text().strip())
        except Exception as error:  # of the client or the network
            wandb.teardown()  # ends W&B's process, which takes an id once
            self._init(id_file.read_text().strip(), mode="offline")
            send = f"cd {shlex.quote(str(self._run_dir))} && wandb sync"
            self._say(f"cannot be reached ({shortened(error)}); this sends the run later: {send}")
        # W&B's own steps must not repeat, as those of a resumed run may.
        self._run.define_metric("*", step_metric="step")

    def _init(self, run_id: str, mode: Any = None) -> None:
        import wandb

        wandb.setup(wandb.Settings(silent=True))  # it does not ask for a key either
        folder, name = self._run_dir, self._run_dir.name
        self._run = wandb.init(
            **{"project": self._project, "dir": folder, "name": name, "id": run_id, "config": self._config},
            **{"resume": "allow", "reinit": "create_new", "mode": mode, "settings": dict(SETTINGS)},
        )

    def _log(self, batch: Sequence[Entry]) -> None:
        for step, entries in groupby(batch, key=lambda entry: entry[3]):
            self._run.log({"step": step, **{name: value for name, value, _, _ in entries}})

    def _finish(self, status: RunStatus) -> None:
        self._run.finish(exit_code=EXIT_CODES[status])
