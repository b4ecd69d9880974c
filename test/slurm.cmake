# On a real Slurm of one node, which the tests start.
mt_script(slurm_requeue LABEL slurm FILE slurm/requeue.sh)
