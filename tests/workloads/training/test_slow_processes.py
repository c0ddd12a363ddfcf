"""A process that is slower than the others for three minutes is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from seqlm.training.health import place
from seqlm.training.health.pass_times import SharedTimes
from seqlm.training.health.place import Place, gpu_state, node_name, parsed_state
from seqlm.training.health.slow_processes import Changes, SlowProcesses
from seqlm.training.health.unfit_nodes import forget_unfit, report_unfit, unfit_nodes
from seqlm.training.tracking.progress import WARM_STEPS
from seqlm.training.tracking.training_metrics import TrainingMetrics
from tests.workloads.training.forked_processes import forked
from tests.workloads.training.slow_training import (
    KINDS,
    NUM_STEPS,
    SLEEP_SECONDS,
    SLOW_RANK,
    train_with_a_sleeper,
)
from tests.workloads.training.training_runs import lines, write_run_file

MINUTE = 60.0


def looked_at(
    *seconds: tuple[float, ...], every: float = MINUTE, kinds: Sequence[str] = ()
) -> list[Changes]:
    """Changes with the times of processes, given at equal distances."""
    slow = SlowProcesses(kinds or ["GPU"] * len(seconds[0]))
    return [slow.update(SharedTimes(index * every, one)) for index, one in enumerate(seconds)]


def named(changes: Changes) -> list[int]:
    return [one.process for one in changes.slow]


def test_a_process_is_named_once_it_was_slow_for_three_minutes() -> None:
    found = looked_at(*[(1.0, 1.0, 1.4, 1.0)] * 6)
    assert [named(one) for one in found] == [[], [], [], [2], [], []]
    (slow,) = found[3].slow
    assert slow.ratio == pytest.approx(1.4) and slow.seconds == 180


def test_a_process_is_compared_with_those_of_its_kind() -> None:
    kinds = ("H200", "H200", "H100", "H100", "H100", "A100")
    found = looked_at(*[(1.0, 1.0, 1.5, 1.5, 1.8, 3.0)] * 4, kinds=kinds)
    assert [named(one) for one in found] == [[], [], [], [4]]


def test_a_process_that_catches_up_is_not_named() -> None:
    slow = (1.0, 1.0, 1.4, 1.0)
    well = (1.0, 1.0, 1.09, 1.0)
    assert not any(map(named, looked_at(slow, slow, slow, well, slow, slow, slow)))


def test_a_named_process_that_is_well_again_can_be_named_again() -> None:
    slow = (1.0, 1.0, 1.2)
    found = looked_at(*[slow] * 4, (1.0, 1.0, 1.0), *[slow] * 4)
    assert [named(one) for one in found] == [[], [], [], [2], [], [], [], [], [2]]
    assert [one.recovered for one in found] == [(), (), (), (), (2,), (), (), (), ()]


def test_the_slower_one_of_two_processes_is_named() -> None:
    assert named(looked_at(*[(1.15, 1.0)] * 4)[-1]) == [0]


def test_times_that_are_not_known_say_nothing() -> None:
    slow = (1.0, 1.0, 1.4)
    unknown = (1.0, 0.0, 1.4)
    found = looked_at(unknown, slow, slow, unknown, slow)
    assert [named(one) for one in found] == [[], [], [], [], [2]]
    assert SharedTimes(0.0, unknown).logged() == {}


def test_seldom_logged_steps_name_it_at_the_second_one() -> None:
    assert [named(one) for one in looked_at(*[(1.0, 1.0, 2.0)] * 2, every=600)] == [[], [2]]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            "3, 1650223012345, 1155, 1980, 84\n",
            "process 9 (node ip-10-0-0-7, GPU 3, serial number 1650223012345, 1155 of 1980 MHz, 84 degrees "
            "Celsius)",
        ),
        (
            "3, [N/A], 1155, 1980, 84",
            "process 9 (node ip-10-0-0-7, GPU 3, serial number unknown, 1155 of 1980 MHz, 84 degrees "
            "Celsius)",
        ),
        (
            "3, 1650223012345, [N/A], [N/A], [N/A]",
            "process 9 (node ip-10-0-0-7, GPU 3, serial number 1650223012345, clock unknown, temperature "
            "unknown)",
        ),
    ],
)
def test_a_gpu_is_described_by_what_it_reports(answer: str, text: str) -> None:
    found = Place(9, "ip-10-0-0-7", parsed_state(answer))
    assert str(found) == text
    assert Place.of(found.to_dict()) == found
    assert found.gpu_index == "3"


@pytest.mark.parametrize("answer", ["", "No devices were found", "1, 2"])
def test_another_answer_describes_no_gpu(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed_state(answer) is None
    monkeypatch.setattr(place, "printed", lambda command: answer or None)
    properties = SimpleNamespace(uuid="1b2c")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    lost = Place(9, "node", gpu_state(torch.device("cuda", 1)))
    assert str(lost) == "process 9 (node node, GPU 1, no answer from NVML)"
    assert Place.of(lost.to_dict()) == lost


def test_a_node_has_the_schedulers_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in place.NODE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "pod-1")
    assert node_name() == "pod-1"
    monkeypatch.setenv("NODE_NAME", "hyperpod-i-1")
    assert node_name() == "hyperpod-i-1"


def test_reports_add_up_until_they_are_forgotten(tmp_path: Path) -> None:
    assert unfit_nodes(tmp_path) == {}
    report_unfit(tmp_path, {"a": "slow"})
    report_unfit(tmp_path, {"b": "sick", "a": "slow again"})
    assert unfit_nodes(tmp_path) == {"a": "slow again", "b": "sick"}
    forget_unfit(tmp_path)
    forget_unfit(tmp_path)
    assert unfit_nodes(tmp_path) == {}


def test_a_slow_process_is_published_as_long_as_it_is_slow() -> None:
    metrics = TrainingMetrics(
        run="run", max_steps=9, processes=16, peak_flops=None, num_flops=lambda tokens, pairs: 1
    )
    metrics.slow_process(9, "node-1", "3", 1.4)
    assert published(metrics) == [({"process": "9", "node": "node-1", "gpu": "3"}, 1.4)]
    metrics.slow_process(9, "node-1", "3", None)
    assert published(metrics) == []


def published(metrics: TrainingMetrics) -> list[tuple[dict[str, str], float]]:
    """Places and ratios of the slow processes."""
    return [
        ({name: sample.labels[name] for name in ("process", "node", "gpu")}, sample.value)
        for family in text_string_to_metric_families(generate_latest(metrics.registry).decode())
        for sample in family.samples
        if sample.name == "esm2_training_slow_process_ratio"
    ]


@pytest.fixture(scope="module")
def slow_runs(prepared: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    run_file = write_run_file(folder, prepared, tiny_model)
    settings = "train.tokens_per_step=512 train.exclude_unfit_nodes=true"
    with forked(2, train_with_a_sleeper, run_file, settings, log=folder / "log") as started:
        assert started.ends(300) == [0, 0], started.output
    return folder / "runs"


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_that_sleeps_is_named(slow_runs: Path, kind: str) -> None:
    """The others wait for it, so that a step takes equally long on all of them."""
    run_dir = slow_runs / kind
    first = WARM_STEPS + 1
    (event,) = [line for line in lines(run_dir, "event") if "slow" in line["event"]]
    assert event["step"] == first + 3, "three minutes after the first step that is measured"
    who = f"process {SLOW_RANK} (node node-{SLOW_RANK})"
    assert event["event"].startswith(f"warning: {who} has been slow for 180 s: ")
    assert list(unfit_nodes(run_dir)) == [f"node-{SLOW_RANK}"]
    logged = {line["step"]: line for line in lines(run_dir, "train")}
    assert "pass_seconds" not in logged[WARM_STEPS]
    for step in range(first, NUM_STEPS + 1):
        seconds = logged[step]["pass_seconds"] * logged[step]["slowest_pass_ratio"]
        assert seconds >= 2 * SLEEP_SECONDS, "the model has two layers"
        assert logged[step]["pass_seconds"] < seconds
