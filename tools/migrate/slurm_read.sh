#!/usr/bin/env bash
# Print Slurm's accounts, users and QOS, one per line. Arguments: a mark, fields of QOS, Slurm's programs.
# Lines that begin with the mark are facts: a name, and a value.
set -euo pipefail
mark="$1" fields="$2"
export PATH="$3:$PATH" LC_ALL=C

# Nodes other than the controller may have no file.
if [[ -r "${SLURM_CONF:-}" ]]; then
    cluster="$(sed --quiet --regexp-extended 's/^ClusterName *= *//Ip' "${SLURM_CONF}")"
else
    cluster="$(scontrol show config | sed --quiet 's/^ClusterName *= *//p')"
fi
dump="$(mktemp)"
trap 'rm --force "${dump}"' EXIT
# It prints the lines as errors, too.
printed="$(timeout 120 sacctmgr --immediate --quiet dump "${cluster}" file="${dump}" 2>&1)" || {
    printf '%s\n' "${printed}" >&2
    exit 1
}
echo "${mark}cluster${mark}${cluster}"
sed --quiet "/^[^#]/s/^/${mark}dump${mark}/p" "${dump}"
timeout 120 sacctmgr --noheader --parsable2 show qos format="${fields}" | sed "s/^/${mark}qos${mark}/"
