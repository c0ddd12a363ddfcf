#!/usr/bin/env bash
# Run on the head node as root: import_on_cluster.sh PARTITION CPUS REFERENCE FILE SCRIPT
# A job on a worker creates FILE from the image with SCRIPT, which is the text of docker/enroot_import.sh. Only one job of
# this name runs at a time, so that a second call waits for the first one and uses its file.
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
    # Slurm's short names of states. The suffixes for backfill and power saving do not prevent a job.
    grep --quiet --extended-regexp '^(idle|mix|alloc|comp|plnd)[-~#]?$' <<<"${states}" ||
        fail "no worker of partition ${partition} is up: ${states//$'\n'/, }; sinfo --list-reasons says why"
}

# Print the progress from time to time, also because a session without output is closed.
show_signs_of_life() {
    squeue --name="${job_name}" --noheader --format='job %i %T %M %R' || true
    du --human-readable "${file%/*}"/.partial-* 2>/dev/null || true
}

run_import() {
    local log rounds=0 job shown status=0
    # The job writes to a file and has its own session, so that it survives a lost terminal and Ctrl-C.
    log="$(mktemp)"
    # The name is expanded now, because the variable is local to this function.
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
[[ -s "${file}" ]] || fail "the worker created ${file}, but ${HOSTNAME} does not see it: compare findmnt on both"
