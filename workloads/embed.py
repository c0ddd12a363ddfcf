"""Embed proteins: ``python -m workloads.embed --config RUN.yaml [section.field=value ...]``.

Writes Parquet with the columns id, length and embedding (``workloads/esm2/inference/embed.py``).
"""

from __future__ import annotations

from workloads.inference import run_inference
from workloads.run_file import INFERENCE, RunFile, run_stage


def main(config: RunFile) -> None:
    run_inference("embed", config)


if __name__ == "__main__":
    run_stage(main, INFERENCE)
