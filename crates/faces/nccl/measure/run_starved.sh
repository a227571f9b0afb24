#!/usr/bin/env bash
# The longest calls of NCCL's thread where CPUs are short: eight processes, all with all, beside two busy loops for
# each CPU, as often as told.
#
#   run_starved.sh LIBRARY [RUNS]      make -C crates/faces/nccl/harness first
set -euo pipefail
library=${1:?the plugin, libnccl_net_polyrail.so}
runs=${2:-100}
harness=$(dirname "$0")/../harness/build/nccl-harness
export POLYRAIL_RAILS=127.0.0.1,127.0.0.2 POLYRAIL_PEER_TIMEOUT_MS=4000

loops=()
for ((i = 0; i < 2 * $(nproc); i++)); do
    timeout 3600 sh -c 'while :; do :; done' &
    loops+=($!)
done
log=$(mktemp)
trap 'kill "${loops[@]}"; rm -f "$log"' EXIT

failed=0
for ((run = 0; run < runs; run++)); do
    # The limit would end the run on a long call, but long calls are what it measures.
    "$harness" "$library" --abi $((run % 2 ? 9 : 11)) --quick --longest --post-limit-ms 10000 alltoall >>"$log" 2>&1 ||
        failed=$((failed + 1))
done
grep 'failed:\|plugin warned:' "$log" || true
awk '/ calls, longest/ {
    calls[$1] += $2
    if ($5 > own[$1]) own[$1] = $5
    if ($11 > clock[$1]) clock[$1] = $11
}
END { for (call in calls) printf "%-11s %9d calls, longest %8.2f ms by its own doing, %8.2f ms by the clock\n", call, calls[call], own[call], clock[call] }' "$log" |
    grep '^isend\|^irecv\|^test'
echo "$failed of $runs runs failed"
