//! Writing to a process that may be stopped.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use crate::interrupt::Interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;

/// Interval between checks of the deadline and of Ctrl-C.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Writes all bytes to a worker, which may be stopped and read nothing.
///
/// # Errors
/// [`ErrorKind::TimedOut`] at `until`, [`ErrorKind::Interrupted`] after Ctrl-C, or the system's error.
pub(crate) fn write_until(
    mut stdin: impl Write + AsFd,
    mut rest: &[u8],
    until: Instant,
    interrupt: &Interrupt,
) -> io::Result<()> {
    ioctl_fionbio(&stdin, true)?;
    while !rest.is_empty() {
        match stdin.write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if interrupt.is_raised() {
                    return Err(ErrorKind::Interrupted.into());
                }
                if Instant::now() >= until {
                    return Err(ErrorKind::TimedOut.into());
                }
                // Room in the pipe or a signal ends the wait.
                let _ = poll(&mut [PollFd::new(&stdin, PollFlags::OUT)], Some(&LOOK));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_takes_nothing_is_waited_for_until_then() {
        let interrupt = Interrupt::default();
        let (mut from, to) = io::pipe().unwrap();
        let all = vec![7; 1 << 20];
        let begin = Instant::now();
        let error = write_until(&to, &all, begin + Duration::from_millis(50), &interrupt);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(begin.elapsed() >= Duration::from_millis(50));
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).map(|count| (count, bytes.iter().all(|byte| *byte == 7)))
        });
        write_until(&to, &all, Instant::now() + Duration::from_secs(60), &interrupt).unwrap();
        drop(to);
        let (count, is_right) = reader.join().unwrap().unwrap();
        assert!(count >= all.len() && is_right, "{count}");
    }
}
