//! Comparison of the device's clock with the host's and another device's.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::driver::FunctionHandle;
use super::{FIRST_STAMP, FLAG, LIMIT_NS, Meter, STAMPS_MAX, pointer, raw_ns};
use crate::error::GpuError;

/// The device's clock between two readings of the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bracket {
    /// `CLOCK_MONOTONIC_RAW` before the question, in ns.
    pub before_ns: i64,
    /// The device's clock, in ns.
    pub device_ns: i64,
    /// `CLOCK_MONOTONIC_RAW` after the answer, in ns.
    pub after_ns: i64,
}

/// Times of a flag that went to another device and came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// The sender's clock before it sent the flag, in ns.
    pub sent_ns: i64,
    /// The other's clock when the flag arrived there, in ns.
    pub seen_ns: i64,
    /// The sender's clock when the flag was back, in ns.
    pub came_ns: i64,
}

/// Steps of the clock among which the smallest is found.
const STEPS: u32 = 256;
/// Range of delays that spread the questions over a whole round trip.
const DITHER_NS: u64 = 2_000;
const DITHER_STEP_NS: u64 = 377;

impl Meter {
    /// Returns the smallest step of the device's clock, in ns.
    ///
    /// # Errors
    /// If the clock stands still, or the driver refuses a call.
    pub fn tick_ns(&mut self) -> Result<u64, GpuError> {
        let (mut at, mut steps) = (self.page_at(FIRST_STAMP)?, STEPS);
        self.slot(0).store(0, Ordering::Release);
        let device = self.device.clone();
        let _current = device.current()?;
        let mut parameters = [pointer(&mut at), pointer(&mut steps)];
        // SAFETY: the parameters are the kernel's, the place is in the page, and the call waits.
        unsafe { self.launch(self.code.tick, 1, 1, &mut parameters)? };
        self.drain()?;
        match self.slot(0).load(Ordering::Acquire) {
            0 => Err(device.unsupported("telling the time, its clock stands still,")),
            tick_ns => Ok(tick_ns),
        }
    }

    /// Compares the device's clock with the host's `count` times, at steps of the clock if `at_edge`. A kernel that is
    /// already running answers each question within some microseconds.
    ///
    /// # Errors
    /// If there are more than [`STAMPS_MAX`] questions, the device does not answer, or the driver
    /// refuses a call.
    pub fn brackets(&mut self, count: u32, at_edge: bool) -> Result<Vec<Bracket>, GpuError> {
        if count as usize > STAMPS_MAX {
            return Err(self.device.unsupported("so many questions at once"));
        }
        self.zero_page();
        let (mut asked, mut answers) = (self.page_at(0)?, self.page_at(FIRST_STAMP)?);
        let (mut count, mut edge, mut limit) = (count, u32::from(at_edge), LIMIT_NS / 4);
        let device = self.device.clone();
        let _current = device.current()?;
        let mut parameters = [
            pointer(&mut asked),
            pointer(&mut answers),
            pointer(&mut count),
            pointer(&mut edge),
            pointer(&mut limit),
        ];
        // SAFETY: the parameters are the kernel's, all places are in the page, and the call waits.
        unsafe { self.launch(self.code.answer, 1, 1, &mut parameters)? };
        let found = self.ask(count);
        // Ends the wait of a kernel that is still waiting for questions.
        self.word().store(u32::MAX, Ordering::Release);
        let ended = self.drain();
        self.zero_page();
        ended?;
        found.ok_or_else(|| self.device.unsupported("telling the time, it does not answer,"))
    }

    /// Sends a flag to another device and back, this many times. The devices have to reach each other, see
    /// [`crate::Device::reaches`].
    ///
    /// # Errors
    /// If there are more than half of [`STAMPS_MAX`] turns, a flag did not come back, or the driver
    /// refuses a call.
    pub fn ping_pong(&mut self, other: &mut Self, count: u32) -> Result<Vec<RoundTrip>, GpuError> {
        if count as usize * 2 > STAMPS_MAX {
            return Err(self.device.unsupported("so many turns at once"));
        }
        for meter in [&mut *self, &mut *other] {
            meter.zero_page();
            let flag = meter.scratch_at(FLAG)?;
            let _current = meter.device.current()?;
            // SAFETY: the flag is in the scratch memory, and the call waits.
            unsafe { meter.device.driver().set(flag, 0, 8, meter.stream)? };
            meter.drain()?;
        }
        let flags = [self.scratch_at(FLAG)?, other.scratch_at(FLAG)?];
        // The answering side first: it is ready when the first flag comes.
        let pong = other.begin_flags(other.code.pong, flags[0], flags[1], count);
        let ping = match pong {
            Ok(()) => self.begin_flags(self.code.ping, flags[1], flags[0], count),
            Err(_) => Ok(()),
        };
        let ended = [self.drain_here(), other.drain_here()];
        pong.and(ping)?;
        for one in ended {
            one?;
        }
        let trips: Vec<RoundTrip> = (0..count as usize)
            .map(|turn| RoundTrip {
                sent_ns: self.stamp(2 * turn),
                seen_ns: other.stamp(turn),
                came_ns: self.stamp(2 * turn + 1),
            })
            .collect();
        self.opened = 0;
        other.opened = 0;
        if trips.iter().any(|trip| trip.came_ns == 0 || trip.seen_ns == 0) {
            return Err(self.device.unsupported("sending a flag to its peer and back"));
        }
        Ok(trips)
    }

    /// Asks the device `count` times; `None` if an answer does not come.
    fn ask(&self, count: u32) -> Option<Vec<Bracket>> {
        const PATIENCE: Duration = Duration::from_millis(250);
        let mut found = Vec::with_capacity(count as usize);
        let start = Instant::now();
        for turn in 1..=count {
            let slot = self.slot(turn as usize - 1);
            // The kernel looks for the question once per round trip over the bus. If asked at once after each answer,
            // all questions would just miss a look; so each waits a little longer.
            let delay = Duration::from_nanos(u64::from(turn) * DITHER_STEP_NS % DITHER_NS);
            let asked = Instant::now();
            while asked.elapsed() < delay {
                std::hint::spin_loop();
            }
            let before_ns = raw_ns();
            self.word().store(turn, Ordering::Release);
            loop {
                let device_ns = slot.load(Ordering::Acquire) as i64;
                if device_ns != 0 {
                    found.push(Bracket { before_ns, device_ns, after_ns: raw_ns() });
                    break;
                }
                if start.elapsed() > PATIENCE {
                    return None;
                }
                std::hint::spin_loop();
            }
        }
        Some(found)
    }

    fn begin_flags(
        &self,
        code: FunctionHandle,
        far: u64,
        near: u64,
        count: u32,
    ) -> Result<(), GpuError> {
        let (mut far, mut near, mut log) = (far, near, self.page_at(FIRST_STAMP)?);
        let (mut count, mut limit) = (count, LIMIT_NS / 4);
        let _current = self.device.current()?;
        let mut parameters = [
            pointer(&mut far),
            pointer(&mut near),
            pointer(&mut log),
            pointer(&mut count),
            pointer(&mut limit),
        ];
        // SAFETY: the parameters are the kernel's, all places are valid on the device, and the caller
        // waits before it returns.
        unsafe { self.launch(code, 1, 1, &mut parameters) }
    }
}
