//! The C interface from the outside: its header, its library, and programs in C and C++.

mod build;
mod header;
mod nixl;
mod programs;
