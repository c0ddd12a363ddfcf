"""Trainings beside the GPUs they run on: metrics of ``seqlm.training.tracking.training_metrics``."""

from functools import partial

from monitoring.dashboards.model import RATE, Model, Panel, Query, dashboard, percentiles, share_panel
from monitoring.dashboards.selection import JOB, OF_RUN, RUN, Scheduler, average_and_lowest, gpus_of_job

_EACH = "{{run}} ({{job_id}})"
_BY = "run, job_id"
_STANDING = {"data_wait": "waiting for data", "checkpoint_stall": "checkpoints", "evaluation": "evaluation"}

_each = partial(Panel, legend=_EACH)
_stat = partial(_each, kind="stat", minimum=None)


def training(scheduler: Scheduler) -> Model:
    losses = (Query(_latest("loss"), _EACH), Query(_latest("validation_loss"), f"{_EACH} validation"))
    return dashboard(
        uid="hyperpod-training",
        title="Training",
        about="How fast trainings are, what they learn, and what holds them up; each job of a run by itself.",
        variables=[RUN, JOB],
        rows={
            "Progress": (
                _stat("Step", _latest("step"), decimals=0),
                _stat("Done", f"{_latest('step')} / {_latest('max_steps')}", unit="percentunit", maximum=1),
                _stat(
                    "Time left",
                    f"({_latest('max_steps')} - {_latest('step')})"
                    f" / ({_rate('step_seconds_count', '10m')} > 0)",
                    unit="s",
                ),
                _stat("Residues seen", _latest("run_residues")),
                _stat("Loss", _latest("loss"), decimals=3),
                _stat("Residues/s", _rate("residues_total", "5m")),
            ),
            "Speed": (
                _each(
                    "Residues/s",
                    _rate("residues_total"),
                    about="No padding, no special tokens. 0 while a training stands still.",
                ),
                share_panel(
                    "Fill",
                    f"{_rate('residues_total')} / ({_rate('tokens_total')} > 0)",
                    _EACH,
                    about="Share of the packs' slots that hold residues.",
                ),
                share_panel(
                    "MFU",
                    f"{_rate('model_flops_total')} / {_latest('peak_flops_per_second')}",
                    _EACH,
                    about="Model FLOPs over the bf16 peak of the GPUs' data sheet (Chowdhery et al. "
                    "2022, appendix B). Empty where the peak is not known, as on CPUs.",
                ),
                Panel(
                    "Step time",
                    percentiles(
                        "esm2_training_step_seconds", _BY, OF_RUN, legend=_EACH, shares=(0.5, 0.95, 0.99)
                    ),
                    unit="s",
                    about="Without waiting for data. A wide gap to p99 is a slow node, or the network.",
                ),
                share_panel(
                    "Where the time goes",
                    tuple(
                        Query(f"sum by ({_BY}) ({_rate(f'{name}_seconds_sum')})", f"{_EACH} {what}")
                        for name, what in {"step": "steps", **_STANDING}.items()
                    ),
                    stacked=True,
                    about="All but steps is time in which GPUs bill and learn nothing.",
                ),
                _each(
                    "Memory",
                    _latest("peak_memory_bytes"),
                    unit="bytes",
                    about="Most so far on the first GPU, of what torch gave out.",
                ),
            ),
            "Learning": (
                Panel("Loss", losses, minimum=None),
                _each(
                    "Gradient norm",
                    _latest("gradient_norm"),
                    about="Before clipping. Spikes come before losses that do not come back.",
                ),
                _each("Learning rate", _latest("learning_rate"), unit="sci"),
            ),
            "Checkpoints and losses of time": (
                _each(
                    "A checkpoint takes",
                    _latest("checkpoint_write_seconds"),
                    unit="s",
                    about="Beside the training, until the next one begins: then it holds it up.",
                ),
                _each(
                    "Steps at risk",
                    f"{_latest('step')} - {_latest('checkpoint_step')}",
                    decimals=0,
                    about="Made since the newest whole checkpoint: a failure now would cost them.",
                ),
                _each(
                    "Steps made again",
                    _latest("lost_steps_total"),
                    decimals=0,
                    about="By the present start of the run, for what a failure had cost.",
                ),
            ),
            "GPUs of the jobs": (
                _gpus("A kernel runs", "DCGM_FI_DEV_GPU_UTIL", scheduler, "percent", 100),
                _gpus("Tensor cores active", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", scheduler, "percentunit", 1),
                _gpus("Power", "DCGM_FI_DEV_POWER_USAGE", scheduler, "watt", None),
            ),
        },
    )


def _latest(name: str) -> str:
    return f"max by ({_BY}) (esm2_training_{name}{{{OF_RUN}}})"


def _rate(name: str, window: str = RATE) -> str:
    return f"sum by ({_BY}) (rate(esm2_training_{name}{{{OF_RUN}}}[{window}]))"


def _gpus(title: str, metric: str, scheduler: Scheduler, unit: str, maximum: float | None) -> Panel:
    return Panel(title, average_and_lowest(gpus_of_job(metric, scheduler)), unit=unit, maximum=maximum)
