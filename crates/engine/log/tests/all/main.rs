//! Tests that need no separate process.

mod lines;
mod subsystems;
