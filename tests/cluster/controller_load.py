"""Memory and processor time of the services of a controller and a login node, with 1,000 queued jobs.

``python -m pytest tests/cluster/controller_load.py -s`` prints the table of docs/cost.md in some ten minutes;
it needs root. Its name keeps it out of ``make test-cluster``: it measures, and proves nothing.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine
from tests.cluster.test_users import as_user

NUM_JOBS = 1000
NUM_LOGINS = 10
SECONDS = 60
SUBMIT = f"""
for number in $(seq {NUM_JOBS}); do
    sbatch --quiet --exclusive --nodes=3 --partition=gpu --wrap='sleep 900'
done
"""
# Programs of people that outlive this command, because they do not hold its output.
SHELLS = f"""
for number in $(seq {NUM_LOGINS}); do
    setsid bash --login -c 'python3 -c "import json, time; time.sleep(60)"; true' >/dev/null 2>&1 </dev/null &
done
sleep 5
"""
# Five people who look at the queue, each every two seconds.
WATCH = f"""
for person in 1 2 3 4 5; do
    (for round in $(seq {SECONDS // 2}); do squeue >/dev/null; sleep 2; done) &
done
wait
"""
# Name, resident memory now and at its peak (KiB), and seconds of processors of every process.
PROCESSES = r"""
import json, os, re
from pathlib import Path
found = []
for folder in Path("/proc").glob("[0-9]*"):
    try:
        status = (folder / "status").read_text()
        words = (folder / "cmdline").read_text().split("\0")
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        continue
    name = re.search(r"^Name:\s*(.*)$", status, re.M)[1]
    scripts = [Path(word).stem for word in words if word.endswith(".py")]
    size = {key: int(value) for key, value in re.findall(r"^(VmRSS|VmHWM):\s*(\d+)", status, re.M)}
    if size:
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        found.append([scripts[0] if scripts else name, size["VmRSS"], size["VmHWM"], seconds])
print(json.dumps(found))
"""


@dataclass
class Use:
    peak_mib: float = 0
    cpu_seconds: float = 0


def uses(machine: Machine) -> dict[str, Use]:
    """Return the sums over the processes of each name."""
    found: dict[str, Use] = {}
    for name, _, peak_kib, seconds in json.loads(machine.run(["python3", "-c", PROCESSES]).output):
        use = found.setdefault(name, Use())
        use.peak_mib += peak_kib / 1024
        use.cpu_seconds += seconds
    return found


def show(title: str, before: dict[str, Use], after: dict[str, Use], seconds: float) -> None:
    print(f"\n{title}\n| process | peak memory, MiB | share of a processor |\n|---|---|---|")
    for name, use in sorted(after.items(), key=lambda item: -item[1].peak_mib):
        share = (use.cpu_seconds - before.get(name, Use()).cpu_seconds) / seconds
        print(f"| {name} | {use.peak_mib:.0f} | {share:.3f} |")
    print(f"| all | {sum(use.peak_mib for use in after.values()):.0f} | |", flush=True)


@pytest.mark.timeout(1800)
def test_controller_load(cluster: Cluster, lifecycle: Lifecycle) -> None:
    cluster.wait_for_slurm()
    controller = cluster.controller
    login = cluster.login
    idle = uses(controller)
    started = time.monotonic()
    controller.run(["bash", "-c", SUBMIT], seconds=900)
    submitted = uses(controller)
    queued = controller.run(["bash", "-c", "squeue --noheader | wc --lines"]).output.strip()
    print(f"\n{queued} jobs are queued")
    watched = time.monotonic()
    show("Controller while jobs are submitted", idle, submitted, watched - started)
    login.run(["bash", "-c", WATCH], seconds=300)
    after = uses(controller)
    show(f"Controller with {queued} jobs", submitted, after, time.monotonic() - watched)
    before = uses(login)
    started = time.monotonic()
    login.run(["bash", "-c", SHELLS], user="ada", environment=as_user("ada"))
    title = f"Login node with {NUM_LOGINS} shells that run Python"
    show(title, before, uses(login), time.monotonic() - started)
    controller.run(["scancel", "--partition=gpu"])
