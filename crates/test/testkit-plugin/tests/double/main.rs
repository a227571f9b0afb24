//! The test plugin, driven through its tables.

mod faults;
mod host;
mod reader;
mod tables;
mod transfer;
