#!/usr/bin/env bash
#SBATCH --job-name=fathom
#SBATCH --ntasks-per-node=8
#SBATCH --exclusive
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#
# sbatch --nodes=N --time=LIMIT [sbatch's flags] launch/slurm.sh JOB [fathom train's arguments]
#
# Trains a job on N nodes of 8 ranks, from the folder that sbatch is called in, the repository's.
# parallel.data is what the nodes give: ranks / (parallel.tensor x pipeline), so that the same line
# with fewer nodes goes on with fewer replicas. It always passes --resume.
#
# Five minutes before the time limit Slurm sends the ranks SIGTERM (and not this shell): they finish
# their step, save and end with status 143, and the job is queued again. A stop at any other time,
# by scancel for example, is not. The status is that of the ranks.
#
# Set FATHOM to use another program than bazel-bin/launch/fathom.
set -uo pipefail

self=launch/slurm.sh
# Slurm runs a copy of this file, so its own place says nothing.
root=${SLURM_SUBMIT_DIR:-$PWD}
program=${FATHOM:-$root/bazel-bin/launch/fathom}
if [ ! -r "$root/launch/cluster.sh" ]; then
  echo "$self: call sbatch in the repository's folder, not in $root" >&2
  exit 2
fi
# shellcheck source=launch/cluster.sh
. "$root/launch/cluster.sh"

[ -n "${SLURM_JOB_ID:-}" ] ||
  refuse "this is a batch script: sbatch --nodes=N --time=LIMIT launch/slurm.sh JOB"
[ $# -ge 1 ] || refuse "a job file is needed: sbatch --nodes=N --time=LIMIT launch/slurm.sh JOB"
job=$1
shift
[ -r "$job" ] || refuse "there is no job file $job"
read_overrides "$@"
[ -z "$(override_of parallel.data)" ] ||
  refuse "parallel.data follows from the number of nodes: leave out --set parallel.data"

nodes=${SLURM_JOB_NUM_NODES:-}
is_count "$nodes" || refuse "SLURM_JOB_NUM_NODES is \"$nodes\", not a number of nodes"
per_node=${SLURM_NTASKS_PER_NODE:-8}
is_count "$per_node" || refuse "SLURM_NTASKS_PER_NODE is \"$per_node\", not a number of ranks"
ranks=$((nodes * per_node))

# The job's own parallel.data need not fit these nodes, so it is asked for the other sizes with 1.
inspect_job "$job" ${overrides[@]+"${overrides[@]}"} --set parallel.data=1
replica=$job_ranks
[ $((ranks % replica)) -eq 0 ] ||
  refuse "$nodes nodes of $per_node ranks are $ranks ranks, which is not a multiple of" \
    "parallel.tensor x pipeline = $replica"
data=$((ranks / replica))
overrides+=(--set "parallel.data=$data")
# What does not fit this number of nodes is refused here, once instead of by every rank.
inspect_job "$job" "${overrides[@]}"

# Slurm counts logical processors; the program gets one thread for each core.
read -r cores processors < <(count_cores)
is_count "$cores" || refuse "lscpu and taskset do not say how many cores this node has"
threads=$((cores / per_node))
[ "$threads" -ge 1 ] || refuse "a node of $cores cores is too small for $per_node ranks"
processors_per_core=$((processors / cores))

hosts=
while IFS= read -r host; do hosts+="${hosts:+,}$host:$per_node"; done < <(
  scontrol show hostnames "${SLURM_JOB_NODELIST:-}")
export FATHOM_HOSTS=$hosts

command=(srun --mpi=pmix --nodes="$nodes" --ntasks="$ranks" --ntasks-per-node="$per_node"
  --distribution=block:block --cpus-per-task=$((threads * processors_per_core)) --cpu-bind=cores
  --kill-on-bad-exit=1
  "$program" train "$job" "$@" --set "parallel.data=$data")
[ -n "$(override_of device.threads)" ] || command+=(--set "device.threads=$threads")
command+=(--resume)
print_command "${command[@]}"

# A SIGTERM that reaches this shell, too, must not end it before the ranks have saved.
trap : TERM
"${command[@]}"
status=$?
if [ "$status" -ne 143 ]; then exit "$status"; fi

# 143 is also what ranks end with that Slurm stops because another one failed; only the time limit
# is a reason to go on later. Slurm may send its signal a minute early.
end=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e)
if ! [[ $end =~ ^[0-9]{4}-[0-9][0-9]- ]] || ! end=$(date --date="$end" +%s); then
  echo "$self: the ranks stopped, and squeue does not say when their time ends: not queued again" >&2
  exit "$status"
fi
left=$((end - $(date +%s)))
if [ "$left" -gt 420 ]; then
  echo "$self: the ranks stopped $left s before the time limit: not queued again" >&2
  exit "$status"
fi
echo "$self: stopped by the time limit, queued again" >&2
scontrol requeue "$SLURM_JOB_ID" || exit "$status"
