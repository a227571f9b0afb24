#!/usr/bin/env bash
# NCCL between two namespaces whose rails are the limit, on a machine with two GPUs, as root:
# run_lab.sh POLYRAIL LIB FOLDER [ROUNDS]
set -uo pipefail
polyrail=$1 lib=$2 out=$3 rounds=${4:-3}
here=$(dirname "$0")
export NCCL_DEBUG=WARN TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING=false
# What `polyrail nccl env` prints.
settings=NCCL_MIN_NCHANNELS=8,NCCL_P2P_NET_CHUNKSIZE=524288,NCCL_NCHANNELS_PER_NET_PEER=8
python3 "$here/torch_lab.py" --polyrail "$polyrail" --lib "$lib" --rounds "$rounds" --env "$settings" \
    --out "$out/nccl-lab.json" 2>&1 | tee "$out/nccl-lab.txt"
