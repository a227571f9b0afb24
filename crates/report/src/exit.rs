//! The exit codes of the `polyrail` command: part of its stable interface.

/// Everything succeeded, and every verdict is positive.
pub const OK: u8 = 0;

/// The work was done, and its verdict is negative, such as a regression or a failed check.
pub const VERDICT: u8 = 1;

/// The command line or the configuration can't be used; nothing was changed.
pub const USAGE: u8 = 2;

/// The machine lacks something: a permission, a free port, an interface, memory.
pub const ENVIRONMENT: u8 = 3;

/// The other side, the way to it, or a transfer failed.
pub const PEER: u8 = 4;

/// Bytes arrived that are not the bytes that were sent.
pub const DATA: u8 = 5;

/// Stopped by Ctrl-C or a termination signal; results so far were still written.
pub const INTERRUPTED: u8 = 130;
