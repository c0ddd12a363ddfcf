#!/usr/bin/env bash
# On the head node, as root: import_on_cluster.sh PARTITION CPUS REFERENCE FILE SCRIPT
# A job on a worker makes FILE of the image, by SCRIPT: the text of docker/enroot_import.sh. Two jobs of this name
# never run beside each other, so that who asks again meanwhile gets the file of the first.
set -euo pipefail

readonly partition="$1" cpus="$2" reference="$3" file="$4" script="$5"
readonly job_name=import-image limit_minutes=60 seconds_between_signs=60
export PATH="${PATH}:/opt/slurm/bin"

fail() {
    echo "error: $*" >&2
    exit 1
}

require_worker() {
    local states
    states="$(sinfo --noheader --partition="${partition}" --Node --format=%t | sort --unique)" ||
        fail "Slurm does not answer on ${HOSTNAME}; is slurmctld up on the controller?"
    # In Slurm's short forms; of the signs behind them, those of backfill and power saving do not keep a job away.
    grep --quiet --extended-regexp '^(idle|mix|alloc|comp|plnd)[-~#]?$' <<<"${states}" ||
        fail "no worker of partition ${partition} is up: ${states//$'\n'/, }; sinfo --list-reasons says why"
}

# A word now and then, also because a session in which nothing is said for long is ended.
show_signs_of_life() {
    squeue --name="${job_name}" --noheader --format='job %i %T %M %R' || true
    du --human-readable "${file%/*}"/.partial-* 2>/dev/null || true
}

run_import() {
    local log rounds=0 job shown status=0
    # Output goes into a file, and the job has its own session: it survives a lost terminal, and Ctrl-C in it.
    log="$(mktemp)"
    # Expanded now: it is this function's.
    # shellcheck disable=SC2064
    trap "rm -f '${log}'" EXIT
    env --ignore-environment PATH="${PATH}" HOME=/root LANG=C.UTF-8 \
        setsid srun --job-name="${job_name}" --dependency=singleton --partition="${partition}" --nodes=1 --ntasks=1 \
        --cpus-per-task="${cpus}" --time="${limit_minutes}" --chdir=/ \
        bash -s -- "${reference}" "${file}" <<<"${script}" >"${log}" 2>&1 &
    job=$!
    tail --pid="${job}" --sleep-interval=0.5 --lines=+1 --follow "${log}" &
    shown=$!
    while kill -0 "${job}" 2>/dev/null; do
        sleep 0.5
        ((++rounds % (2 * seconds_between_signs))) || show_signs_of_life
    done
    wait "${shown}" || true
    wait "${job}" || status=$?
    return "${status}"
}

if [[ -s "${file}" ]]; then
    echo "${file} is there already"
    exit 0
fi
require_worker
run_import
[[ -s "${file}" ]] || fail "the worker has made ${file}, and ${HOSTNAME} does not see it: findmnt on both"
