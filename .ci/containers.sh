#!/usr/bin/env bash
# Containers for real: podman, dockerd and a registry on this machine, the image cpu built, locked and pushed, and
# tests/integration/test_containers.py with it. For a fresh Debian 12, as root.
# ATTNSPEC_PYTHON: an interpreter that has attnspec[torch,tests]. ATTNSPEC_CONTAINERS: the folder to work in; it is kept,
# and what it holds already is not built again.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD
[ "$(id -u)" -eq 0 ] || { echo ".ci/containers.sh starts daemons and needs root" >&2; exit 1; }
python=${ATTNSPEC_PYTHON:-.nox/tests/bin/python}
if [ ! -x "$python" ]; then
    [ -x .venv/bin/nox ] || { python3 -m venv .venv && .venv/bin/pip install -q nox; }
    .venv/bin/nox -s tests --install-only
fi
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")

packages=
for pair in podman:podman runc:runc conmon:conmon catatonit:catatonit mmdebstrap:mmdebstrap \
    docker-registry:docker-registry dockerd:docker.io; do
    command -v "${pair%%:*}" > /dev/null || [ -x "/usr/sbin/${pair%%:*}" ] || packages="$packages ${pair##*:}"
done
if [ -n "$packages" ]; then
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d # no daemon starts by itself
    if [ -e "$policy" ]; then policy=; else printf '#!/bin/sh\nexit 101\n' > "$policy" && chmod +x "$policy"; fi
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $packages netavark aardvark-dns containers-storage > /dev/null
    [ -z "$policy" ] || rm -f "$policy"
fi

port=${ATTNSPEC_REGISTRY_PORT:-5055}
kept=${ATTNSPEC_CONTAINERS:-}
folder=${kept:-$(mktemp -d "${TMPDIR:-/tmp}/attnspec-containers.XXXXXX")}
mkdir -p "$folder/place/containers" "$folder/docker"
pids=()
stop() {
    for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null && wait "$pid" 2> /dev/null || true; done
    [ -n "$kept" ] || rm -rf "$folder"
}
trap stop EXIT

# Without systemd, and where limits cannot be raised, podman's defaults fail.
cat > "$folder/containers.conf" << 'CONF'
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=16384:16384"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
[network]
network_backend = "netavark"
CONF
export CONTAINERS_CONF="$folder/containers.conf" PYTHONPATH="$source" PYTHONSAFEPATH=1

cat > "$folder/registry.yml" << CONF
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $folder/registry}, delete: {enabled: true}}
http: {addr: "127.0.0.1:$port"}
CONF
docker-registry serve "$folder/registry.yml" > "$folder/registry.log" 2>&1 &
pids+=($!)
export DOCKER_HOST="unix://$folder/docker/sock"
dockerd --data-root "$folder/docker/data" --exec-root "$folder/docker/exec" -p "$folder/docker/pid" -H "$DOCKER_HOST" \
    --iptables=false --ip6tables=false --bridge=none --oom-score-adjust 0 > "$folder/docker.log" 2>&1 &
pids+=($!)

include=ca-certificates,g++,python3,python3-dev,python3-pip,python3-venv
base=localhost/attnspec-base:$(printf 'bookworm %s' "$include" | sha256sum | cut -c 1-12)
if ! podman image exists "$base"; then
    echo "== the base image"
    mkdir -p "$folder/base"
    SOURCE_DATE_EPOCH=1764547200 mmdebstrap --quiet --variant=minbase --include="$include" \
        bookworm "$folder/base/base.tar"
    printf 'FROM scratch\nADD base.tar /\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n' \
        > "$folder/base/Containerfile"
    podman build --quiet --timestamp 1764547200 --tag "$base" "$folder/base" > /dev/null
    rm -r "$folder/base"
fi
cd "$folder/place"
if [ ! -f containers/cpu/image.lock ] || ! "$python" -m attnspec image verify cpu > /dev/null 2>&1; then
    echo "== the image cpu"
    rm -rf containers/cpu
    cp -r "$source/containers/cpu" containers/
    "$python" -m attnspec image build cpu --base "$base"
    "$python" -m attnspec image lock cpu --push "localhost:$port/attnspec/cpu" --no-tls-verify
fi
"$python" -m attnspec image verify cpu
cd "$source"
echo "== tests"
ATTNSPEC_CONTAINERS="$folder" ATTNSPEC_REQUIRE_INTEGRATION=1 "$python" -m pytest -p no:cacheprovider -m integration \
    --durations=0 tests/integration/test_containers.py "$@" || {
    code=$?
    tail -n 20 "$folder"/*.log >&2
    exit "$code"
}
