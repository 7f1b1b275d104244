#!/usr/bin/env bash
# The command lines, refusals and exit statuses of launch/mpirun.sh and launch/slurm.sh, with
# stand-ins for mpirun, srun, scontrol, squeue, the machine's cores and, where a job has several
# ranks, fathom. Runs in the repository's folder.
set -uo pipefail
set -m # background jobs get Ctrl-C, too

work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/launch_scripts.XXXXXX")
trap 'rm -rf "$work"' EXIT
repository=$PWD
bin=$work/bin
job=launch/jobs/toy_xmod.txtpb
mkdir -p "$bin"

# tool NAME: a program of that name, whose text is the standard input.
tool() {
  { echo '#!/usr/bin/env bash' && cat; } >"$bin/$1"
  chmod +x "$bin/$1"
}

# 'SIZES="TENSOR PIPELINE DATA"' is what the job file says; data = 5 does not fit.
tool fathom <<'END'
read -r tensor pipeline data <<<"$SIZES"
for word in "$@"; do
  case $word in
    parallel.tensor=*) tensor=${word#*=} ;;
    parallel.pipeline=*) pipeline=${word#*=} ;;
    parallel.data=*) data=${word#*=} ;;
  esac
done
if [ "$data" -eq 5 ]; then
  echo "fathom inspect: the global batch 8 is not a multiple of data 5" >&2
  exit 2
fi
[ "$1 ${!#}" = "inspect --json" ] || exit 9
cat <<JSON
{
  "job": "stand-in",
  "model": {
    "ranks": 77
  },
  "parallel": {
    "tensor": $tensor,
    "pipeline": $pipeline,
    "data": $data,
    "ranks": $((tensor * pipeline * data))
  },
  "parameters": {
    "total": 3
  }
}
JSON
END
tool old_fathom <<'END'
echo '{ "job": "stand-in" }'
END
# CORES cores of SMT hyperthreads each, in the order in which Linux numbers them.
tool lscpu <<'END'
echo "# CPU,CORE,SOCKET"
for ((cpu = 0; cpu < CORES * SMT; cpu++)); do echo "$cpu,$((cpu % CORES)),0"; done
END
tool taskset <<'END'
echo "pid $2's current affinity list: ${ALLOWED:-0-$((CORES * SMT - 1))}"
END
# Leaves its arguments behind. With WAIT it runs until a signal comes.
tool mpirun <<'END'
printf '%s\n' "$@" >"$WORK/called"
if [ -n "${WAIT:-}" ]; then
  trap 'echo USR1 >>"$WORK/signals"; [ "$WAIT" = stubborn ] || exit 138' USR1
  trap 'echo TERM >>"$WORK/signals"; exit 1' TERM
  touch "$WORK/started"
  for ((i = 0; i < 600; i++)); do sleep 0.1; done
fi
exit "${STATUS:-0}"
END
# Leaves its arguments and hosts behind. With WAIT it runs until it may go on.
tool srun <<'END'
printf '%s\n' "$@" >"$WORK/called"
echo "$FATHOM_HOSTS" >"$WORK/hosts"
if [ -n "${WAIT:-}" ]; then
  touch "$WORK/started"
  for ((i = 0; i < 600; i++)); do [ -e "$WORK/go_on" ] && break; sleep 0.1; done
fi
exit "${STATUS:-0}"
END
tool scontrol <<'END'
case $1 in
  show) tr ',' '\n' <<<"$3" ;;
  requeue) echo "$2" >"$WORK/requeued" && exit "${REQUEUE_STATUS:-0}" ;;
esac
END
# MINUTES from now, or what it says instead of a time.
tool squeue <<'END'
if [[ $MINUTES =~ ^[0-9]+$ ]]; then
  date --date="$MINUTES minutes" +%Y-%m-%dT%H:%M:%S
else
  echo "$MINUTES"
fi
END

failed=0
fail() {
  echo "FAILED, $*"
  failed=1
}

# run [NAME=VALUE]... SCRIPT ARGUMENTS: runs it in an environment that holds only what is given
# here. Sets `status` and `output`.
environment=(PATH="$bin:$PATH" HOME="$work" WORK="$work" FATHOM="$bin/fathom" SIZES="1 1 1" CORES=8
  SMT=1)
run() {
  rm -f "$work"/{called,hosts,signals,started,go_on,requeued}
  output=$(env -i "${environment[@]}" "$@" 2>&1)
  status=$?
}

