#!/usr/bin/env bash
# Ends the cluster that slurm_start.sh started in FOLDER. Safe if repeated.
set -uo pipefail
root=$(cd "$1" 2> /dev/null && pwd) || exit 0
end() { # PIDFILE: by number, never by name; and wait until it is gone
    local pid
    pid=$(cat "$1" 2> /dev/null) || return 0
    kill "$pid" 2> /dev/null || return 0
    for _ in $(seq 100); do kill -0 "$pid" 2> /dev/null || return 0; sleep 0.1; done
    kill -KILL "$pid" 2> /dev/null
}
for file in "$root"/slurmd.*.pid "$root/slurmctld.pid" "$root/slurmdbd.pid" "$root/database/pid" "$root/munge/pid"; do
    end "$file"
done
"$(dirname "$0")/slurm_hosts.sh" /etc/hosts "$root"
