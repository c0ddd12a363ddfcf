"""Dashboard of trainings and their GPUs, with metrics of ``seqlm.training.tracking.training_metrics``."""

from functools import partial

from monitoring.dashboards.model import (
    RATE,
    Model,
    Panel,
    Query,
    dashboard,
    percentiles,
    share_panel,
)
from monitoring.dashboards.selection import (
    JOB,
    OF_RUN,
    RUN,
    Scheduler,
    average_and_lowest,
    gpus_of_job,
)

_EACH = "{{run}} ({{job_id}})"
_BY = "run, job_id"
_TIMES = {
    "step": "steps",
    "data_wait": "waiting for data",
    "checkpoint_stall": "checkpoints",
    "memory_state_stall": "states in memory",
    "evaluation": "evaluation",
}
"""Legends of the metrics of a training's time."""

_each = partial(Panel, legend=_EACH)
_stat = partial(_each, kind="stat", minimum=None)


def training(scheduler: Scheduler) -> Model:
    """Return the dashboard of trainings."""
    losses = (
        Query(_latest("loss"), _EACH),
        Query(_latest("validation_loss"), f"{_EACH} validation"),
    )
    return dashboard(
        uid="hyperpod-training",
        title="Training",
        about="Speed, losses and delays of trainings; each job of a run is shown separately.",
        variables=[RUN, JOB],
        rows={
            "Progress": (
                _stat("Step", _latest("step"), decimals=0),
                _stat(
                    "Done",
                    f"{_latest('step')} / {_latest('max_steps')}",
                    unit="percentunit",
                    maximum=1,
                ),
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
                    about="Residues without padding and special tokens. 0 while a training makes no steps.",
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
                    "2022, appendix B). Empty if the peak is not known, for example on CPUs.",
                ),
                Panel(
                    "Step time",
                    percentiles(
                        "esm2_training_step_seconds",
                        _BY,
                        OF_RUN,
                        legend=_EACH,
                        shares=(0.5, 0.95, 0.99),
                    ),
                    unit="s",
                    about="Time without waiting for data. A wide gap to p99 means a slow node or network.",
                ),
                share_panel(
                    "Where the time goes",
                    tuple(
                        Query(f"sum by ({_BY}) ({_rate(f'{name}_seconds_sum')})", f"{_EACH} {what}")
                        for name, what in _TIMES.items()
                    ),
                    stacked=True,
                    about="Apart from steps, GPUs cost money without progress.",
                ),
                _each(
                    "Memory",
                    _latest("peak_memory_bytes"),
                    unit="bytes",
                    about="Highest amount so far that torch has allocated on the first GPU.",
                ),
                _each(
                    "Slowest process",
                    _latest("slowest_pass_ratio"),
                    minimum=1,
                    warn_above=1.1,
                    about="Longest time of a pack of any process over the median, without waiting for "
                    "others. A process above 1.1 for three minutes raises an alert.",
                ),
            ),
            "Learning": (
                Panel("Loss", losses, minimum=None),
                _each(
                    "Gradient norm",
                    _latest("gradient_norm"),
                    about="Norm before clipping. Spikes precede losses that do not recover.",
                ),
                _each("Learning rate", _latest("learning_rate"), unit="sci"),
            ),
            "Checkpoints and losses of time": (
                _each(
                    "A checkpoint takes",
                    _latest("checkpoint_write_seconds"),
                    unit="s",
                    about="Checkpoints are written in the background. One that takes longer than the "
                    "interval delays the training.",
                ),
                _each(
                    "Steps at risk",
                    f"{_latest('step')} - {_latest('checkpoint_step')}",
                    decimals=0,
                    about="Steps since the newest complete checkpoint, which a failure now would lose.",
                ),
                _each(
                    "Steps made again",
                    _latest("lost_steps_total"),
                    decimals=0,
                    about="Steps that the current start of the run has repeated after a failure.",
                ),
            ),
            "GPUs of the jobs": (
                _gpus("A kernel runs", "DCGM_FI_DEV_GPU_UTIL", scheduler, "percent", 100),
                _gpus(
                    "Tensor cores active",
                    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
                    scheduler,
                    "percentunit",
                    1,
                ),
                _gpus("Power", "DCGM_FI_DEV_POWER_USAGE", scheduler, "watt", None),
            ),
        },
    )


def _latest(name: str) -> str:
    """Return the latest value of a metric of the chosen runs."""
    return f"max by ({_BY}) (esm2_training_{name}{{{OF_RUN}}})"


def _rate(name: str, window: str = RATE) -> str:
    """Return the rate of a counter of the chosen runs."""
    return f"sum by ({_BY}) (rate(esm2_training_{name}{{{OF_RUN}}}[{window}]))"


def _gpus(title: str, metric: str, scheduler: Scheduler, unit: str, maximum: float | None) -> Panel:
    """Return a panel of a metric of the chosen jobs' GPUs."""
    return Panel(
        title, average_and_lowest(gpus_of_job(metric, scheduler)), unit=unit, maximum=maximum
    )
