#!/usr/bin/env bash
# Writes a file, has it reach the server and reads it back; the caller removes it: write_and_read_back.sh PATH
set -euo pipefail

readonly path="$1"
written="$(hostname) $(date --utc +%s.%N)"
readonly written

printf '%s\n' "${written}" >"${path}"
sync "${path}"
[[ "$(cat "${path}")" == "${written}" ]]
