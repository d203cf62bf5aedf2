#!/bin/sh
# job a rm -rf /
PYTHONPATH='/data/it'"'"'s "mine" $HOME `id` %j; é -x\' PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1
export PYTHONPATH PYTHONSAFEPATH PYTHONUNBUFFERED
exec '/opt/my python/bin/python' -m attnspec.launch.slurm_job '/data/it'"'"'s "mine" $HOME `id` %j; é -x\/order.json'
