//! Finds and loads a plugin the way NCCL does.
