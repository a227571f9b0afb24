//! Tests that need no process of their own.

mod lines;
mod subsystems;
