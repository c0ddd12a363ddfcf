#!/usr/bin/env bash
# Make report.png and heat_map.png from real runs: docs/pictures/make.sh [RUN_DIR]
#
# RUN_DIR is a finished pre-training run. Without it, the script trains one: 200 steps, 13 minutes on two cores.
# The report needs Debian's package chromium. training.png, the dashboard, is made by another command, which also
# needs prometheus and prometheus-node-exporter:
#   PYTHONPATH=.:lifecycle/slurm .venv/bin/python -m tests.monitoring.pictures.take FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run=${1:-$work/esm2_8m_sample}
if [[ $# == 0 ]]; then
  make train-ddp ARGS="runs=$work train.max_steps=200 train.tokens_per_pack=2048 train.tokens_per_step=4096 \
optim.warmup_steps=40 train.eval_every_steps=100 train.save_every_steps=100"
fi
[[ -f $run/metrics.jsonl ]] || { echo "error: $run: expected the folder of a finished run" >&2; exit 1; }

# Draw a copy, so that the run stays as it is.
mkdir "$work/shown"
cp "$run"/*.json* "$run/config.yaml" "$work/shown"
make report RUN="$work/shown"
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/chromium" \
  --window-size=1100,1160 --screenshot="$PWD/docs/pictures/report.png" "file://$work/shown/report.html"

# LexA of Deinococcus radiodurans, a bundled protein of 210 residues: three bands.
gzip -dc workloads/seqlm/proteins/data/sample/proteins.fasta.gz |
  awk '/^>/ { keep = /LEXA_DEIRA/ } keep' > "$work/protein.fasta"
make variants MODEL="$run/model" ARGS="inference.input=[$work/protein.fasta] inference.output=$work/scores.csv"
cp "$work"/scores.01-*.png docs/pictures/heat_map.png
