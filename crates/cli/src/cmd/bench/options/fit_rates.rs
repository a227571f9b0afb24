//! NICs of `--fit`.

use polyrail_lab::Rate;

use crate::values::{Refusal, rates};

/// Rates of some NICs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FitRates {
    /// Text on the command line.
    pub(crate) text: String,
    bits_per_s: u64,
}

impl FitRates {
    /// Reads rates in the form of `--lab`. Each must have a number.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let each: Option<Vec<u64>> =
            rates(text)?.0.into_iter().map(Rate::bits_per_second).collect();
        let none = || Refusal::new("has no number", "rates such as 4x100gbit or 25gbit,100gbit");
        let bits_per_s = each.ok_or_else(none)?.iter().sum();
        Ok(Self { text: text.to_owned(), bits_per_s })
    }

    /// Returns the sum of the rates, in Gbit/s.
    pub(crate) fn gbit_per_s(&self) -> f64 {
        self.bits_per_s as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_of_all_nics_add_up_and_each_has_a_number() {
        let sum = |text| FitRates::parse(text).map(|rates| rates.gbit_per_s());
        assert_eq!(["4x100gbit", "25gbit,100gbit"].map(sum), [Ok(400.0), Ok(125.0)]);
        let told = sum("4x100gbit,unlimited").unwrap_err().to_string();
        assert_eq!(told, "has no number; allowed: rates such as 4x100gbit or 25gbit,100gbit");
        let told = sum("100").unwrap_err().to_string();
        assert!(told.contains("1mbit to 400gbit"), "{told}");
    }
}
