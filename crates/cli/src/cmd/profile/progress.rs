//! How far a run is, and how long the rest takes.

use std::cell::RefCell;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::choice::show_time;
use crate::stdout::tell;

/// How often to print a line if standard error is not a terminal.
const SAY_EVERY: Duration = Duration::from_secs(15);

/// A bar on a terminal, a line now and then elsewhere.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    begin: Instant,
    said: RefCell<Instant>,
}

const PARTS: f64 = 10_000.0;
const TEMPLATE: &str = "{bar:30} {percent} %  {eta} left  {msg}";

impl Progress {
    pub(super) fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            // The template is a constant that a test reads.
            let style = ProgressStyle::with_template(TEMPLATE)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(PARTS as u64).with_style(style)
        });
        Self { bar, begin: Instant::now(), said: RefCell::new(Instant::now()) }
    }

    pub(super) fn show(&self, share: f64, what: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_position((share * PARTS) as u64);
                bar.set_message(what.to_owned());
            }
            None if self.said.borrow().elapsed() >= SAY_EVERY => {
                self.said.replace(Instant::now());
                let left = self.begin.elapsed().as_secs_f64() * (1.0 / share.max(1e-6) - 1.0);
                let left = show_time(Duration::from_secs_f64(left.clamp(0.0, 1e9)));
                tell!("{:.0} %, about {left} left", share * 100.0);
            }
            None => {}
        }
    }

    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_one_that_the_bar_understands() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
