"""torchrun as a library, asked to stop more than once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from seqlm.launch import torchrun
from tests.cluster.patience import wait_until
from tests.workloads.launch.slurm_stand_ins import REPOSITORY

AGENT = """
import pathlib, sys
from seqlm.launch.torchrun import elastic_config, run_processes

meeting = {"nproc_per_node": 1, "run_id": "1", "rdzv_endpoint": "localhost:0"}
config = elastic_config(num_nodes=1, shutdown_timeout=60, **meeting)
status = run_processes(config, sys.argv[1:]).status
(pathlib.Path(sys.argv[-1]) / "ended").touch()
raise SystemExit(status)
"""
SAVING = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])

def save(number, frame):
    (folder / "asked").touch()
    while not (folder / "enough").exists():
        time.sleep(0.05)
    (folder / "saved").touch()
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
(folder / "begun").touch()
time.sleep(600)
"""


@pytest.mark.long
def test_a_second_signal_does_not_keep_processes_from_saving(tmp_path: Path) -> None:
    """Repeat the signal as the job's supervisor does, because a starting step may miss one."""
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, "-c", SAVING, str(tmp_path)], cwd=REPOSITORY
    )
    try:
        wait_until((tmp_path / "begun").exists, "the process", seconds=240)
        agent.send_signal(signal.SIGTERM)
        wait_until((tmp_path / "asked").exists, "the signal", seconds=240)
        for _ in range(3):
            agent.send_signal(signal.SIGTERM)
            time.sleep(0.5)
        assert agent.poll() is None and not (tmp_path / "ended").exists()
        (tmp_path / "enough").touch()
        assert agent.wait(timeout=240) == 143
        assert (tmp_path / "saved").exists()
    finally:
        (tmp_path / "enough").touch()
        agent.kill()
        agent.wait()


RESTARTING = """
import pathlib, sys
from seqlm.launch.torchrun import Ending, Restarts, elastic_config, run_processes

folder = pathlib.Path(sys.argv[-1])
meeting = {"nproc_per_node": 2, "run_id": "1", "rdzv_endpoint": "localhost:0"}
config = elastic_config(num_nodes=1, shutdown_timeout=60, **meeting)

def may_restart(ending: Ending) -> bool:
    with (folder / "failures").open("a") as file:
        print(ending.rank, ending.status, file=file)
    return ending.status == 137

restarts = Restarts(may_restart, began=lambda: None)
raise SystemExit(run_processes(config, sys.argv[1:], restarts).status)
"""
FAILING = """
import os, pathlib, signal, sys, time
from seqlm.training.memory.template import fork_if_template

folder = pathlib.Path(sys.argv[1])
imported = []

def do_imports():
    imported.append(os.getpid())
    (folder / f"template-{os.getpid()}").touch()

fork_if_template(do_imports)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    time.sleep(5)
if (folder / "killed").exists():
    names = ["TORCHELASTIC_RESTART_COUNT", "ESM2_TEMPLATE"]
    values = [imported[0], os.getpid() == os.getsid(0), *map(os.environ.get, names)]
    (folder / "again").write_text(" ".join(map(str, values)))
    sys.exit(2)
(folder / "killed").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_processes_restart_in_place_if_allowed(tmp_path: Path) -> None:
    """One template forks them. The other one ignores SIGTERM, as one that waits for the killed one."""
    done = subprocess.run(
        [sys.executable, "-c", RESTARTING, "-c", FAILING, str(tmp_path)],
        cwd=REPOSITORY,
        timeout=240,
    )
    assert (tmp_path / "failures").read_text().splitlines() == ["1 137", "1 2"]
    assert done.returncode == 2
    (template,) = tmp_path.glob("template-*")
    process = template.name.removeprefix("template-")
    assert (tmp_path / "again").read_text() == f"{process} True 1 None"
    assert not Path("/proc", process).exists()


@pytest.mark.parametrize(
    ("seconds", "num_nodes", "waited"),
    [(1.0, 2, 0.2), (1.0, 50, 0.5), (1.0, 1000, 1.0), ((0.0, 0.3), 2, (0.0, 0.3))],
)
def test_agents_of_many_nodes_do_not_ask_the_store_more_often_than_torch(
    seconds: float | tuple[float, float],
    num_nodes: int,
    waited: float | tuple[float, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[float | tuple[float, float]] = []
    monkeypatch.setattr(torchrun, "_delay", found.append)
    torchrun._short_delay(seconds, num_nodes=num_nodes)
    assert found == [waited]


@pytest.mark.parametrize(("num_nodes", "looks"), [(2, [0.0, 0.3, 0.6]), (50, [0.0, 0.6])])
def test_agents_look_at_the_store_itself(
    num_nodes: int, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would answer for a second from what it saw last."""
    now = 100.0
    found: list[float] = []

    class Backend:
        def get_state(self) -> None:
            found.append(now - 100)

    clock = SimpleNamespace(monotonic=lambda: now)
    settings = dynamic_rendezvous.RendezvousSettings(
        run_id="1",
        min_nodes=num_nodes,
        max_nodes=num_nodes,
        timeout=dynamic_rendezvous.RendezvousTimeout(),
        keep_alive_interval=timedelta(seconds=5),
        keep_alive_max_attempt=3,
    )
    with torchrun._meeting_soon(num_nodes):
        holder = dynamic_rendezvous._BackendRendezvousStateHolder(Backend(), settings)  # type: ignore[arg-type]
    monkeypatch.setattr(dynamic_rendezvous, "time", clock)
    for seconds in (0.0, 0.1, 0.3, 0.4, 0.6):
        now = 100 + seconds
        holder.sync()
    assert found == pytest.approx(looks)
