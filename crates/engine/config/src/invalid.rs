//! Why a text is no value of a setting.

/// Why a text is no value: a phrase that follows the value, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Invalid {
    /// What is wrong.
    pub reason: String,
    /// How to write it, where that is known.
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
