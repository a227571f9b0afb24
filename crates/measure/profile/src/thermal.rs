//! Reports of devices during the measurement: `temperatures.csv`.

use crate::error::ProfileError;
use crate::sample::stamp;
use crate::table::{Cells, Line, ReadRow, Row};

/// One reading of one device. Values that the device does not report are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Temperature {
    /// Time of the reading, on the reference clock, in ns.
    pub at_ns: i64,
    pub rank: u32,
    /// Temperature of the chip, in °C.
    pub temperature_c: Option<f64>,
    /// Temperature of the memory, in °C.
    pub memory_temperature_c: Option<f64>,
    /// Power in W; the device chooses the averaging.
    pub power_w: Option<f64>,
    /// Clock of the processors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory, in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// NVML's reasons for a lower clock, as a bit mask.
    pub clock_reasons: Option<u64>,
}

impl Temperature {
    /// Reasons that invalidate a measurement: hardware slowdown, thermal slowdown by software or hardware, power cap
    /// and power brake.
    pub const THROTTLE_REASONS: u64 = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;

    /// Whether the device was throttled.
    pub fn is_throttled(&self) -> bool {
        self.clock_reasons.is_some_and(|reasons| reasons & Self::THROTTLE_REASONS != 0)
    }
}

impl Row for Temperature {
    const COLUMNS: &'static [&'static str] = &[
        "at_ns",
        "rank",
        "temperature_c",
        "memory_temperature_c",
        "power_w",
        "sm_clock_mhz",
        "memory_clock_mhz",
        "clock_reasons",
    ];

    fn write(&self, line: &mut Line) {
        line.cell(self.at_ns);
        line.cell(self.rank);
        line.optional(self.temperature_c);
        line.optional(self.memory_temperature_c);
        line.optional(self.power_w);
        line.optional(self.sm_clock_mhz);
        line.optional(self.memory_clock_mhz);
        line.optional(self.clock_reasons.map(|reasons| format!("0x{reasons:x}")));
    }
}

impl ReadRow for Temperature {
    fn read(cells: &Cells<'_>) -> Result<Self, ProfileError> {
        let celsius = |column| cells.optional(column, |cells| cells.number(column, -100.0..=200.0));
        let mhz = |column| cells.optional(column, |cells| cells.whole(column, 0..=100_000));
        let reasons = |cells: &Cells<'_>| {
            let digits = cells.text(7).strip_prefix("0x");
            digits
                .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                .ok_or_else(|| cells.fault(7, "0x and hexadecimal digits"))
        };
        Ok(Self {
            at_ns: stamp(cells, 0)?,
            rank: cells.whole(1, 0..=u32::MAX)?,
            temperature_c: celsius(2)?,
            memory_temperature_c: celsius(3)?,
            power_w: cells.optional(4, |cells| cells.number(4, 0.0..=1e5))?,
            sm_clock_mhz: mhz(5)?,
            memory_clock_mhz: mhz(6)?,
            clock_reasons: cells.optional(7, reasons)?,
        })
    }
}
