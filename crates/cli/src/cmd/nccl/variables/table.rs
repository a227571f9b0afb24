//! The table itself. Versions are of the first and the last release whose source has the name.

use super::Values::{Text, Whole, Words};
use super::Variable;

/// A row: name, releases of NCCL, RCCL, default and values; what it does, what was measured.
macro_rules! table {
    ($($group:literal { $(
        $name:literal $since:literal $until:literal $rccl:literal $default:literal $values:expr;
        $what:literal, $measured:literal
    )+ })+) => {
        pub(in super::super) const TABLE: &[Variable] = &[$($(
            Variable {
                name: $name, group: $group, since: $since, until: $until, in_rccl: $rccl,
                default: $default, values: $values, what: $what, measured: $measured,
            }
        ),+),+];
    };
}

table! {
    "Algorithms and protocols" {
        "NCCL_ALGO" "2.5.6" "" true "by size and topology" Text("Ring, Tree, CollnetDirect, CollnetChain, NVLS, NVLSTree, PAT; with commas between, ^ in front excludes; per operation from 2.24");
            "which algorithms a collective may use", ""
        "NCCL_PROTO" "2.5.6" "" true "by size" Text("LL, LL128, Simple; with commas between, ^ in front excludes");
            "which protocols a collective may use; LL sends twice the bytes", "Simple in place of LL, by our tuner: all_reduce of 64 KiB 97 us, 289 without (two H200)"
        "NCCL_THREAD_THRESHOLDS" "2.5.6" "" true "by GPU" Text("numbers with spaces between, two for each protocol");
            "from how many bytes for each thread a protocol takes more channels and threads", ""
        "NCCL_NTHREADS" "2.3.5" "" true "-2" Whole(-2, 640);
            "threads of a block for Simple and LL; 64, 128, 256 or 512", ""
        "NCCL_LL128_NTHREADS" "2.5.6" "" true "-2" Whole(-2, 640);
            "the same for LL128", ""
        "NCCL_PAT_ENABLE" "2.23.4" "" false "2" Whole(0, 2);
            "the algorithm PAT: off, on, where it fits", ""
        "NCCL_NVLS_ENABLE" "2.17.1" "" true "2" Whole(0, 2);
            "reduction in the NVLink switch: off, on, where it fits", ""
        "NCCL_COLLNET_ENABLE" "2.6.4" "" true "not set" Whole(0, 1);
            "reduction in the network", ""
        "NCCL_TUNER_PLUGIN" "2.19.1" "" true "the net plugin" Text("the name of a library, or none");
            "which tuner chooses algorithm, protocol and channels", "ours beside none, all_reduce: 32 KiB 80 and 127 us, 1 MiB 280 and 477 us (two H200)"
    }
    "Channels" {
        "NCCL_MIN_NCHANNELS" "2.5.6" "" true "-2" Whole(1, 64);
            "the fewest channels of a collective", "8 with messages of 512 KiB on 8 connections: all_reduce 256 MiB 19.4 GB/s, 15.4 without (two H200)"
        "NCCL_MAX_NCHANNELS" "2.5.6" "" true "-2" Whole(1, 64);
            "the most channels of a collective", ""
        "NCCL_MIN_CTAS" "2.17.1" "" true "not set" Whole(1, 64);
            "the fewest blocks of a kernel, and so channels", ""
        "NCCL_MAX_CTAS" "2.17.1" "" true "not set" Whole(1, 64);
            "the most blocks of a kernel", ""
        "NCCL_MIN_NRINGS" "2.3.5" "" true "-2" Whole(1, 64);
            "the older name of NCCL_MIN_NCHANNELS", ""
        "NCCL_MAX_NRINGS" "2.3.5" "" true "-2" Whole(1, 64);
            "the older name of NCCL_MAX_NCHANNELS", ""
        "NCCL_MIN_P2P_NCHANNELS" "2.7.3" "" true "1" Whole(1, 64);
            "the fewest channels of send and receive", ""
        "NCCL_MAX_P2P_NCHANNELS" "2.7.3" "" true "64" Whole(1, 64);
            "the most channels of send and receive", ""
        "NCCL_NCHANNELS_PER_NET_PEER" "2.12.7" "" true "not set" Whole(1, 64);
            "channels of send and receive to a peer over the network", "8 with messages of 512 KiB: send/recv 256 MiB 26.2 GB/s, 9.0 without (two H200); 16 with messages of 1 MiB 43.0"
        "NCCL_P2P_PER_CHANNEL_NET_BW" "2.29.2" "" false "14" Whole(1, 1000);
            "GB/s that a channel of send and receive is expected to carry", ""
        "NCCL_NVLS_NCHANNELS" "2.17.1" "" true "not set" Whole(1, 64);
            "channels of NVLS", ""
        "NCCL_CGA_CLUSTER_SIZE" "2.15.1" "" true "not set" Whole(0, 8);
            "blocks of a cluster, on Hopper and newer", ""
        "NCCL_CTA_POLICY" "2.27.3" "" false "not set" Text("default, efficiency, zero, or their numbers");
            "how many blocks a kernel takes", ""
    }
    "Buffers and messages" {
        "NCCL_BUFFSIZE" "2.3.5" "" true "-2 (4 MiB)" Whole(1, 1073741824);
            "bytes of the buffer of a channel for Simple, for 8 messages", "8 MiB: all_reduce 256 MiB 0.94 of 4 x 10 Gbit/s, 0.73 without (two H200); slower where four GPUs share a cache"
        "NCCL_LL_BUFFSIZE" "2.7.3" "" true "-2" Whole(1, 1073741824);
            "the same for LL", ""
        "NCCL_LL128_BUFFSIZE" "2.7.3" "" true "-2" Whole(1, 1073741824);
            "the same for LL128", ""
        "NCCL_CHUNK_SIZE" "2.12.7" "" true "0" Whole(0, 2147483647);
            "bytes of a piece in kernels; 0 is chosen", ""
        "NCCL_P2P_NET_CHUNKSIZE" "2.14.3" "" true "131072" Whole(1, 1073741824);
            "bytes of a message of send and receive over the network", "256 KiB on 8 connections: alltoall 16.2 GB/s, 4.3 with NCCL's choice (four H200)"
        "NCCL_P2P_PCI_CHUNKSIZE" "2.16.2" "" true "131072" Whole(1, 1073741824);
            "the same over PCI", ""
        "NCCL_P2P_NVL_CHUNKSIZE" "2.16.2" "" true "524288" Whole(1, 1073741824);
            "the same over NVLink", ""
        "NCCL_NVLS_CHUNKSIZE" "2.21.5" "" true "131072" Whole(1, 1073741824);
            "bytes of a piece of NVLS", ""
        "NCCL_P2P_LL_THRESHOLD" "2.14.3" "" true "16384" Whole(0, 2147483647);
            "up to how many bytes send and receive use LL", ""
        "NCCL_WORK_FIFO_BYTES" "2.22.3" "" false "1 MiB" Whole(1, 1073741824);
            "bytes of the queue of work for kernels", ""
        "NCCL_WORK_FIFO_DEPTH" "2.13.4" "2.21.5" true "65536" Whole(1, 1073741824);
            "entries of that queue", ""
    }
    "Proxies" {
        "NCCL_PROGRESS_APPENDOP_FREQ" "2.16.5" "" true "8" Whole(1, 1000000);
            "passes of the proxy after which it fetches new operations; read by the plugin, too", ""
        "NCCL_PROXY_APPEND_BATCH_SIZE" "2.16.2" "" true "16" Whole(1, 1000000);
            "groups of operations that it fetches at once; the plugin reads it as a number of operations", ""
        "NCCL_PROXY_DUMP_SIGNAL" "2.14.3" "" true "-1" Whole(-1, 64);
            "the signal on which the proxy prints its state; -1 is none", ""
        "NCCL_PROXY_CPUSET" "2.28.3" "" false "not set" Text("a list of CPUs, such as 0-3,8");
            "the CPUs of the proxy's threads", ""
        "NCCL_IGNORE_CPU_AFFINITY" "2.4.6" "" true "0" Whole(0, 1);
            "take the CPUs near the GPU though the program allows others only", ""
        "NCCL_CREATE_THREAD_CONTEXT" "2.13.4" "2.30.4" true "0" Whole(0, 1);
            "a CUDA context of its own for the proxy's thread", ""
        "NCCL_SET_THREAD_NAME" "2.12.7" "" true "0" Whole(0, 1);
            "give threads names", ""
        "RCCL_ENABLE_PROXY_TRACE" "" "" true "0" Whole(0, 1);
            "trace the operations of the proxy; newer than ROCm 6.2", ""
    }
    "Network" {
        "NCCL_NET" "2.10.3" "" true "the first that works" Text("the name of a network, such as Polyrail, Socket or IB");
            "which network to use, without falling back to another", ""
        "NCCL_NET_PLUGIN" "2.11.4" "" true "not set" Text("a name, a library, or none; with commas between from 2.28");
            "which net plugin to load", ""
        "NCCL_NET_PLUGIN_REF_COUNT" "2.26.2" "" false "0" Whole(0, 1);
            "keep the plugin until the process ends", "1 is needed for a second communicator in 2.28.9, which forgets a plugin that it unloads"
        "NCCL_NET_SHARED_BUFFERS" "2.8.3" "" true "-2" Whole(-2, 1);
            "share buffers between channels of send and receive", ""
        "NCCL_NET_SHARED_COMMS" "2.12.7" "" true "1" Whole(0, 1);
            "share connections to the peers of a proxy", ""
        "NCCL_NET_OPTIONAL_RECV_COMPLETION" "2.24.3" "" false "1" Whole(0, 1);
            "let a plugin end a receive before it knows its size", ""
        "NCCL_NET_OVERHEAD" "2.18.1" "" true "-2" Whole(0, 2147483647);
            "microseconds that a message costs, for choosing algorithms", ""
        "NCCL_NET_FORCE_FLUSH" "2.15.1" "" true "0" Whole(0, 1);
            "flush after each receive into GPU memory", ""
        "NCCL_NET_DISABLE_INTRA" "2.12.7" "" true "0" Whole(0, 1);
            "no network between GPUs of one host", ""
        "NCCL_NET_GDR_LEVEL" "2.4.2" "" true "PXB" Text("LOC, PIX, PXB, P2C, PHB, SYS, or 0 to 5");
            "how far a NIC may be for GPU memory to be read from it; of no effect for plugins of host memory such as ours", ""
        "NCCL_NET_GDR_READ" "2.3.5" "" true "-2" Whole(-2, 1);
            "the same for sending", ""
        "NCCL_NET_GDR_C2C" "2.26.2" "" false "1" Whole(0, 1);
            "GPU memory over C2C", ""
        "NCCL_NETDEVS_POLICY" "2.28.3" "" false "AUTO" Text("AUTO, ALL, or MAX:N");
            "how many NICs a GPU may have", ""
        "NCCL_NET_MERGE_LEVEL" "2.24.3" "" false "PORT" Text("LOC, PORT, PIX, PXB, P2C, PHB, SYS");
            "how near NICs must be to become one device", ""
        "NCCL_NET_FORCE_MERGE" "2.24.3" "" false "not set" Text("names of NICs with commas between, lists with semicolons");
            "which NICs become one device", ""
        "NCCL_CROSS_NIC" "2.5.6" "" true "2" Whole(0, 2);
            "rings through different NICs on different nodes: never, always, where it helps", ""
        "NCCL_PXN_DISABLE" "2.12.7" "" true "0" Whole(0, 1);
            "no way through another GPU to a NIC near that one", ""
        "NCCL_P2P_PXN_LEVEL" "2.12.7" "" true "2" Whole(0, 2);
            "that way for send and receive: never, where needed, always", ""
        "NCCL_DMABUF_ENABLE" "2.13.4" "" true "1" Whole(0, 1);
            "register GPU memory by dma-buf", ""
        "NCCL_IB_DISABLE" "2.3.5" "" true "0" Whole(0, 1);
            "no InfiniBand or RoCE", ""
        "NCCL_IB_QPS_PER_CONNECTION" "2.10.3" "" true "1" Whole(1, 128);
            "queue pairs of a connection", ""
        "NCCL_IB_SPLIT_DATA_ON_QPS" "2.18.1" "" true "0" Whole(0, 1);
            "split each message over them", ""
        "RCCL_NET_CONTIGUOUS_MEM" "" "" true "0" Whole(0, 1);
            "contiguous memory for the network's buffers", ""
        "RCCL_P2P_NET_DISABLE" "" "" true "0" Whole(0, 1);
            "no network for send and receive in one host", ""
        "RCCL_P2P_NET_THRESHOLD" "" "" true "131072" Whole(0, 2147483647);
            "from how many bytes send and receive in one host take the network", ""
        "RCCL_ENABLE_INTRANET" "" "" true "-2" Whole(-2, 1);
            "the network between GPUs of one host", ""
        "RCCL_INTRANET_THRESHOLD" "" "" true "8388608" Whole(0, 2147483647);
            "from how many bytes", ""
        "RCCL_FORCE_ENABLE_GDRDMA" "" "" true "-1" Whole(-1, 1);
            "the network reads GPU memory whatever is detected", ""
    }
    "NCCL's own sockets" {
        "NCCL_SOCKET_IFNAME" "2.3.5" "" true "all but lo and docker" Text("beginnings of names with commas between; = in front is exact, ^ excludes");
            "which interfaces to use; read by the plugin, too", ""
        "NCCL_SOCKET_FAMILY" "2.3.5" "" true "both" Words(&["AF_INET", "AF_INET6"]);
            "addresses of which family; read by the plugin, too", ""
        "NCCL_SOCKET_NTHREADS" "2.4.8" "" true "-2" Whole(-2, 16);
            "threads of a connection; the plugin takes it as its number of proxies", "4 with 4 sockets for each, NCCL's own transport: all_reduce 1 MiB 232 us, 458 without (two H200)"
        "NCCL_NSOCKS_PERTHREAD" "2.4.8" "" true "-2" Whole(-2, 64);
            "sockets of each of them; the plugin takes it as sockets of a channel", "as the row above"
        "NCCL_SOCKET_INLINE" "2.27.3" "" false "128" Whole(0, 2147483647);
            "bytes that travel with the head of a message", ""
        "NCCL_SOCKET_MIN_TASKSIZE" "2.27.3" "" false "65536" Whole(1, 1073741824);
            "bytes below which a message is not cut", ""
        "NCCL_SOCKET_RCVBUF" "2.27.3" "" false "-1" Whole(-1, 1073741824);
            "bytes of a socket's receive buffer; -1 is the system's", ""
        "NCCL_SOCKET_SNDBUF" "2.27.3" "" false "-1" Whole(-1, 1073741824);
            "bytes of its send buffer", ""
    }
    "Within a host" {
        "NCCL_P2P_DISABLE" "2.3.5" "" true "0" Whole(0, 1);
            "no copies between GPUs", ""
        "NCCL_P2P_LEVEL" "2.3.5" "" true "by GPU" Text("LOC, NVL, PIX, PXB, PHB, SYS, or 0 to 5");
            "how far GPUs may be for such copies", ""
        "NCCL_P2P_DIRECT_DISABLE" "2.12.12" "" true "0" Whole(0, 1);
            "no pointers to memory of another GPU in one process", ""
        "NCCL_P2P_READ_ENABLE" "2.7.3" "" true "-2" Whole(-2, 1);
            "read from the other GPU in place of writing to it", ""
        "NCCL_P2P_USE_CUDA_MEMCPY" "2.13.4" "" true "0" Whole(0, 1);
            "copy by the copy engines", ""
        "NCCL_SHM_DISABLE" "2.3.5" "" true "0" Whole(0, 1);
            "no shared memory of the host", ""
        "NCCL_SHM_LOCALITY" "2.13.4" "" true "2" Whole(1, 2);
            "whose node has that memory: the sender's, the receiver's", ""
        "NCCL_SHM_USE_CUDA_MEMCPY" "2.13.4" "2.30.4" true "0" Whole(0, 1);
            "copy to it by the copy engines", ""
        "NCCL_SHM_MEMCPY_MODE" "2.13.4" "2.30.4" true "1" Whole(1, 3);
            "who does: the sender, the receiver, both", ""
        "NCCL_NVB_DISABLE" "2.9.9" "" true "0" Whole(0, 1);
            "no way through another GPU to one without a link", ""
        "NCCL_MNNVL_ENABLE" "2.21.5" "" true "2" Whole(0, 2);
            "NVLink between nodes: off, on, where it is", ""
        "RCCL_PIVOT_ALLTOALL_ENABLE" "" "" true "1" Whole(0, 1);
            "alltoall by pivots where the topology has them", ""
        "RCCL_MSCCL_ENABLE" "" "" true "1" Whole(0, 1);
            "algorithms of MSCCL", ""
        "RCCL_MSCCLPP_ENABLE" "" "" true "by build" Whole(0, 1);
            "kernels of MSCCL++", ""
        "RCCL_MSCCLPP_THRESHOLD" "" "" true "1048576" Whole(0, 2147483647);
            "up to how many bytes", ""
        "RCCL_LL128_FORCE_ENABLE" "" "" true "0" Whole(0, 1);
            "LL128 where RCCL would not choose it", ""
    }
    "GDRCopy and flushes" {
        "NCCL_GDRCOPY_ENABLE" "2.9.6" "" true "0" Whole(0, 1);
            "let CPUs reach GPU memory by GDRCopy; the next three need it", ""
        "NCCL_GDRCOPY_SYNC_ENABLE" "2.12.7" "" true "1" Whole(0, 1);
            "keep flags of the proxy in GPU memory", ""
        "NCCL_GDRCOPY_FLUSH_ENABLE" "2.9.6" "" true "0" Whole(0, 1);
            "flush after receives by a read over PCI", ""
        "NCCL_GDRCOPY_FIFO_ENABLE" "2.9.6" "" true "1" Whole(0, 1);
            "keep the queue of work in GPU memory", ""
        "NCCL_GDR_FLUSH_DISABLE" "2.3.5" "" true "0" Whole(0, 1);
            "no flush after receives by InfiniBand", ""
    }
    "Memory, launch and start" {
        "NCCL_CUMEM_ENABLE" "2.18.1" "" true "-2" Whole(-2, 1);
            "GPU memory by cuMem functions", ""
        "NCCL_CUMEM_HOST_ENABLE" "2.23.4" "" false "-1" Whole(-1, 1);
            "host memory by them", ""
        "NCCL_LOCAL_REGISTER" "2.19.1" "" true "1" Whole(0, 1);
            "use memory that the user registered without copies", ""
        "NCCL_GRAPH_REGISTER" "2.11.4" "" true "1" Whole(0, 1);
            "the same for memory in CUDA graphs", ""
        "NCCL_GRAPH_MIXING_SUPPORT" "2.13.4" "" true "not set" Whole(0, 1);
            "operations inside and outside of CUDA graphs at once", ""
        "NCCL_LAUNCH_MODE" "2.3.5" "" true "PARALLEL" Words(&["PARALLEL", "GROUP"]);
            "how kernels of several GPUs of a process start", ""
        "NCCL_RUNTIME_CONNECT" "2.22.3" "" false "1" Whole(0, 1);
            "connect when an algorithm is first used", ""
        "NCCL_TOPO_FILE" "2.6.4" "" true "the system" Text("a file");
            "the topology in place of the detected one", ""
        "NCCL_GRAPH_FILE" "2.6.4" "" true "not set" Text("a file");
            "rings and trees in place of those that are searched", ""
    }
    "Messages for people" {
        "NCCL_DEBUG" "2.3.5" "" true "not set" Words(&["VERSION", "WARN", "INFO", "ABORT", "TRACE"]);
            "what to log; the plugin logs by it, too", ""
        "NCCL_DEBUG_SUBSYS" "2.3.5" "" true "INIT,BOOTSTRAP,ENV" Text("names of parts with commas between; ^ in front excludes");
            "of which parts", ""
        "NCCL_DEBUG_FILE" "2.3.5" "" true "standard output" Text("a file; %h is the host, %p the process");
            "where to", ""
    }
}
