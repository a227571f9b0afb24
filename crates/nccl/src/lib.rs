//! NCCL and RCCL net plugin.
