#!/usr/bin/env bash
# Everything that is measured on a machine with four GPUs: run_x4.sh LIB FOLDER
set -uo pipefail
lib=$1 out=$2
here=$(dirname "$0")
export NCCL_DEBUG=WARN TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING=false
settings=NCCL_MIN_NCHANNELS=8,NCCL_P2P_NET_CHUNKSIZE=262144,NCCL_NCHANNELS_PER_NET_PEER=8
sockets=NCCL_NET_PLUGIN=none,NCCL_NET=Socket,NCCL_SOCKET_NTHREADS=4,NCCL_NSOCKS_PERTHREAD=4
python3 "$here/torch_nccl.py" --ranks 4 --lib "$lib" --rounds 2 --seconds 0.1 --limit 60 \
    --configs socket-0x0,socket-4x4,socket-8x8,polyrail \
    --variant "polyrail+env:$settings" --variant "4x4+env:$sockets,$settings" \
    --work "alltoall:1MiB,256MiB all_reduce:8,64KiB,256MiB,1GiB all_gather:256MiB reduce_scatter:256MiB broadcast:256MiB send_recv:256MiB" \
    --out "$out/nccl-x4.json" > "$out/nccl-x4.txt" 2>&1
