# A real Slurm of one node in a scratch folder, for the scripts of this folder: slurm_up FOLDER, slurm_down. The daemons
# are those that slurm_up started, on ports of their own, on the loopback interface alone.
slurm_down() {
  [ -n "${SLURM_CONF:-}" ] || return 0
  scontrol shutdown >/dev/null 2>&1
  for name in slurmd slurmctld munged; do
    local pid
    pid=$(cat "$slurm_folder/$name.pid" 2>/dev/null) || continue
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; [ "$name" = munged ] && kill "$pid" 2>/dev/null; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null
  done
}

# Fails where a tool is missing; a machine that forbids the daemons is a skip with their own words.
slurm_up() {
  slurm_folder=$1
  local host tool port
  host=$(hostname -s)
  for tool in munged slurmctld slurmd srun sbatch scontrol squeue; do
    command -v "$tool" >/dev/null || [ -x "/usr/sbin/$tool" ] ||
      { echo "FAIL: $tool is missing: sh share/install-packages.sh test"; exit 1; }
  done
  export PATH=$PATH:/usr/sbin
  mkdir -p "$slurm_folder"/{state,spool,log} || exit 1
  (umask 077 && head -c 128 /dev/urandom >"$slurm_folder/munge.key")
  port=$((20000 + $$ % 20000))
  cat >"$slurm_folder/slurm.conf" <<END
ClusterName=mttest
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$slurm_folder/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort=$port
SlurmdPort=$((port + 1))
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$slurm_folder/state
SlurmdSpoolDir=$slurm_folder/spool
SlurmctldPidFile=$slurm_folder/slurmctld.pid
SlurmdPidFile=$slurm_folder/slurmd.pid
SlurmctldLogFile=$slurm_folder/log/slurmctld.log
SlurmdLogFile=$slurm_folder/log/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
MpiDefault=pmix
ReturnToService=2
KillWait=10
BatchStartTimeout=10
InactiveLimit=0
SlurmdParameters=config_overrides
MailProg=/bin/true
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=60 State=UP
END
  export SLURM_CONF=$slurm_folder/slurm.conf
  trap slurm_down EXIT
  munged --force --key-file="$slurm_folder/munge.key" --socket="$slurm_folder/munge.socket" \
    --pid-file="$slurm_folder/munged.pid" --log-file="$slurm_folder/log/munged.log" \
    --seed-file="$slurm_folder/munged.seed" >"$slurm_folder/log/start" 2>&1
  slurmctld -f "$SLURM_CONF" >>"$slurm_folder/log/start" 2>&1
  slurmd -f "$SLURM_CONF" -N "$host" >>"$slurm_folder/log/start" 2>&1
  for _ in $(seq 150); do
    sinfo -h -o %T 2>/dev/null | grep -q idle && return 0
    sleep 0.1
  done
  echo "SKIP: this machine does not let a Slurm run: $(cat "$slurm_folder"/log/* | grep -iE 'error|fatal|cannot' | tail -n 3)"
  exit 77
}

# job_state JOB: PENDING, RUNNING, COMPLETED, ...
job_state() { scontrol show job "$1" 2>/dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }

# await SECONDS COMMAND...: until it succeeds.
await() {
  local tries=$(($1 * 5))
  shift
  for _ in $(seq "$tries"); do "$@" && return 0; sleep 0.2; done
  return 1
}
