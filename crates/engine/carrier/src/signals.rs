//! Signal handlers of the process. Plugins and libraries they link may change them on loading, so that for instance
//! Ctrl-C would no longer end the program as its author meant.

use std::mem::MaybeUninit;

/// Actions of the signals.
pub(crate) struct Signals(Vec<(libc::c_int, libc::sigaction)>);

impl Signals {
    /// Reads the present actions.
    pub(crate) fn now() -> Self {
        // Real-time signals are used by the C library itself, or not at all.
        Self((1..32).filter_map(|signal| Some((signal, action_of(signal)?))).collect())
    }

    /// Restores changed actions, and returns their signals.
    pub(crate) fn restore(&self) -> Vec<i32> {
        let mut changed = Vec::new();
        for (signal, before) in &self.0 {
            let now = action_of(*signal);
            if now.is_some_and(|now| now.sa_sigaction != before.sa_sigaction) {
                // SAFETY: the action comes from the kernel, and no old action is requested.
                unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
                changed.push(*signal);
            }
        }
        changed
    }
}

fn action_of(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call changes nothing, and the target lives through it; zeroes are valid for every field.
    let told = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: as above.
    (told == 0).then(|| unsafe { action.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn theirs(_: libc::c_int) {}

    #[test]
    fn a_handler_that_somebody_has_put_in_is_taken_out_again() {
        let before = Signals::now();
        let old = action_of(libc::SIGUSR2).unwrap().sa_sigaction;
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGUSR2, theirs as extern "C" fn(libc::c_int) as usize) };
        assert_ne!(action_of(libc::SIGUSR2).unwrap().sa_sigaction, old);
        assert_eq!(before.restore(), [libc::SIGUSR2]);
        assert_eq!(action_of(libc::SIGUSR2).unwrap().sa_sigaction, old);
        assert!(before.restore().is_empty());
    }
}
