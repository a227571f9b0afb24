//! Exit codes of the `polyrail` command, part of its stable interface.

use std::io;

/// Everything succeeded, and every verdict is positive.
pub const OK: u8 = 0;

/// The work was done, but the verdict is negative, such as a regression or a failed check.
pub const VERDICT: u8 = 1;

/// The command line or the configuration can't be used; nothing was changed.
pub const USAGE: u8 = 2;

/// The machine lacks something: a permission, a free port, an interface, memory.
pub const ENVIRONMENT: u8 = 3;

/// The other side, the way to it, or a transfer failed.
pub const PEER: u8 = 4;

/// The bytes that arrived differ from the bytes that were sent.
pub const DATA: u8 = 5;

/// Stopped by Ctrl-C or a termination signal; the results so far were written.
pub const INTERRUPTED: u8 = 130;

/// Returns the exit code for an error of the operating system. A path that is wrong for every user is a usage error; a
/// missing permission, missing space and anything else that this machine lacks are not.
pub fn of_io(error: &io::Error) -> u8 {
    if polyrail_config::is_wrong_path(error.kind()) { USAGE } else { ENVIRONMENT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_argument_mends_is_usage_and_what_the_machine_lacks_is_not() {
        let code = |errno| of_io(&io::Error::from_raw_os_error(errno));
        let [enoent, eio, eacces, eexist, enotdir, eisdir, enospc, erofs] =
            [2, 5, 13, 17, 20, 21, 28, 30].map(code);
        assert_eq!([enoent, eexist, enotdir, eisdir], [USAGE; 4]);
        assert_eq!([eio, eacces, enospc, erofs], [ENVIRONMENT; 4]);
        assert_eq!(of_io(&io::ErrorKind::InvalidData.into()), USAGE, "not UTF-8");
    }
}