# expect_command WHAT LINE: the last run called mpirun or srun with these arguments.
expect_command() {
  local called
  called=$(grep -v -x -e --allow-run-as-root "$work/called" | tr '\n' ' ')
  [ "$called" = "$2 " ] || fail "$1: called with
  $called
instead of
  $2
It printed: $output"
}
expect_status() {
  [ "$status" -eq "$2" ] || fail "$1: status $status instead of $2: $output"
}
expect_output() {
  [[ $output == *"$2"* ]] || fail "$1: no \"$2\" in: $output"
}
expect_hosts() {
  [ "$(cat "$work/hosts")" = "$2" ] || fail "$1: hosts are $(cat "$work/hosts") instead of $2"
}
# expect_refusal TEXT [NAME=VALUE]... SCRIPT ARGUMENTS: one line, status 2, and nothing is started.
expect_refusal() {
  local text=$1
  shift
  run "$@"
  expect_status "$text" 2
  expect_output "$text" "$text"
  [ "$(wc -l <<<"$output")" -eq 1 ] || fail "$text: more than one line: $output"
  [ ! -e "$work/called" ] || fail "$text: something was started"
}

# ---- launch/mpirun.sh

run launch/mpirun.sh --help
expect_status "help" 0
expect_output "help" "example: launch/mpirun.sh launch/jobs/"

# The job's sizes, and --set in both forms, of which the last one counts.
run SIZES="2 1 1" launch/mpirun.sh "$job" --set parallel.data=7 --set=parallel.data=2
expect_status "one host" 0
expect_command "one host" "-n 4 --bind-to core --map-by slot:PE=2 \
-x FATHOM_HOSTS=$HOSTNAME:4 $bin/fathom train \
$job --set parallel.data=7 --set=parallel.data=2 --set device.threads=2"
# The line that it printed is the one that it ran.
printed=$(sed -n 's/^launch\/mpirun.sh: mpirun //p' <<<"$output" | tr ' ' '\n')
[ "$printed" = "$(cat "$work/called")" ] || fail "one host: printed $output"

# Cores that are left over, hyperthreads, and cores that this process may not use.
run SMT=2 launch/mpirun.sh -n 3 "$job"
expect_command "three ranks" "-n 3 --bind-to core --map-by slot:PE=2 \
-x FATHOM_HOSTS=$HOSTNAME:3 $bin/fathom \
train $job --set device.threads=2"
run SMT=2 ALLOWED=0-1,8-9 launch/mpirun.sh -n 2 "$job" --resume
expect_command "two cores allowed" "-n 2 --bind-to core --map-by slot:PE=1 \
-x FATHOM_HOSTS=$HOSTNAME:2 \
$bin/fathom train $job --resume --set device.threads=1"

# Too few cores.
run CORES=2 launch/mpirun.sh -n 8 "$job"
expect_command "too few cores" "-n 8 --bind-to none --map-by slot --oversubscribe \
-x FATHOM_HOSTS=$HOSTNAME:8 \
$bin/fathom train $job --set device.threads=1"
expect_output "too few cores" "8 ranks with device.threads 1 on a host of 2 cores: they are not bound"
run launch/mpirun.sh --threads 3 -n 3 "$job"
expect_command "too many threads" "-n 3 --bind-to none --map-by slot --oversubscribe \
-x FATHOM_HOSTS=$HOSTNAME:3 $bin/fathom train $job --set device.threads=3"
run launch/mpirun.sh -n 2 "$job" --set device.threads=3
expect_command "threads of the job" "-n 2 --bind-to core --map-by slot:PE=3 \
-x FATHOM_HOSTS=$HOSTNAME:2 \
$bin/fathom train $job --set device.threads=3 --set device.threads=3"

# A host file, whose last host is not needed.
printf '# our nodes\n\nnode1 slots=4\n  node2   slots=2 # small\nnode3 slots=8' >"$work/nodes"
run SIZES="2 3 1" launch/mpirun.sh --hostfile "$work/nodes" "$job"
expect_command "host file" "-n 6 --hostfile $work/nodes --bind-to core --map-by slot:PE=2 \
-x FATHOM_HOSTS=node1:4,node2:2 $bin/fathom train $job --set device.threads=2"
run launch/mpirun.sh --hostfile "$work/nodes" -n 14 "$job"
expect_command "all hosts" "-n 14 --hostfile $work/nodes --bind-to core --map-by slot:PE=1 \
-x FATHOM_HOSTS=node1:4,node2:2,node3:8 $bin/fathom train $job --set device.threads=1"

# Variables.
run FATHOM_HOSTS=old UCX_TLS=rc NCCL_DEBUG=INFO MY_UCX=1 LD_LIBRARY_PATH=/opt \
  launch/mpirun.sh -n 8 "$job"
expect_command "variables" "-n 8 --bind-to core --map-by slot:PE=1 -x FATHOM_HOSTS=$HOSTNAME:8 \
-x LD_LIBRARY_PATH -x NCCL_DEBUG -x UCX_TLS $bin/fathom train $job --set device.threads=1"

# What mpirun says is what the script says.
run STATUS=7 launch/mpirun.sh -n 1 "$job"
expect_status "failure" 7
run STATUS=138 launch/mpirun.sh -n 1 "$job"
expect_status "a signal of somebody else" 138

