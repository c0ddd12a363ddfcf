"""Draw the architecture of clusters from the templates of their stacks.

``python -m tools.diagrams [--to FOLDER] [FILE ...]``
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from config.loader import load_cluster
from tools.command_line import run_command
from tools.diagram_dot import dot
from tools.template_graph import TemplateGraph, Templates

REPOSITORY = Path(__file__).parents[1]
FOLDER = REPOSITORY / "docs" / "diagrams"
CLUSTERS = ("clusters/slurm-p5.yaml", "clusters/eks-p5.yaml")
"""The shipped files with the most parts."""
RENDERER = Path(__file__).with_name("dot_to_svg.mjs")
RENDER_SECONDS = 120


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the architecture of clusters from their templates.")
    parser.add_argument("clusters", nargs="*", type=Path, default=[REPOSITORY / name for name in CLUSTERS])
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of the SVG files")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for file in options.clusters:
        path = options.to / f"{file.stem}.svg"
        path.write_text(svg(synthesize(file)))
        print(path)
    return 0


def svg(templates: Templates) -> str:
    """The picture of a cluster's templates, the same bytes for the same templates.

    Raises:
        ValueError: if Graphviz is not installed, or fails.
    """
    done = subprocess.run(
        ["node", RENDERER],
        input=dot(TemplateGraph(templates)),
        capture_output=True,
        text=True,
        timeout=RENDER_SECONDS,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise ValueError(
            f"the picture cannot be drawn: node says {last[0]}; `make diagrams` installs Graphviz"
        )
    return done.stdout


def synthesize(file: Path) -> Templates:
    """All templates of a cluster file, by construct id; charts, which no picture shows, may be missing."""
    # Seconds, which --help need not wait.
    from aws_cdk import App

    from stacks.cluster_stacks import add_stacks

    cluster = load_cluster(file)
    context = json.loads((REPOSITORY / "cdk.json").read_text())["context"]
    context |= {"aws:cdk:enable-path-metadata": True}
    with TemporaryDirectory(prefix="cdk-") as folder:
        app = App(context=context, outdir=folder, analytics_reporting=False)
        add_stacks(app, cluster)
        try:
            app.synth()
        except RuntimeError:
            # Errors that a stack has of itself end it after the files are written.
            if not (Path(folder) / "manifest.json").is_file():
                raise
        paths = sorted(Path(folder).glob("*.template.json"))
        return {path.name.removesuffix(".template.json"): json.loads(path.read_text()) for path in paths}


if __name__ == "__main__":
    run_command(main)
