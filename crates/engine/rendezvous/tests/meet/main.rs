//! Engines find each other by each kind of meeting place: a folder, etcd, DNS, the ranks of a job.
//!
//! One program has them all: most tests wait for a lease to end, and wait at the same time.

mod common;
mod dir;
mod dns;
mod etcd;
mod launchers;
mod ranks;
mod slurm;
