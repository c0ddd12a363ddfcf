#!/usr/bin/env bash
# What make fetch brings of a run, from a pod that has the shared file system: fetch_on_pod.sh RUN-FOLDER
# LARGEST-MODEL-MIB. Lines of text: the run, what is left out, and then the files, in base64.
set -euo pipefail

readonly run="$1" largest_mib="$2"
[[ -d "${run}" ]] || { echo "error: ${run} is not there yet; make tail shows what the job does" >&2 && exit 2; }
cd "${run}"
files=()
for name in report.html all_results.json metrics.jsonl bandwidth.json evaluation-*.json; do
    [[ ! -e "${name}" ]] || files+=("${name}")
done
echo "run ${run##*/}"
if [[ -d model ]]; then
    size_mib="$(du --summarize --block-size=1M model | cut --fields=1)"
    if ((size_mib <= largest_mib)); then files+=(model); else echo "left ${run}/model, ${size_mib} MiB"; fi
fi
((${#files[@]})) || { echo "error: ${run} has no report and no results yet" >&2 && exit 2; }
echo files
tar --create --gzip --file=- "${files[@]}" | base64
