#!/usr/bin/env bash
# A Slurm cluster of virtual nodes on this machine: munge, slurmdbd over MariaDB, slurmctld, one slurmd per node.
#
#   .ci/slurm_start.sh FOLDER [NODES]     then: export SLURM_CONF=FOLDER/etc/slurm.conf
#   .ci/slurm_stop.sh FOLDER
#
# For tests, as root, on a machine without systemd. Nodes n1, n2, ... have two pretended GPUs each. ACCOUNTING=no
# leaves MariaDB and slurmdbd out.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 's/^# \{0,1\}//; 2,8p' "$0" >&2; exit 2; }
mkdir -p "$1"
root=$(cd "$1" && pwd)
nodes=${2:-2}
accounting=${ACCOUNTING:-yes}
host=$(hostname -s)
cpus=$(nproc)
memory_mib=$(awk '/^MemTotal/ {print int($2 / 1024 * 0.8)}' /proc/meminfo)
mkdir -p "$root"/{etc,log,munge,state,spool,devices}
chmod 755 "$root" "$root"/{etc,log}

wait_for() { # SECONDS COMMAND...
    local until=$((SECONDS + $1)); shift
    until "$@" > "$root/log/wait.log" 2>&1; do
        [ "$SECONDS" -lt "$until" ] || { echo "gave up waiting for: $*" >&2; cat "$root/log/wait.log" >&2; return 1; }
        sleep 0.1
    done
}

"$(dirname "$0")/slurm_hosts.sh" /etc/hosts "$root" "$nodes"

# munge refuses sockets and keys in folders that others may write to.
chown munge: "$root/munge"
chmod 755 "$root/munge"
head -c 1024 /dev/urandom > "$root/munge/key"
chown munge: "$root/munge/key"
chmod 400 "$root/munge/key"
setpriv --reuid munge --regid munge --clear-groups munged --force --socket="$root/munge/socket" \
    --key-file="$root/munge/key" --pid-file="$root/munge/pid" --seed-file="$root/munge/seed" --log-file="$root/munge/log"

for gpu in 0 1; do
    device=$root/devices/nvidia$gpu
    [ -e "$device" ] || mknod "$device" c 195 "$gpu" 2> /dev/null || : > "$device" # nobody opens it
done
{
    echo "AutoDetect=off"
    echo "NodeName=n[1-$nodes] Name=gpu Type=pretended File=$root/devices/nvidia[0-1]"
} > "$root/etc/gres.conf"
{
    cat << CONF
ClusterName=attnspec
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$root/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$root/state
SlurmctldPidFile=$root/slurmctld.pid
SlurmctldLogFile=$root/log/slurmctld.log
SlurmdPidFile=$root/slurmd.%n.pid
SlurmdLogFile=$root/log/slurmd.%n.log
SlurmdSpoolDir=$root/spool/%n
SlurmdParameters=config_overrides
SlurmdTimeout=10
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
KillWait=5
OverTimeLimit=0
InactiveLimit=0
MinJobAge=600
GresTypes=gpu
CONF
    if [ "$accounting" = yes ]; then
        cat << CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort=16819
AccountingStoragePass=$root/munge/socket
CONF
    else
        echo "AccountingStorageType=accounting_storage/none"
    fi
    for number in $(seq "$nodes"); do
        echo "NodeName=n$number NodeHostname=$host NodeAddr=127.0.0.1 Port=$((17000 + number))" \
            "CPUs=$cpus RealMemory=$memory_mib Gres=gpu:pretended:2 State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=n[1-$nodes] Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP"
} > "$root/etc/slurm.conf"
export SLURM_CONF=$root/etc/slurm.conf

if [ "$accounting" = yes ]; then
    mkdir -p "$root/database"
    chown mysql: "$root/database"
    mariadb-install-db --no-defaults --user=mysql --datadir="$root/database/data" --skip-test-db \
        --auth-root-authentication-method=normal > "$root/log/mariadb-install.log" 2>&1
    setsid mariadbd --no-defaults --user=mysql --datadir="$root/database/data" --socket="$root/database/socket" \
        --pid-file="$root/database/pid" --bind-address=127.0.0.1 --port=13306 --innodb-buffer-pool-size=64M \
        --innodb-lock-wait-timeout=900 > "$root/log/mariadb.log" 2>&1 < /dev/null &
    sql() { mariadb --no-defaults --socket="$root/database/socket" --execute="$1"; }
    wait_for 60 sql "select 1"
    sql "create database slurm_acct_db;
         create user 'slurm'@'127.0.0.1' identified by 'only-on-this-machine';
         grant all on slurm_acct_db.* to 'slurm'@'127.0.0.1';"
    cat > "$root/etc/slurmdbd.conf" << CONF
AuthType=auth/munge
AuthInfo=socket=$root/munge/socket
DbdHost=localhost
DbdPort=16819
SlurmUser=root
LogFile=$root/log/slurmdbd.log
PidFile=$root/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=13306
StorageUser=slurm
StoragePass=only-on-this-machine
StorageLoc=slurm_acct_db
CONF
    chmod 600 "$root/etc/slurmdbd.conf"
    slurmdbd
    wait_for 60 timeout 5 sacctmgr --noheader list cluster
fi
slurmctld -f "$SLURM_CONF"
for number in $(seq "$nodes"); do
    slurmd -f "$SLURM_CONF" -N "n$number"
done
all_idle() { [ "$(timeout 5 sinfo --noheader --Node --states=idle --format=%N | sort -u | wc -l)" -eq "$nodes" ]; }
wait_for 60 all_idle
echo "$SLURM_CONF"
