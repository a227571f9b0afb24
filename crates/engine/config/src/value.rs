//! A setting's value independent of its type, as rows and JSON need it.

use std::fmt;

use serde::{Serialize, Serializer};

/// A value of any setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A count, a size in bytes or a time in the unit of the setting.
    Number(u64),
    /// On or off.
    Flag(bool),
    /// A name, a list or a path.
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// Serializes numbers as JSON numbers.
impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

/// A type that a setting can have.
pub(crate) trait Field: Sized {
    /// Type of a default written in the table.
    type Const;

    fn new(default: Self::Const) -> Self;
    fn value(&self) -> Value;
    /// Returns `None` for a value of another type or out of this type's range.
    fn from_value(value: Value) -> Option<Self>;
}

macro_rules! number_fields {
    ($($ty:ty),+) => {$(
        impl Field for $ty {
            type Const = Self;

            fn new(default: Self) -> Self {
                default
            }

            fn value(&self) -> Value {
                Value::Number(u64::from(*self))
            }

            fn from_value(value: Value) -> Option<Self> {
                match value {
                    Value::Number(number) => number.try_into().ok(),
                    _ => None,
                }
            }
        }
    )+};
}

number_fields!(u32, u64);

impl Field for bool {
    type Const = Self;

    fn new(default: Self) -> Self {
        default
    }

    fn value(&self) -> Value {
        Value::Flag(*self)
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }
}

impl Field for String {
    type Const = &'static str;

    fn new(default: &'static str) -> Self {
        default.to_owned()
    }

    fn value(&self) -> Value {
        Value::Text(self.clone())
    }

    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}
