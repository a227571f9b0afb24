//! What runs over links of given speeds, or starts runs of `bench` by itself. These tests wait more than they
//! compute, so they are one program, in which one waits while another computes.

mod bench_lab;
mod cut;
#[path = "../fit/mod.rs"]
mod fit;
mod interfaces;
mod lab;
mod mesh;
mod net;
mod networks;
mod nodes;
mod one_way;
mod sweep;
