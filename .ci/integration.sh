#!/usr/bin/env bash
# Containers and Slurm for real, on a fresh Debian 12, as root; no test is skipped. About ten minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
ATTNSPEC_CONTAINERS=$(mktemp -d "${TMPDIR:-/tmp}/attnspec-integration.XXXXXX")
export ATTNSPEC_CONTAINERS
chmod 755 "$ATTNSPEC_CONTAINERS"
trap 'rm -rf "$ATTNSPEC_CONTAINERS"' EXIT
.ci/containers.sh
# The ranks of Slurm's jobs run in the image that is built by now.
CONTAINERS_CONF="$ATTNSPEC_CONTAINERS/containers.conf" .ci/slurm.sh
