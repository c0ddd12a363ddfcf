#!/usr/bin/env bash
# Writes a file, has it reach the server, reads it back and removes it: write_and_read_back.sh PATH
set -euo pipefail

readonly path="$1"
written="$(hostname) $(date --utc +%s.%N)"
readonly written

trap 'rm --force "${path}"' EXIT
printf '%s\n' "${written}" >"${path}"
sync "${path}"
[[ "$(cat "${path}")" == "${written}" ]]
