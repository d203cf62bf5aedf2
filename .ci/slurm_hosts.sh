#!/usr/bin/env bash
# Names the virtual nodes n1, n2, ... of the cluster in FOLDER in a file such as /etc/hosts, since ranks meet at the first
# node's name; without NODES takes these lines out again, and no others. Safe if repeated.
#
#   .ci/slurm_hosts.sh FILE FOLDER [NODES]
set -euo pipefail
file=$1 mark=" # virtual node of the cluster in $2"
text=$(mark=$mark awk '{ at = length($0) - length(ENVIRON["mark"]) + 1 } at < 1 || substr($0, at) != ENVIRON["mark"]' "$file"
    for number in $(seq "${3:-0}"); do
        # Who had the name before keeps it; what another cluster put there goes away with that one.
        sed '/ # virtual node of /d; s/#.*//' "$file" | grep -qE "^127\.0\.0\.1[[:space:]](.*[[:space:]])?n$number([[:space:]]|$)" ||
            echo "127.0.0.1 n$number$mark"
    done
    echo .) # so that no blank line at the end is lost
[ "$text" = "$(cat "$file"; echo .)" ] || printf %s "${text%.}" > "$file" # in place: in a container it is mounted
