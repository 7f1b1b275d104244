# shellcheck shell=bash disable=SC2154
# What launch/mpirun.sh and launch/slurm.sh share; they source it. They set `self`, their own name,
# and `program`, the path of the fathom binary. They may set `ask`, the user's way out where that
# does not say a job's ranks.

# Ends the script: one sentence, and the status that fathom has for what is refused.
refuse() {
  echo "$self: $*" >&2
  exit 2
}

# need_value FLAG COUNT: a flag that takes a value is followed by one.
need_value() {
  [ "$2" -ge 2 ] || refuse "$1 needs a value after it"
}

# is_count TEXT: whether it is a whole number from 1 on.
is_count() {
  [[ $1 =~ ^[1-9][0-9]{0,8}$ ]]
}

# Sets `overrides` to the --set flags among the arguments, which are fathom train's.
read_overrides() {
  overrides=()
  while [ $# -gt 0 ]; do
    case $1 in
      --set)
        need_value "$1" $#
        overrides+=(--set "$2")
        shift
        ;;
      --set=*) overrides+=(--set "${1#--set=}") ;;
    esac
    shift
  done
}

# override_of FIELD: the value that the last --set in `overrides` gives the field, or nothing.
override_of() {
  local i value=
  for ((i = 1; i < ${#overrides[@]}; i += 2)); do
    [[ ${overrides[i]} == "$1="* ]] && value=${overrides[i]#*=}
  done
  echo "$value"
}

# Sets `job_ranks` to the number of ranks that a job needs, which is given with its --set flags, as
# `fathom inspect --json` says it. A job that is refused ends the script with fathom's own sentence.
inspect_job() {
  local json
  [ -x "$program" ] ||
    refuse "there is no program $program: build it with \"bazel build //launch:fathom\""
  json=$("$program" inspect "$@" --json) || exit 2
  job_ranks=$(sed -n '/"parallel": *{/,/}/s/^ *"ranks": *\([0-9][0-9]*\),\{0,1\}$/\1/p' <<<"$json")
  is_count "$job_ranks" ||
    refuse "\"$program inspect --json\" does not say how many ranks the job needs${ask:+: $ask}"
}

# Prints how many cores this process may run on, the hyperthreads of a core counted once, and how
# many logical processors they are.
count_cores() {
  local allowed
  allowed=$(taskset -cp $$)
  lscpu -p=CPU,CORE,SOCKET | awk -F, -v allowed="${allowed##*: }" '
    BEGIN {
      parts = split(allowed, part, ",")
      for (i = 1; i <= parts; i++) {
        ends = split(part[i], end, "-")
        for (cpu = end[1] + 0; cpu <= end[ends] + 0; cpu++) may[cpu] = 1
      }
    }
    !/^#/ && ($1 + 0 in may) {
      processors++
      if (!(($2, $3) in seen)) cores++
      seen[$2, $3] = 1
    }
    END { print cores + 0, processors + 0 }'
}

# Prints a command, quoted for a shell.
print_command() {
  local text
  printf -v text '%q ' "$@"
  echo "$self: ${text% }" >&2
}
