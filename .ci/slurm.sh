#!/usr/bin/env bash
# Slurm for real: two virtual nodes with accounting on this machine, and tests/integration/test_slurm.py on them.
# For a fresh Debian 12, as root, after .ci/containers.sh, whose image cpu ranks run in.
# ATTNSPEC_PYTHON: an interpreter that has attnspec[torch,tests]. ATTNSPEC_CONTAINERS: the folder of .ci/containers.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo ".ci/slurm.sh starts daemons and needs root" >&2; exit 1; }
python=${ATTNSPEC_PYTHON:-.nox/tests/bin/python}
if [ ! -x "$python" ]; then
    [ -x .venv/bin/nox ] || { python3 -m venv .venv && .venv/bin/pip install -q nox; }
    .venv/bin/nox -s tests --install-only
fi
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")

export DEBIAN_FRONTEND=noninteractive
if ! command -v slurmctld slurmd slurmdbd munged mariadbd > /dev/null; then
    # No daemon starts by itself: slurm_start.sh starts its own.
    policy=/usr/sbin/policy-rc.d
    if [ -e "$policy" ]; then
        policy=
    else
        printf '#!/bin/sh\nexit 101\n' > "$policy"
        chmod +x "$policy"
    fi
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends slurm-wlm slurm-wlm-basic-plugins slurm-client slurmdbd munge \
        mariadb-server > /dev/null
    [ -z "$policy" ] || rm -f "$policy"
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/attnspec-slurm.XXXXXX")
chmod 755 "$folder"
trap '.ci/slurm_stop.sh "$folder"; rm -rf "$folder"' EXIT
if [ -n "${ATTNSPEC_CONTAINERS:-}" ]; then
    export CONTAINERS_CONF="$ATTNSPEC_CONTAINERS/containers.conf"
fi
PYTHONPATH=$PWD
SLURM_CONF=$(.ci/slurm_start.sh "$folder" 2)
export SLURM_CONF PYTHONPATH
sinfo --Node --long
ATTNSPEC_REQUIRE_INTEGRATION=1 "$python" -m pytest -p no:cacheprovider -m integration --durations=0 \
    tests/integration/test_slurm.py "$@" || {
    code=$?
    tail -n 40 "$folder"/log/slurmctld.log "$folder"/log/slurmd.*.log >&2
    exit "$code"
}
