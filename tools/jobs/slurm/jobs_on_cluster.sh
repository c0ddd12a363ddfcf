#!/usr/bin/env bash
# On the head node, as the jobs' user: jobs_on_cluster.sh status|tail|cancel|fetch FOLDER [JOB] [MIB]
# FOLDER/jobs has a link for each submitted job, to its folder in the run's. Without JOB the last one is meant.
# MIB is the size up to which fetch sends a model or a table; what it does is in fetch_run.sh, which is sent ahead of this.
set -euo pipefail

readonly what="$1" folder="$2" largest_mib="${4:-0}" num_shown=5 most_listed=60
# The end of a file in which its last line of a kind is looked for. Metrics of a long run have gigabytes.
readonly last_bytes=1048576
job="${3:-}"

newest_jobs() {
    find "${folder}/jobs" -maxdepth 1 -type l -printf '%T@ %f\n' 2>/dev/null | sort --reverse --numeric-sort |
        head --lines="$1" | cut --delimiter=' ' --fields=2
}

find_job() {
    [[ -n "${job}" ]] || job="$(newest_jobs 1)"
    if [[ -z "${job}" || ! -d "${folder}/jobs/${job}" ]]; then
        echo "error: no job ${job:-at all} was submitted from ${folder}; make status lists them" >&2
        exit 2
    fi
    place="$(readlink --canonicalize "${folder}/jobs/${job}")"
    run="${place%/jobs/*}"
}

# Of a job in Slurm's queue; nothing of one that has ended. It fails where Slurm does not answer: that is no end.
queue_state() {
    local said
    if said="$(squeue --noheader --jobs="${job}" --format="${1:-%T}" 2>&1 | tail --lines=1)"; then
        echo "${said}"
    elif [[ "${said}" != *"Invalid job id"* ]]; then
        echo "error: Slurm does not say how job ${job} is: ${said}" >&2
        return 1
    fi
}

status() {
    local queue others
    queue="$(squeue --user="$(id --user --name)" --format='%.10i %.30j %.12T %.12M %.6D %R')"
    head --lines="$((most_listed + 1))" <<<"${queue}"
    others="$(($(wc --lines <<<"${queue}") - most_listed - 1))"
    [[ "${others}" -le 0 ]] || echo "and ${others} more jobs: squeue --user=\$USER"
    for job in $(newest_jobs "${num_shown}"); do
        [[ -d "${folder}/jobs/${job}" ]] || continue # its run was removed
        find_job
        echo
        echo "job ${job}  run ${run##*/}  $(queue_state)"
        last_line log "${place}/job.log" .
        last_line metrics "${run}/metrics.jsonl" '"kind": "train"'
    done
}

last_line() {
    local found=""
    [[ ! -e "$2" ]] || found="$(tail --bytes="${last_bytes}" -- "$2" | { grep -- "$3" || true; } | tail --lines=1)"
    [[ -z "${found}" ]] || printf '  %-8s %s\n' "$1" "${found}"
}

# Ends with the job. Queries are rare, because each one loads Slurm's controller.
follow() {
    local log="${place}/job.log" watch state
    echo "${log}"
    [[ -e "${log}" ]] || echo "the job has not begun: $(queue_state '%T %R')"
    until state="$(queue_state 2>/dev/null)" && [[ -z "${state}" ]]; do sleep 10; done &
    watch=$!
    # Expanded now: it is this function's.
    # shellcheck disable=SC2064
    trap "kill ${watch} 2>/dev/null || true" EXIT
    # GNU tail's status is 1 for a log that was not there at first, though it follows it then.
    until [[ -e "${log}" ]] || ! kill -0 "${watch}" 2>/dev/null; do sleep 1; done
    [[ -e "${log}" ]] || { echo "the job has ended without having begun" && return; }
    tail --lines=50 --follow=name --retry --pid="${watch}" "${log}" 2>/dev/null
}

cancel() {
    local state
    state="$(queue_state)" || exit 1
    case "${state}" in
    '') echo "job ${job} is not in the queue any more" ;;
    RUNNING)
        # The batch script has its processes save, and then cancels the job. The file is for the next start, if this
        # one ends before the signal comes; a full file system shall not keep the job from being cancelled.
        touch "${place}/cancelled" 2>/dev/null || true
        scancel --batch --signal=USR2 "${job}"
        echo "job ${job} saves and ends: make tail JOB=${job} shows it"
        echo "at once, without saving: scancel ${job} on the head node"
        ;;
    *)
        scancel "${job}"
        echo "job ${job} was not running and is cancelled"
        ;;
    esac
}

case "${what}" in
status) status ;;
tail) find_job && follow ;;
cancel) find_job && cancel ;;
fetch) find_job && fetch_run "${run}" "${largest_mib}" ;;
esac
