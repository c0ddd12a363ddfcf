#!/bin/bash
# Slurm runs this as root on a worker before a job (Prolog), and drains the node if its status is not 0. Only a
# fault that is seen twice in a row counts. Other failures are logged, and the job starts: a missing command, a
# check that does not end in time, or a mistake in these scripts.
set -uo pipefail
# Slurm sets no PATH.
export PATH=/opt/slurm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Far below Slurm's limit for a prolog (PrologEpilogTimeout), and above the time that all checks take together.
readonly seconds_in_all=25
# Status of check-node-health for a fault, which no accidental failure has.
readonly status_of_a_fault=86
readonly node="${SLURMD_NODENAME:-}"

log() {
    logger --tag node-health --priority daemon.warning -- "job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null
    # slurmd writes this to its own log.
    printf 'node-health: %s\n' "$*" >&2
}

found="$(timeout --signal=KILL "${seconds_in_all}" check-node-health 2>/dev/null)"
status=$?
[[ -z "${found}" ]] || log "${found//$'\n'/; }"
if ((status == status_of_a_fault)); then
    # This sets the reason that sinfo shows. Without it, the node is drained with the reason "Prolog error".
    timeout --signal=KILL 5 scontrol update nodename="${node}" state=drain \
        reason="node-health: ${found##*$'\n'}" >/dev/null 2>&1
    log "the node is drained. sudo check-node-health looks again;" \
        "scontrol update nodename=${node} state=resume takes it back"
    exit 1
elif ((status != 0)); then
    log "the checks ended with ${status} instead of a result; the job starts"
fi
exit 0
