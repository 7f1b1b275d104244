#!/usr/bin/env bash
# Runs the MPI communicator's checks as several processes, and the ends of jobs that fail.
#
#   mpi_communicator_test.sh BINARY checks RANKS [MPIRUN_OPTION]...
#   mpi_communicator_test.sh BINARY failures
set -uo pipefail

binary=$1
mode=$2
shift 2
# GoogleTest in every rank would write the same report.
unset XML_OUTPUT_FILE TEST_SHARD_INDEX TEST_TOTAL_SHARDS TEST_SHARD_STATUS_FILE \
  TEST_PREMATURE_EXIT_FILE
export HOME="${HOME:-${TEST_TMPDIR:-/tmp}}"
mpirun=(mpirun --oversubscribe --allow-run-as-root --bind-to none)

if [ "$mode" = checks ]; then
  ranks=$1
  shift
  exec "${mpirun[@]}" "$@" -np "$ranks" "$binary" --gtest_brief=1
fi

failed=0
# A job that must end non-zero within 30 s and say every line of TEXTS, and leave no process behind.
expect_end() {
  local texts=$1 text output status
  shift
  output=$(timeout -k 5 30 "${mpirun[@]}" -np 4 "$binary" "$@" 2>&1)
  status=$?
  case $status in
    0 | 124 | 137) # good, or still there after 30 s
      echo "FAILED: $* ended with status $status"
      failed=1
      ;;
  esac
  while IFS= read -r text; do
    if ! grep -q -- "$text" <<<"$output"; then
      echo "FAILED: $* does not say '$text':"
      echo "$output"
      failed=1
    fi
  done <<<"$texts"
  if ! gone "$binary $*"; then
    echo "FAILED: $* leaves processes behind"
    failed=1
  fi
}

# Whether no process has this command line, now or a little later.
gone() {
  local try
  for try in {1..50}; do
    pgrep -f -x -- "$1" >/dev/null || return 0
    sleep 0.1
  done
  return 1
}

expect_end 'rank 1 (tensor 1): shard 5 is torn' --abort 1
expect_end 'exit' --exit 2
expect_end 'rank 0 waited 2 s for barrier number 0 (0 bytes) of group world
rank 1 waited 2 s
rank 2 waited 2 s' --stop 3
if [ "$failed" -ne 0 ]; then exit 1; fi
echo "all jobs ended as they should"
