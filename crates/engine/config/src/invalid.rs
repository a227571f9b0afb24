//! Errors for texts that are not valid values of a setting.

/// Reason why a text is not a valid value: a phrase that follows the value, and a hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Invalid {
    /// Fault of the text.
    pub reason: String,
    /// Correct form, if it is known.
    pub help: Option<String>,
}

impl Invalid {
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), help: None }
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}
