//! Signal handlers of the process, which plugins and what they link may change when they are loaded: with some, Ctrl-C
//! would no longer end the program as its author meant.

use std::mem::MaybeUninit;

/// What happens at each signal.
pub(crate) struct Signals(Vec<(libc::c_int, libc::sigaction)>);

impl Signals {
    /// As it is now.
    pub(crate) fn now() -> Self {
        // Those of real time are of the C library's own, or of nobody.
        Self((1..32).filter_map(|signal| Some((signal, action_of(signal)?))).collect())
    }

    /// Makes it so again where it has changed, and says at which signals.
    pub(crate) fn restore(&self) -> Vec<i32> {
        let mut changed = Vec::new();
        for (signal, before) in &self.0 {
            let now = action_of(*signal);
            if now.is_some_and(|now| now.sa_sigaction != before.sa_sigaction) {
                // SAFETY: the kernel told this action itself, and the old one is not asked for.
                unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
                changed.push(*signal);
            }
        }
        changed
    }
}

fn action_of(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed, and the place lives through the call; zeroes are valid for every field.
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
