"""Pods of a rendered job as processes of this machine: the same commands, arguments and environment.

Folders stand for the volumes, so paths in arguments and environment are replaced; pods have addresses of
their own, which agents here have not, so their ports are; no devices are looked for. Nothing else differs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from seqlm.launch.pod_memory import NODE_MEMORY
from tests.job_schemas.validation import pod_templates
from tests.workloads.training.training_runs import free_port

REPOSITORY = Path(__file__).parents[3]
AGENT_PACKAGES = REPOSITORY / ".venv-hyperpod"
"""HyperPod's agent, which make test-all installs apart: it pins an older torch."""
SETUP_SECONDS = 120
OF_POD = {"NODE_NAME": "node-1", "POD_IP": "127.0.0.1"}
"""Environment that Kubernetes gives a pod."""


@dataclass
class Pod:
    main: subprocess.Popen[bytes]
    log_file: Path
    port: int
    folder: Path
    """Its /tmp."""
    memory: Path
    """Memory of its node."""

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def ends(self, seconds: float) -> int:
        return self.main.wait(timeout=seconds)


@dataclass
class Pods:
    manifest: Mapping[str, Any]
    shared: Path
    """Stands for /fsx."""
    folder: Path
    first_port: int = field(default_factory=free_port)
    """Port on which the first pod listens."""

    @contextmanager
    def running(self, config: str, num_pods: int) -> Iterator[list[Pod]]:
        """Start the pods: what comes before the main container, in each, and then that one."""
        (self.folder / "run").mkdir(parents=True)
        (self.folder / "run/config.yaml").write_text(config)
        pods: list[Pod] = []
        try:
            for rank in range(num_pods):
                pods.append(self._start(f"pod-{rank}"))
            yield pods
        finally:
            for pod in pods:
                _end(pod.main)

    def replace(self, pods: list[Pod], rank: int) -> None:
        """Lose a pod with its node, and start another one on another node."""
        _end(pods[rank].main)
        shutil.rmtree(pods[rank].memory)
        pods[rank] = self._start(f"pod-{rank}-again")

    def _start(self, name: str) -> Pod:
        spec = pod_templates(dict(self.manifest))[0]["spec"]
        folder = self.folder / name
        folder.mkdir()
        memory = self.folder / f"memory-of-{name}"
        memory.mkdir(mode=0o700)
        port = free_port()
        added = {"PET_RDZV_ENDPOINT": f"127.0.0.1:{self.first_port}"}
        log_file = folder / "log"
        with log_file.open("wb") as log:
            for container in spec["initContainers"]:
                process = self._process(container, folder, {}, port, log)
                assert process.wait(timeout=SETUP_SECONDS) == 0, log_file.read_text()
            [container] = spec["containers"]
            main = self._process(container, folder, added, port, log)
            return Pod(main, log_file, port, folder, memory)

    def _process(
        self,
        container: Mapping[str, Any],
        folder: Path,
        added: Mapping[str, str],
        port: int,
        log: IO[bytes],
    ) -> subprocess.Popen[bytes]:
        places = {
            "/fsx": str(self.shared),
            "/etc/esm2": str(self.folder / "run"),
            "/tmp": str(folder),
            NODE_MEMORY: str(self.folder / f"memory-of-{folder.name}"),
        }

        def here(text: str) -> str:
            text = re.sub(r"\$\((\w+)\)", lambda found: (OF_POD | added)[found[1]], text)
            # Once: folders of tests are below /tmp themselves.
            text = re.sub(
                rf"^(.*=)?({'|'.join(places)})(?=/|$)", lambda m: (m[1] or "") + places[m[2]], text
            )
            text = re.sub(r"^--server-port=\d+$", f"--server-port={port}", text)
            return re.sub(r"^--(gpus|efa)=\d+$", r"--\1=0", text)

        paths = [f"{REPOSITORY}/workloads", str(AGENT_PACKAGES), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(filter(None, paths)),
            "CUDA_VISIBLE_DEVICES": "",
            **{
                variable["name"]: here(variable["value"])
                if "value" in variable
                else OF_POD[variable["name"]]
                for variable in container["env"]
            },
            **added,
            # Both pods have all of this machine's few cores.
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            [here(word) for word in [*container["command"], *container["args"]]],
            cwd=here(container["workingDir"]),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started, which are sessions of their own."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in started:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait(timeout=240)
