#!/bin/bash
# Slurm runs this as root on a worker before a job (Prolog), and drains the node if it ends with another
# status than 0. So only a fault seen twice in a row does: whatever else goes wrong, a missing command,
# a check that does not end in time, a mistake in these scripts, is logged and lets the job start.
set -uo pipefail
# Slurm sets none.
export PATH=/opt/slurm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Far below the time that Slurm gives a prolog (PrologEpilogTimeout), above what all checks take together.
readonly seconds_in_all=25
# check-node-health ends with it; nothing that fails by accident does.
readonly status_of_a_fault=86
readonly node="${SLURMD_NODENAME:-}"

log() {
    logger --tag node-health --priority daemon.warning -- "job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null
    # What slurmd writes to its own log.
    printf 'node-health: %s\n' "$*" >&2
}

found="$(timeout --signal=KILL "${seconds_in_all}" check-node-health 2>/dev/null)"
status=$?
[[ -z "${found}" ]] || log "${found//$'\n'/; }"
if ((status == status_of_a_fault)); then
    # For sinfo; without it the node is drained all the same, with the reason "Prolog error".
    timeout --signal=KILL 5 scontrol update nodename="${node}" state=drain \
        reason="node-health: ${found##*$'\n'}" >/dev/null 2>&1
    log "the node is drained. sudo check-node-health looks again;" \
        "scontrol update nodename=${node} state=resume takes it back"
    exit 1
elif ((status != 0)); then
    log "the checks ended with ${status} instead of a result; the job starts"
fi
exit 0
