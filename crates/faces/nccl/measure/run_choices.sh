#!/usr/bin/env bash
# Why small and middling collectives take as long as they do, and what devices do to large ones, on a
# machine with two GPUs: run_choices.sh LIB FOLDER (6 minutes)
set -uo pipefail
lib=$1 out=$2
here=$(dirname "$0")
export NCCL_DEBUG=WARN
settings=NCCL_MIN_NCHANNELS=8,NCCL_P2P_NET_CHUNKSIZE=524288,NCCL_NCHANNELS_PER_NET_PEER=8
# Does the transport cost the time, or NCCL's choices from the properties that the plugin reports?
python3 "$here/nccl_latency.py" --lib "$lib" --launches 8 --choices --budget 200 --sizes 8,1024,8192,16384 \
    --variant "env:$settings" --variant "ring:NCCL_ALGO=Ring" --variant "tree:NCCL_ALGO=Tree" \
    --variant "socket-ring:NCCL_NET=Socket,NCCL_ALGO=Ring" \
    --out "$out/nccl-small.json" > "$out/nccl-small.txt" 2>&1
# The protocol for what lies between.
python3 "$here/nccl_latency.py" --lib "$lib" --launches 3 --choices --budget 120 --sizes 65536,262144,1048576,4194304 \
    --variant "env:$settings" --variant "env-ll:$settings,NCCL_PROTO=LL" \
    --variant "env-ll128:$settings,NCCL_PROTO=LL128" --variant "env-simple:$settings,NCCL_PROTO=Simple" \
    --out "$out/nccl-protocols.json" > "$out/nccl-protocols.txt" 2>&1
# Without settings of NCCL: does it take more connections where it sees more devices? And of the settings
# those only that NCCL 2.28 reads after it has loaded its plugin.
late=NCCL_MIN_NCHANNELS=8,NCCL_P2P_NET_CHUNKSIZE=524288
POLYRAIL_RAILS=127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4 python3 "$here/torch_nccl.py" --lib "$lib" \
    --rounds 2 --seconds 0.05 --limit 60 --configs polyrail --variant "nic:POLYRAIL_NCCL_DEVICES=nic" \
    --variant "env:$settings" --variant "nic+env:POLYRAIL_NCCL_DEVICES=nic,$settings" \
    --variant "late:$late" --variant "nic+late:POLYRAIL_NCCL_DEVICES=nic,$late" \
    --work "all_reduce:8,64MiB,1GiB send_recv:256MiB alltoall:256MiB" \
    --out "$out/nccl-devices.json" > "$out/nccl-devices.txt" 2>&1
