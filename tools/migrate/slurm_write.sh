#!/usr/bin/env bash
# Add QOS, accounts and users to Slurm's accounting. Arguments: commands of sacctmgr, one per line, and a file for
# `sacctmgr load`, both compressed; the name of the cluster, and Slurm's programs.
set -euo pipefail
commands="$1" associations="$2" cluster="$3"
export PATH="$4:$PATH" LC_ALL=C

unpack() { base64 --decode <<<"$1" | gunzip; }
folder="$(mktemp --directory)"
trap 'rm --recursive --force "${folder}"' EXIT
unpack "${commands}" >"${folder}/commands"
unpack "${associations}" >"${folder}/associations"
xargs --no-run-if-empty --max-lines=1 timeout 120 sacctmgr --immediate --quiet <"${folder}/commands"
if [[ -s "${folder}/associations" ]]; then
    timeout 300 sacctmgr --immediate --quiet load file="${folder}/associations" cluster="${cluster}"
fi
