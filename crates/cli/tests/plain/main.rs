//! Tests that neither measure nor build networks: every command as a user runs it, its output, its pages, its packages.
//! Most of them wait for other processes, so they share one program: one computes while another waits.

mod analyze;
mod bench;
mod bench_fit;
mod bench_gpu;
mod collective;
mod columns;
#[path = "../common/mod.rs"]
mod common;
mod config;
mod doctor;
mod experiment;
mod exporter;
mod gpu_run;
mod install;
mod irq;
mod journals;
mod killed;
mod kinds;
mod listen;
mod log;
mod nccl;
mod nccl_try;
mod nic;
mod nixl;
mod nvml;
mod packages;
mod pages;
mod peers;
mod profile;
mod schemas;
mod secret;
mod topo;
