#!/usr/bin/env bash
# Containers and Slurm for real, on a fresh Debian 12, as root. What the first half builds, the second one uses.
set -euo pipefail
cd "$(dirname "$0")/.."
kept=${ATTNSPEC_CONTAINERS:-}
ATTNSPEC_CONTAINERS=${kept:-$(mktemp -d "${TMPDIR:-/tmp}/attnspec-containers.XXXXXX")}
export ATTNSPEC_CONTAINERS
trap '[ -n "$kept" ] || rm -rf "$ATTNSPEC_CONTAINERS"' EXIT
echo "== containers"
.ci/containers.sh
echo "== Slurm"
.ci/slurm.sh
