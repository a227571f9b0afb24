//! Payload that CPUs or devices copy, between processes of one host or on its way to the rails.

#[path = "../common/mod.rs"]
mod common;

mod device_trouble;
mod devices;
mod direct;
mod file_limit;
mod shared;
mod shared_stream;
mod single_copy;
mod single_copy_messages;
mod staged_copy;
