"""Slurm's programs as stand-ins that say how they were called, and a job for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from seqlm.launch.job_file import Job

REPOSITORY = Path(__file__).parents[3]
BATCH_FILE = REPOSITORY / "workloads/seqlm/launch/train.sbatch"
SRUN = """#!{python} -S
import json, os, sys, time
here = {folder!r}
words = sys.argv[1:]
with open(here + "/calls", "a") as calls:
    print(json.dumps(["srun", *words]), file=calls)
if words == ["--help"]:
    print(open(here + "/help").read())
elif any(word.endswith("node_check") for word in words):
    print("a greeting\\n" + open(here + "/answers").read())
elif "check" in words:
    place = words.index("check")
    with open(here + "/failing") as file:
        failing = [set(names) for names in json.load(file)]
    folder = here + "/job/endings/" + words[place - 1]
    os.makedirs(folder, exist_ok=True)
    for group in words[place + 1 :]:
        bad = any(names - {{"once"}} <= set(group.split(",")) for names in failing)
        ending = {{"rank": 0, "status": int(bad), "seconds": 0, "message": "timed out" * bad}}
        for node in group.split(","):
            with open(folder + "/" + node + ".json", "w") as file:
                json.dump({{"node": node}} | ending, file)
    with open(here + "/failing", "w") as file:
        json.dump([sorted(names) for names in failing if "once" not in names], file)
else:
    with open(here + "/steps") as file:
        steps = json.load(file)
    step = steps.pop(0)
    with open(here + "/steps", "w") as file:
        json.dump(steps, file)
    for name, text in step.get("files", {{}}).items():
        with open(name, "w") as file:
            file.write(text)
    if "wait" in step:
        open(here + "/started", "w").close()
        while not os.path.exists(here + "/stopped"):
            time.sleep(0.02)
    if "checkpoint" in step:
        os.makedirs(step["checkpoint"])
    for node, record in step.get("endings", {{}}).items():
        agent = next(place for place, word in enumerate(words) if word.endswith("node_agent"))
        folder = here + "/job/endings/" + words[agent + 2]
        os.makedirs(folder, exist_ok=True)
        with open(folder + "/" + node + ".json", "w") as file:
            json.dump({{"node": node, "message": "", "seconds": 0, "rank": 0}} | record, file)
    sys.exit(step["status"])
"""
OTHER = """#!{python} -S
import json, sys
here = {folder!r}
words = sys.argv[1:]
with open(here + "/calls", "a") as calls:
    print(json.dumps([{name!r}, *words]), file=calls)
if words[:2] == ["show", "hostnames"]:
    print(open(here + "/nodes").read())
if {name!r} == "sinfo":
    print(open(here + "/partition").read())
if "--signal=TERM" in words:
    open(here + "/stopped", "w").close()
"""
WELL = {"python": "3.12", "torch": "2.13.0"}


def answers(**problems: list[str]) -> list[dict[str, Any]]:
    names = ("node-1", "node-2")
    return [
        {"node": n, "problems": problems.get(n.replace("-", "_"), []), "versions": WELL}
        for n in names
    ]


class Slurm:
    """Programs for a PATH; ``steps`` are what the job's steps do, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job_folder = folder / "job"
        for name in ("bin", "job", "run", "work"):
            (folder / name).mkdir()
        self.program("srun", SRUN.format(python=sys.executable, folder=str(folder)))
        for name in ("scontrol", "scancel", "sinfo"):
            self.program(name, OTHER.format(python=sys.executable, folder=str(folder), name=name))
        (folder / "help").write_text("srun [OPTIONS]\n")
        (folder / "work/manifest.json").touch()
        self.on_nodes(2)
        self.job = Job(
            stage="train",
            code=str(REPOSITORY),
            version="abc",
            work_folder=str(folder / "work"),
            overrides=("name=run",),
            run_dir=str(folder / "run"),
            data_manifest=str(folder / "work/manifest.json"),
            python="/fsx/venv/bin/python",
            image=None,
            mounts=("/fsx",),
            gpus_per_node=8,
            processes_per_node=8,
            efa=False,
        )

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def on_nodes(self, num_nodes: int, *failing: str) -> None:
        """The job gets as many; an all-reduce fails in a group that has all nodes of one of ``failing``.

        With ``once`` beside the nodes it does so in the first round alone.
        """
        names = [f"node-{n}" for n in range(1, num_nodes + 1)]
        (self.folder / "nodes").write_text("\n".join(names))
        (self.folder / "partition").write_text("\n".join([*names, "node-9"]))
        (self.folder / "failing").write_text(json.dumps([nodes.split() for nodes in failing]))
        self.answer([{"node": name, "problems": [], "versions": WELL} for name in names])

    def answer(self, found: list[dict[str, Any]]) -> None:
        (self.folder / "answers").write_text("".join(f"{json.dumps(line)}\n" for line in found))

    def start(self, *steps: dict[str, Any]) -> subprocess.Popen[str]:
        (self.folder / "steps").write_text(json.dumps(steps))
        job_file = self.job.write(self.job_folder)
        return subprocess.Popen(
            ["bash", str(BATCH_FILE), str(REPOSITORY), str(job_file)],
            env={
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_PARTITION": "gpu",
                "SLURM_JOB_NODELIST": "node-[1-2]",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *steps: dict[str, Any]) -> tuple[int, str]:
        process = self.start(*steps)
        output, _ = process.communicate(timeout=240)
        return process.returncode, output

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def said_to(self, name: str) -> list[list[str]]:
        return [
            call[1:]
            for call in self.calls
            if call[0] == name and call[1:2] not in (["show"], ["ping"])
        ]

    @property
    def train_steps(self) -> list[list[str]]:
        return [words for words in self._agents if "check" not in words]

    @property
    def network_checks(self) -> list[tuple[str, ...]]:
        """The groups of each round."""
        return [
            tuple(words[words.index("check") + 1 :]) for words in self._agents if "check" in words
        ]

    @property
    def _agents(self) -> list[list[str]]:
        return [
            words for words in self.said_to("srun") if any(w.endswith("node_agent") for w in words)
        ]
