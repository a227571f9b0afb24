//! Engines find each other at each kind of place: a folder, etcd, DNS, the ranks of a job.
//!
//! One test program for all, because most tests wait for a lease to end and can do so at the same time.

mod common;
mod dir;
mod dns;
mod etcd;
mod launchers;
mod ranks;
mod slurm;
