"""Output of Slurm's commands for a cluster of three nodes with a few jobs."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from tests.lifecycle.node import StandIns

# As scontrol 22.05 and 24.11 print them: the second and third lines are of the later one.
NODES = """\
NodeName=ip-10-0-0-31 Arch=x86_64 CoresPerSocket=8 CPUAlloc=4 CPUEfctv=16 CPUTot=16 CPULoad=0.10 \
Gres=gpu:a10g:8(S:0-1) GresDrain=N/A GresUsed=gpu:a10g:3(IDX:0-1,4),nvme:1 NodeAddr=10.0.0.31 \
OS=Linux 6.8.0-1 #1 SMP RealMemory=1 State=MIXED ThreadsPerCore=2 Partitions=gpu,all Reason=a State=DOWN b
NodeName=ip-10-0-0-32 CPUAlloc=0 CPUTot=16 Gres=gpu:a10g:8(S:0-1) GresUsed=gpu:a10g:0(IDX:N/A) \
State=IDLE+DRAIN ThreadsPerCore=2 Partitions=gpu BootTime=None
NodeName=ip-10-0-0-33 CPUAlloc=0 CPUTot=16 Gres=(null) GresUsed=(null) State=IDLE* Partitions=cpu
"""
SDIAG = """\
*******************************************************
sdiag output at Sat Nov 21 12:00:00 2026 (1795262400)
Data since      Sat Nov 21 00:00:00 2026 (1795219200)
*******************************************************
Server thread count:  3
RPC queue enabled:    0
Agent queue size:     2
Agent count:          0

Jobs submitted: 12
Jobs started:   11
Jobs completed: 9
Jobs canceled:  1
Jobs failed:    0

Main schedule statistics (microseconds):
\tLast cycle:   1500
\tMax cycle:    3000
\tTotal cycles: 70
\tMean cycle:   1000
\tMean depth cycle:  0
\tCycles per minute: 1
\tLast queue length: 4

Backfilling stats
\tTotal backfilled jobs (since last slurm start): 5
\tLast cycle when: Sat Nov 21 11:59:00 2026 (1795262340)
\tLast cycle: 2500000
\tMean cycle: 2000000
\tLast queue length: 4
"""


def answer_for_slurm(stand_ins: StandIns, folder: Path) -> None:
    """Have the commands print that; the first job that nodes would help has been waiting for 10 minutes."""
    submitted = datetime.fromtimestamp(time.time() - 600, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    jobs = [
        f"PENDING|gpu|esm2|{submitted}|Resources",
        "PENDING|gpu|esm2|2020-01-01T00:00:00|Dependency",
        "PENDING|gpu|esm2|2020-01-01T00:00:00|JobHeldUser",
        "RUNNING|gpu|esm2|2020-01-01T00:00:00|None",
        "RUNNING|cpu|(null)|2020-01-01T00:00:00|None",
    ]
    for command, text in (("scontrol", NODES), ("squeue", "\n".join(jobs)), ("sdiag", SDIAG)):
        (folder / command).write_text(text)
        stand_ins.command(command, f'cat "{folder / command}"')
