"""Metrics of Slurm, from what its commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collectors import slurm_metrics
from collectors.text_files import format_samples
from node_setup.failure import SetupError
from node_setup.steps import exporters as step
from tests.lifecycle.node import StandIns, node_of
from tests.lifecycle.services import Services, services
from tests.lifecycle.slurm_answers import answer_for_slurm

__all__ = ["services"]


@pytest.fixture
def slurm(stand_ins: StandIns, tmp_path: Path) -> StandIns:
    answer_for_slurm(stand_ins, tmp_path)
    return stand_ins


def value(text: str, sample: str) -> float:
    found = re.findall(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    assert len(found) == 1, f"{sample} in:\n{text}"
    return float(found[0])


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ('slurm_cluster_nodes{state="mixed"}', 1),
        ('slurm_cluster_nodes{state="drained"}', 1),
        ('slurm_cluster_nodes{state="idle"}', 1),
        ('slurm_cluster_nodes{state="down"}', 0),
        ('slurm_cluster_gpus{state="allocated"}', 3),
        ('slurm_cluster_gpus{state="idle"}', 5),
        ('slurm_cluster_gpus{state="unavailable"}', 8),
        ('slurm_cluster_cpus{state="allocated"}', 4),
        ('slurm_cluster_cpus{state="idle"}', 28),
        ('slurm_cluster_partition_nodes{partition="gpu",state="drained"}', 1),
        ('slurm_cluster_partition_gpus{partition="all",state="allocated"}', 3),
        ('slurm_cluster_partition_gpus{partition="gpu",state="unavailable"}', 8),
        ('slurm_cluster_jobs{state="pending",partition="gpu",account="esm2"}', 3),
        ('slurm_cluster_jobs{state="running",partition="cpu",account="(null)"}', 1),
        ('slurm_scheduler_last_cycle_seconds{scheduler="main"}', 0.0015),
        ('slurm_scheduler_last_cycle_seconds{scheduler="backfill"}', 2.5),
        ('slurm_scheduler_mean_cycle_seconds{scheduler="backfill"}', 2),
        ('slurm_scheduler_queue_length{scheduler="main"}', 4),
        ("slurm_scheduler_threads", 3),
        ("slurm_scheduler_agent_queue_size", 2),
        ('slurm_scheduler_jobs_total{event="completed"}', 9),
        ('slurm_collector_success{source="nodes"}', 1),
        ('slurm_collector_success{source="jobs"}', 1),
        ('slurm_collector_success{source="scheduler"}', 1),
    ],
)
def test_what_slurm_says_is_counted(slurm: StandIns, sample: str, expected: float) -> None:
    assert value(slurm_metrics.collect(), sample) == pytest.approx(expected)


def test_waiting_is_counted_of_jobs_that_nodes_would_help(slurm: StandIns) -> None:
    waited = value(slurm_metrics.collect(), 'slurm_queue_longest_wait_seconds{partition="gpu"}')
    assert 600 <= waited < 700


def test_samples_of_a_metric_stand_together_with_their_type(slurm: StandIns) -> None:
    names = [line.split("{")[0].split(" ")[0] for line in slurm_metrics.collect().splitlines()]
    types = [line for line in slurm_metrics.collect().splitlines() if line.startswith("#")]
    runs = [
        name
        for name, before in zip(names, ["", *names], strict=False)
        if name != before and name != "#"
    ]
    assert len(runs) == len(set(runs)) == len(types)
    assert (
        "# TYPE slurm_scheduler_jobs_total counter" in types
        and "# TYPE slurm_cluster_nodes gauge" in types
    )


def test_a_source_that_fails_has_no_numbers_but_says_so(
    slurm: StandIns, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.command(
        "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    )
    text = slurm_metrics.collect()
    assert value(text, 'slurm_collector_success{source="jobs"}') == 0
    assert "slurm_cluster_jobs{" not in text and "slurm_queue" not in text
    assert value(text, 'slurm_cluster_nodes{state="idle"}') == 1
    assert "Unable to contact slurm controller" in capsys.readouterr().err


def test_a_command_that_hangs_is_a_failed_source(
    slurm: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.command("sdiag", "exec tail --follow /dev/null")
    monkeypatch.setattr(slurm_metrics, "SECONDS_PER_COMMAND", 0.2)
    assert value(slurm_metrics.collect(), 'slurm_collector_success{source="scheduler"}') == 0


def test_an_administrators_own_formats_do_not_reach_the_commands(
    slurm: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    slurm.command("squeue", '[[ -z "${SLURM_TIME_FORMAT-}${SQUEUE_FORMAT-}" && "$TZ" == UTC ]]')
    assert value(slurm_metrics.collect(), 'slurm_collector_success{source="jobs"}') == 1


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:2", 2),
        ("gpu:(null):1(IDX:0)", 1),
        ("gpu:h100:8(S:0-1),gpu:a10g:1", 9),
        ("nvme:gpu:4", 0),
        ("craynetwork:4", 0),
        ("", 0),
    ],
)
def test_gpus_of_a_gres_field(gres: str, count: int) -> None:
    assert slurm_metrics.gpus(gres) == count


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("ALLOCATED+DRAIN", "draining"),
        ("MIXED-+CLOUD", "mixed"),
        ("DOWN*+DRAIN+NOT_RESPONDING", "down"),
        ("IDLE+FAIL", "fail"),
        ("IDLE~+POWERED_DOWN", "idle"),
        ("", "unknown"),
    ],
)
def test_states_of_nodes(state: str, word: str) -> None:
    assert slurm_metrics.node_state(state) == word


def test_labels_are_escaped() -> None:
    text = format_samples([("a", {"account": 'x"\\\n'}, 1)], lambda _: False)
    assert text == '# TYPE a gauge\na{account="x\\"\\\\\\n"} 1\n'


def test_the_step_runs_on_the_primary_controller_alone(tmp_path: Path, services: Services) -> None:
    node = node_of(tmp_path, "login")
    step.run_collector_of_slurm(node)
    assert services.restarts == []
    node = node_of(tmp_path, "controller")
    output = node.host.path("/var/lib/node_exporter/textfile/slurm_metrics.prom")
    output.parent.mkdir(parents=True)
    lines = (
        r"slurm_collector_success{source=\"nodes\"} 1\nslurm_collector_success{source=\"jobs\"} 0\n"
    )
    services.at_start(f'printf "{lines}" > "{output}"')
    step.run_collector_of_slurm(node)
    assert services.restarts == ["slurm-metrics.service"]
    assert node.warnings[0].startswith("no metrics of Slurm's jobs: see")


def test_a_slurm_that_answers_nothing_fails_the_step(tmp_path: Path, services: Services) -> None:
    node = node_of(tmp_path, "controller")
    output = node.host.path("/var/lib/node_exporter/textfile/slurm_metrics.prom")
    output.parent.mkdir(parents=True)
    services.at_start(rf'printf "slurm_collector_success{{source=\"jobs\"}} 0\n" > "{output}"')
    with pytest.raises(SetupError, match=r"slurm-metrics.service has no numbers .* after 120 s"):
        step.run_collector_of_slurm(node)
