#!/usr/bin/env bash
# What make fetch brings of a run, from where its file system is: fetch_run RUN-FOLDER LARGEST-MIB prints lines of
# text: the run, what is left out, and then the files, in base64. The sender adds the caller's name.
set -euo pipefail

# Adds to fetch_run's files what is not too large for the way.
take_or_leave() {
    local size_mib
    size_mib="$(du --summarize --block-size=1M "$1" | cut --fields=1)"
    if ((size_mib <= most_mib)); then files+=("$1"); else echo "left ${run}/$1, ${size_mib} MiB"; fi
}

fetch_run() {
    local run="$1" most_mib="$2" files=() name
    [[ -d "${run}" ]] || { echo "error: ${run} is not there yet; make tail shows what the job does" >&2 && exit 2; }
    cd "${run}"
    for name in report.html all_results.json bandwidth.json metrics.jsonl evaluation-*.json; do
        [[ ! -e "${name}" ]] || files+=("${name}")
    done
    echo "run ${run##*/}"
    # Tables that inference has written, what was rejected, what they were made with, and heat maps.
    for name in model adapter *.parquet *.csv *.parquet.json *.csv.json *.png; do
        [[ ! -e "${name}" ]] || take_or_leave "${name}"
    done
    ((${#files[@]})) || { echo "error: ${run} has no report and no results yet" >&2 && exit 2; }
    echo files
    # Status 1: a file has grown meanwhile, as metrics of a running job do.
    { tar --create --gzip --warning=no-file-changed --file=- "${files[@]}" || (($? == 1)); } | base64
}