# The real program knows how many ranks a job needs, and the real tools how many cores there are.
rm -f "$work/called"
output=$(env -i PATH="$work/mpi:$PATH" HOME="$work" WORK="$work" \
  FATHOM="$repository/launch/fathom" bash -c "mkdir $work/mpi && cp $bin/mpirun $work/mpi &&
  launch/mpirun.sh $job" 2>&1)
grep -q -x -E 'slot:PE=[1-9][0-9]*' "$work/called" || fail "real program: no binding: $output"
[ "$(head -n 2 "$work/called" | tr '\n' ' ')" = "-n 1 " ] || fail "real program: $output"

# Signals. interrupt NAME=VALUE SIGNALS...: sends them to mpirun.sh, one after another.
interrupt() {
  local script signal sent=0
  rm -f "$work"/{signals,started}
  env -i "${environment[@]}" "$1" launch/mpirun.sh -n 1 "$job" >"$work/output" 2>&1 &
  script=$!
  shift
  wait_for "$work/started"
  for signal in "$@"; do
    kill -"$signal" -- "-$script" # to its process group, as a terminal does
    sent=$((sent + 1))
    wait_for_lines "$work/signals" "$sent"
  done
  wait "$script"
  status=$?
  output=$(cat "$work/output")
}
wait_for() {
  local try
  for ((try = 0; try < 300; try++)); do
    [ -e "$1" ] && return
    sleep 0.1
  done
  fail "$1 did not appear"
}
wait_for_lines() {
  local try
  for ((try = 0; try < 300; try++)); do
    [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ] && return
    sleep 0.1
  done
  fail "$1 did not get $2 lines"
}
for name_and_status in INT:130 TERM:143 HUP:143; do
  interrupt WAIT=polite "${name_and_status%:*}"
  expect_status "$name_and_status" "${name_and_status#*:}"
  expect_output "$name_and_status" "the ranks finish their step and save"
  [ "$(cat "$work/signals")" = USR1 ] || fail "$name_and_status: mpirun got $(cat "$work/signals")"
done
interrupt WAIT=stubborn INT INT
expect_status "two signals" 1
[ "$(tr '\n' ' ' <"$work/signals")" = "USR1 TERM " ] || fail "two signals: $(cat "$work/signals")"

# Bad input.
expect_refusal "a job file is needed" launch/mpirun.sh
expect_refusal 'no flag "--fast"' launch/mpirun.sh --fast "$job"
expect_refusal "there is no job file none.txtpb" launch/mpirun.sh none.txtpb
expect_refusal 'from 1 on, not "two"' launch/mpirun.sh -n two "$job"
expect_refusal 'from 1 on, not "0"' launch/mpirun.sh --threads 0 "$job"
expect_refusal "-n needs a value" launch/mpirun.sh -n
expect_refusal "--set needs a value" launch/mpirun.sh "$job" --set
expect_refusal "contradict each other" launch/mpirun.sh --threads 2 "$job" --set device.threads=3
expect_refusal "device.threads is many" launch/mpirun.sh -n 1 "$job" --set device.threads=many
expect_refusal "there is no host file hosts" launch/mpirun.sh --hostfile hosts "$job"
expect_refusal "slots for 14 ranks, but the job needs 16" \
  launch/mpirun.sh --hostfile "$work/nodes" -n 16 "$job"
echo node1 >"$work/no_slots"
expect_refusal 'the line "node1", where "HOST slots=RANKS" is needed' \
  launch/mpirun.sh --hostfile "$work/no_slots" "$job"
printf 'node1 slots=1\nnode2 slots=1\nnode1 slots=1\n' >"$work/twice"
expect_refusal "names the host node1 twice" launch/mpirun.sh --hostfile "$work/twice" -n 3 "$job"
expect_refusal "give -n RANKS" FATHOM="$bin/old_fathom" launch/mpirun.sh "$job"
expect_refusal "there is no program nowhere/fathom: build it" FATHOM=nowhere/fathom \
  launch/mpirun.sh "$job"
expect_refusal "there is no program nowhere/fathom: build it" FATHOM=nowhere/fathom \
  launch/mpirun.sh -n 2 "$job"
expect_refusal "not a multiple of data 5" launch/mpirun.sh "$job" --set parallel.data=5
expect_refusal 'there is no field "model.depth"' FATHOM="$repository/launch/fathom" launch/mpirun.sh "$job" \
  --set model.depth=3

# ---- launch/slurm.sh

for line in '--signal=TERM@300' '--requeue' '--ntasks-per-node=8'; do
  grep -q -x -e "#SBATCH $line" launch/slurm.sh || fail "launch/slurm.sh has no $line"
done

# Slurm runs a copy of the script, in the folder that sbatch was called in.
cp launch/slurm.sh "$work/slurm_script"
environment+=(SLURM_JOB_ID=42 SLURM_SUBMIT_DIR="$repository" SLURM_JOB_NUM_NODES=2
  SLURM_NTASKS_PER_NODE=8 SLURM_JOB_NODELIST="node1,node2" CORES=32 SMT=2 SIZES="8 1 8" MINUTES=5)

run "$work/slurm_script" "$job" --set train.steps=3
expect_status "two nodes" 0
expect_command "two nodes" "--mpi=pmix --nodes=2 --ntasks=16 --ntasks-per-node=8 \
--distribution=block:block --cpus-per-task=8 --cpu-bind=cores --kill-on-bad-exit=1 $bin/fathom \
train $job --set train.steps=3 --set parallel.data=2 --set device.threads=4 --resume"
expect_hosts "two nodes" "node1:8,node2:8"
expect_output "two nodes" "launch/slurm.sh: srun --mpi=pmix --nodes=2"
[ ! -e "$work/requeued" ] || fail "two nodes: queued again after its end"

run SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=node7 SMT=1 "$work/slurm_script" "$job"
expect_command "a node less" "--mpi=pmix --nodes=1 --ntasks=8 --ntasks-per-node=8 \
--distribution=block:block --cpus-per-task=4 --cpu-bind=cores --kill-on-bad-exit=1 $bin/fathom \
train $job --set parallel.data=1 --set device.threads=4 --resume"
expect_hosts "a node less" "node7:8"
run SLURM_NTASKS_PER_NODE=4 SIZES="2 2 1" "$work/slurm_script" "$job" --set device.threads=1
expect_command "pipeline" "--mpi=pmix --nodes=2 --ntasks=8 --ntasks-per-node=4 \
--distribution=block:block --cpus-per-task=16 --cpu-bind=cores --kill-on-bad-exit=1 $bin/fathom \
train $job --set device.threads=1 --set parallel.data=2 --resume"

# expect_requeue WHAT YES_OR_NO STATUS
expect_requeue() {
  expect_status "$1" "$3"
  local requeued=no
  [ -e "$work/requeued" ] && requeued=yes
  [ "$requeued" = "$2" ] || fail "$1: queued again: $requeued: $output"
}
run STATUS=143 "$work/slurm_script" "$job"
expect_requeue "the time limit" yes 0
[ "$(cat "$work/requeued")" = 42 ] || fail "queued again: $(cat "$work/requeued")"
run STATUS=143 REQUEUE_STATUS=1 "$work/slurm_script" "$job"
expect_requeue "scontrol refuses" yes 143
run STATUS=143 MINUTES=60 "$work/slurm_script" "$job"
expect_requeue "stopped long before" no 143
expect_output "stopped long before" "before the time limit: not queued again"
for nothing in "" NONE N/A; do
  run STATUS=143 MINUTES="$nothing" "$work/slurm_script" "$job"
  expect_requeue "no time limit \"$nothing\"" no 143
done
for other in 1 2 137; do
  run STATUS=$other "$work/slurm_script" "$job"
  expect_requeue "status $other" no $other
done

# A SIGTERM that reaches the batch shell as well: it waits for its ranks.
rm -f "$work"/{called,requeued,started,go_on}
env -i "${environment[@]}" WAIT=yes STATUS=143 "$work/slurm_script" "$job" >"$work/output" 2>&1 &
script=$!
wait_for "$work/started"
kill -TERM "$script"
sleep 0.5
kill -0 "$script" || fail "SIGTERM ends the batch shell: $(cat "$work/output")"
touch "$work/go_on"
wait "$script"
status=$?
output=$(cat "$work/output")
expect_requeue "SIGTERM to the batch shell" yes 0

expect_refusal "this is a batch script" SLURM_JOB_ID= "$work/slurm_script" "$job"
expect_refusal "call sbatch in the repository's folder" SLURM_SUBMIT_DIR=/ "$work/slurm_script" \
  "$job"
expect_refusal "a job file is needed" "$work/slurm_script"
expect_refusal "there is no job file none" "$work/slurm_script" none
expect_refusal "leave out --set parallel.data" "$work/slurm_script" "$job" --set parallel.data=2
expect_refusal "3 nodes of 8 ranks are 24 ranks, which is not a multiple of parallel.tensor x \
pipeline = 16" SLURM_JOB_NUM_NODES=3 SIZES="8 2 1" "$work/slurm_script" "$job"
expect_refusal "not a multiple of data 5" SLURM_JOB_NUM_NODES=5 "$work/slurm_script" "$job"
expect_refusal "a node of 4 cores is too small for 8 ranks" CORES=4 "$work/slurm_script" "$job"

if [ "$failed" -ne 0 ]; then exit 1; fi
echo "all command lines are right"
