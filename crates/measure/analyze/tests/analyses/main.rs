//! Analyses of profiles: what they find, what they write, and what becomes of damaged profiles.

mod broken;
mod browser;
mod common;
mod exports;
mod figures;
mod predictions;
