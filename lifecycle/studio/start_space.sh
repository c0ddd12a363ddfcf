#!/usr/bin/env bash
# Lifecycle configuration of a space of SageMaker Studio, as its user, at every start. SageMaker ends it after five
# minutes and then starts no space, nor does it when this fails: so it never does, and says in the terminal what is
# missing. The marks are filled in at deployment.
set -uo pipefail

readonly CURRENT="@CURRENT@" REGION="@REGION@"
readonly LOG="${HOME}/cluster-set-up.log" FOLDER=/tmp/cluster-set-up

set_up() {
    local source
    rm -rf "${FOLDER}"
    source="$(aws s3 cp --only-show-errors --region "${REGION}" "${CURRENT}" -)" &&
        aws s3 cp --recursive --only-show-errors --region "${REGION}" "${source}" "${FOLDER}" &&
        timeout 240 python3 "${FOLDER}/set_up_space.py"
}

if set_up >"${LOG}" 2>&1; then
    exit 0
fi
tail --lines 20 "${LOG}"
mkdir --parents "${HOME}/.config"
printf 'echo "This space lacks what it needs for the cluster: see %s, then stop and start it." >&2\n' "${LOG}" \
    >"${HOME}/.config/cluster.sh"
grep --quiet --no-messages cluster.sh "${HOME}/.bashrc" ||
    printf '\n. ~/.config/cluster.sh\n' >>"${HOME}/.bashrc"
