"""Pictures of the dashboards beside a training.

``PYTHONPATH=.:lifecycle/slurm .venv/bin/python -m tests.monitoring.pictures.take FOLDER``

To be looked at by people; no test. There is no Grafana among the packages of Debian, PyPI and npm, but its
components are: ``page.jsx`` draws panels with them from what a real Prometheus answers. Needs Debian's
packages prometheus, prometheus-node-exporter and chromium, and ``npm ci`` in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from monitoring.dashboards import dashboards
from seqlm.training.tracking.metrics_port import JOB_ID, PORT
from tests.lifecycle.node import StandIns
from tests.lifecycle.slurm_answers import answer_for_slurm
from tests.monitoring import exporters
from tests.monitoring.prometheus_run import free_port, lacking, running, send_by_efa
from tests.monitoring.test_dashboards import SCHEDULERS

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
CONFIG = "workloads/seqlm/configs/esm2_8m_sample.yaml"
RUN = (
    *("train.max_steps=2000", "train.tokens_per_pack=2048", "train.tokens_per_step=2048"),
    *("train.log_every_steps=1", "train.save_every_steps=20", "train.eval_every_steps=50"),
    *("train.eval_packs=4", "optim.warmup_steps=100"),
)
WIDTH = 1600
PIXELS_PER_UNIT = 34
LOADERS = ("svg", "woff2", "ttf")
PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css">
<body style="margin:0"><div id="root"></div><script>window.SHOWN = {shown};</script>
<script src="page.js"></script></body>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="made for the pictures and what they are drawn of"
    )
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    if lacking():
        sys.exit(
            f"error: {', '.join(lacking())}: not installed; apt-get install {' '.join(lacking())} chromium"
        )
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True)
    build(folder / "page.js")
    stand_ins = StandIns(folder / "stand-ins")
    os.environ["PATH"] = f"{stand_ins.folder / 'bin'}:{os.environ['PATH']}"
    answer_for_slurm(stand_ins, folder)
    port = free_port()
    with running(folder, port, exporters.slurm, pods=False) as prometheus:
        started = time.time()
        training = start_training(folder, port)
        try:
            while time.time() < started + 60 * options.minutes and training.poll() is None:
                send_by_efa(folder, time.time() - started)
                time.sleep(2)
            for scheduler in SCHEDULERS:
                for uid, model in dashboards(scheduler).items():
                    shown = {"dashboard": model, "prometheus": prometheus.url}
                    times = {"from": int(started), "to": int(time.time()), "step": 5}
                    take(folder, f"{scheduler}-{uid}", {**shown, **times})
        finally:
            training.terminate()
            training.wait(60)


def build(page: Path) -> None:
    """One script of the page and all that it imports."""
    command = [
        HERE / "node_modules/.bin/esbuild",
        HERE / "page.jsx",
        "--bundle",
        f"--outfile={page}",
    ]
    command += [f"--loader:.{ending}=dataurl" for ending in LOADERS]
    defined = ['--define:process.env.NODE_ENV="production"', "--define:process.env={}"]
    subprocess.run([*command, *defined], check=True, timeout=300)


def start_training(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """On the embedded sample."""
    places = [
        f"runs={folder}/runs",
        f"data.path={folder}/proteins",
        f"tracking.mlflow_uri=file://{folder}/mlruns",
    ]

    def stage(name: str, *overrides: str) -> list[str]:
        return [sys.executable, "-m", "seqlm", name, "--config", CONFIG, *places, *overrides]

    variables = {PORT: str(port), JOB_ID: exporters.JOB_ID, "OMP_NUM_THREADS": "1"}
    with (folder / "training.log").open("wb") as log:
        subprocess.run(
            stage("data"), cwd=REPOSITORY, stdout=log, stderr=log, check=True, timeout=300
        )
        return subprocess.Popen(
            stage("train", *RUN),
            cwd=REPOSITORY,
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
        )


def take(folder: Path, name: str, shown: dict[str, object]) -> None:
    page = folder / f"{name}.html"
    page.write_text(PAGE.format(shown=json.dumps(shown).replace("</", "<\\/")))
    panels = shown["dashboard"]["panels"]  # type: ignore[index]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=30000"]
    options += [
        f"--window-size={WIDTH},{rows * PIXELS_PER_UNIT + 56}",
        f"--screenshot={folder}/{name}.png",
    ]
    subprocess.run(
        ["chromium", *options, page.as_uri()], check=True, timeout=180, capture_output=True
    )


if __name__ == "__main__":
    main()
