//! Tests over links of given speeds or over `ssh`, and of commands that start `bench`. They wait more than they
//! compute, so they share one program: one computes while another waits.

mod bench_lab;
#[path = "../common/mod.rs"]
mod common;
mod cut;
mod interfaces;
mod lab;
mod mesh;
mod mesh_hosts;
mod namespaces;
mod net;
mod networks;
mod nodes;
mod one_way;
mod sweep;
