//! NCCL net ABI.
