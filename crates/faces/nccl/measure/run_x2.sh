#!/usr/bin/env bash
# Everything that is measured on a machine with two GPUs: run_x2.sh LIB FOLDER
set -uo pipefail
lib=$1 out=$2
here=$(dirname "$0")
export NCCL_DEBUG=WARN TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING=false
# What `polyrail nccl env` prints, and the same for NCCL's own transport.
settings=NCCL_MIN_NCHANNELS=8,NCCL_P2P_NET_CHUNKSIZE=524288,NCCL_NCHANNELS_PER_NET_PEER=8
sockets=NCCL_NET_PLUGIN=none,NCCL_NET=Socket,NCCL_SOCKET_NTHREADS=4,NCCL_NSOCKS_PERTHREAD=4
timeout 150 python3 "$here/torch_jobs.py" cycles --lib "$lib" > "$out/nccl-cycles.txt" 2>&1
python3 "$here/torch_nccl.py" --lib "$lib" --rounds 3 --seconds 0.05 --limit 60 \
    --configs socket-0x0,socket-4x4,socket-8x8,socket-0x0-cubic,socket-4x4-cubic,socket-8x8-cubic,polyrail \
    --variant "polyrail+env:$settings" --variant "4x4+env:$sockets,$settings" \
    --variant "no-tuner:NCCL_TUNER_PLUGIN=none,$settings" \
    --work "all_reduce:8,1KiB,8KiB,16KiB,32KiB,64KiB,128KiB,256KiB,1MiB,4MiB,64MiB,256MiB,1GiB send_recv:1MiB,256MiB alltoall:256MiB all_gather:256MiB reduce_scatter:256MiB broadcast:256MiB" \
    --out "$out/nccl-x2.json" > "$out/nccl-x2.txt" 2>&1
for job in train cut; do
    timeout 100 python3 "$here/torch_jobs.py" $job --lib "$lib" > "$out/nccl-$job.txt" 2>&1
done
