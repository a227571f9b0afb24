//! A bar, if standard error is a terminal.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// How far a run is. Each step is a round of one size.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(steps: u64) -> Self {
        if !io::stderr().is_terminal() {
            return Self { bar: None };
        }
        // The template is a constant that a test reads.
        let style =
            ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { bar: Some(ProgressBar::new(steps).with_style(style)) }
    }

    /// Says what is being done.
    pub(crate) fn say(&self, text: impl Into<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.into());
        }
    }

    pub(crate) fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Removes the bar from the terminal.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

const TEMPLATE: &str = "{bar:30} {pos}/{len}  {msg}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_one_that_the_bar_understands() {
        assert!(ProgressStyle::with_template(TEMPLATE).is_ok());
    }
}
