#!/usr/bin/env bash
# Starts `fathom train` on several ranks with Open MPI; --help says more.
set -uo pipefail

self=launch/mpirun.sh
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${FATHOM:-$root/bazel-bin/launch/fathom}
# shellcheck source=launch/cluster.sh
. "$root/launch/cluster.sh"

usage() {
  cat <<'END'
usage: launch/mpirun.sh [--hostfile FILE] [-n RANKS] [--threads N] JOB [fathom train's arguments]

Trains a job on several ranks of one or several hosts with Open MPI, and prints the command line
that it runs. The hosts see the same files under the same paths.
  --hostfile FILE  a line "HOST slots=RANKS" for each host, which are filled in this order; without
                   it all ranks run here
  -n RANKS         default: the job's parallel.tensor x pipeline x data, --set included
  --threads N      cores of each rank, and its device.threads; default: this host's cores over the
                   ranks of the fullest host, at least 1

Ranks are bound to cores where there are enough of them, as this host has them. Variables UCX_*,
NCCL_*, FI_*, OMP_*, LD_LIBRARY_PATH and FATHOM_* go to all ranks. Settings of Open MPI are given as
its variables, for example OMPI_MCA_btl_tcp_if_include=eth1.

Ctrl-C or SIGTERM: all ranks finish the step and save; a second one ends the job at once.
Set FATHOM to use another program than bazel-bin/launch/fathom.

example: launch/mpirun.sh launch/jobs/toy_xmod.txtpb --set parallel.data=2
         launch/mpirun.sh --hostfile hosts --threads 8 JOB --resume
END
}

hostfile=
ranks=
threads=
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --hostfile)
      need_value "$1" $#
      hostfile=$2
      shift
      ;;
    -n | -np)
      need_value "$1" $#
      is_count "$2" || refuse "$1 takes a number of ranks from 1 on, not \"$2\""
      ranks=$2
      shift
      ;;
    --threads)
      need_value "$1" $#
      is_count "$2" || refuse "$1 takes a number of cores from 1 on, not \"$2\""
      threads=$2
      shift
      ;;
    -*) refuse "there is no flag \"$1\" before the job; --help lists those that exist" ;;
    *) break ;;
  esac
  shift
done
[ $# -ge 1 ] || refuse "a job file is needed; --help shows an example"
job=$1
shift
[ -r "$job" ] || refuse "there is no job file $job"
command -v mpirun >/dev/null || refuse "there is no mpirun here: install Open MPI (openmpi-bin)"
read_overrides "$@"

if [ -z "$ranks" ]; then
  ask="give -n RANKS"
  inspect_job "$job" ${overrides[@]+"${overrides[@]}"}
  ranks=$job_ranks
fi
[ -x "$program" ] ||
  refuse "there is no program $program: build it with \"bazel build //launch:fathom\""

# Sets `hosts` ("node1:8,node2:8") and `fullest`, the most ranks on one host.
fill_hosts() {
  local line name slots left=$ranks here
  hosts=
  fullest=0
  while IFS= read -r line || [ -n "$line" ]; do
    line=${line%%#*}
    [[ $line =~ ^[[:space:]]*$ ]] && continue
    [[ $line =~ ^[[:space:]]*([^[:space:]]+)[[:space:]]+slots=([1-9][0-9]{0,5})[[:space:]]*$ ]] ||
      refuse "$hostfile has the line \"$line\", where \"HOST slots=RANKS\" is needed"
    name=${BASH_REMATCH[1]}
    slots=${BASH_REMATCH[2]}
    [[ ,$hosts == *",$name:"* ]] && refuse "$hostfile names the host $name twice"
    here=$((left < slots ? left : slots))
    left=$((left - here))
    [ "$here" -eq 0 ] && continue
    hosts+="${hosts:+,}$name:$here"
    [ "$here" -gt "$fullest" ] && fullest=$here
  done <"$hostfile"
  [ "$left" -eq 0 ] ||
    refuse "$hostfile has slots for $((ranks - left)) ranks, but the job needs $ranks"
}

if [ -n "$hostfile" ]; then
  [ -r "$hostfile" ] || refuse "there is no host file $hostfile"
  fill_hosts
else
  hosts=$HOSTNAME:$ranks
  fullest=$ranks
fi

read -r cores _ < <(count_cores)
is_count "$cores" || refuse "lscpu and taskset do not say how many cores this host has"
set_threads=$(override_of device.threads)
if [ -n "$set_threads" ] && [ "$set_threads" != 0 ]; then
  is_count "$set_threads" || refuse "device.threads is $set_threads, but it must be 0 or more"
  if [ -n "$threads" ] && [ "$threads" != "$set_threads" ]; then
    refuse "--threads $threads and --set device.threads=$set_threads contradict each other"
  fi
  threads=$set_threads
fi
if [ -z "$threads" ]; then
  threads=$((cores / fullest))
  [ "$threads" -ge 1 ] || threads=1
fi

command=(mpirun -n "$ranks")
[ -n "$hostfile" ] && command+=(--hostfile "$hostfile")
[ "$(id -u)" -eq 0 ] && command+=(--allow-run-as-root)
if [ $((fullest * threads)) -le "$cores" ]; then
  command+=(--bind-to core --map-by "slot:PE=$threads")
else
  echo "$self: $fullest ranks with device.threads $threads on a host of $cores cores: they are not" \
    "bound and share the cores, which is right for tests and slow for training" >&2
  command+=(--bind-to none --map-by slot --oversubscribe)
fi
command+=(-x "FATHOM_HOSTS=$hosts")
while IFS= read -r name; do
  case $name in
    FATHOM_HOSTS) ;; # as above
    UCX_* | NCCL_* | FI_* | OMP_* | FATHOM_* | LD_LIBRARY_PATH) command+=(-x "$name") ;;
  esac
done < <(compgen -e | sort)
command+=("$program" train "$job" "$@" --set "device.threads=$threads")
print_command "${command[@]}"

# mpirun kills its ranks a second after a SIGTERM of its own. SIGUSR1 it passes on to them, and they
# take it for a request to stop. In a process group of its own it does not see the terminal's
# Ctrl-C.
mpirun=
signal=0
woken=0
# shellcheck disable=SC2317  # the traps call it
stop() {
  woken=1
  local first=$((signal == 0))
  if [ "$first" -eq 1 ]; then
    signal=$1
    echo "$self: the ranks finish their step and save; a second signal ends them at once" >&2
  fi
  [ -n "$mpirun" ] || return  # it is sent below
  if [ "$first" -eq 1 ]; then kill -USR1 "$mpirun"; else kill -TERM "$mpirun"; fi
}
trap 'stop 2' INT
trap 'stop 15' TERM HUP
set -m
"${command[@]}" </dev/null &
mpirun=$!
set +m
[ "$signal" -eq 0 ] || kill -USR1 "$mpirun"
while true; do
  woken=0
  wait "$mpirun"
  status=$?
  # A signal ends `wait` before mpirun has ended.
  [ "$woken" -eq 1 ] || break
done
# The ranks stopped because of SIGUSR1 (10), which stood for another signal.
if [ "$status" -eq $((128 + 10)) ] && [ "$signal" -ne 0 ]; then exit $((128 + signal)); fi
exit "$status"
