//! One-way times between two devices, by the clocks of both: the source's clock when a gate opens,
//! and the sink's clock when everything has arrived.
//!
//! At the sink a kernel of one thread waits for a flag in its own memory. The source raises the flag behind the copy,
//! with the mechanism that made the copy: a copy engine's stream writes the word itself, with the driver's barrier
//! before it; behind a copy by a kernel a second kernel writes it, after a fence.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::driver::NOT_READY;
use super::{ARRIVAL, FIRST_STAMP, LIMIT_NS, Meter, Mover, pointer};
use crate::device::DeviceMemory;
use crate::error::GpuError;
use crate::raw_queue::RawCopy;

/// Times of a transfer as both ends saw it, each by its own clock in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneWay {
    /// Time at which the gate at the source was open.
    pub start_ns: i64,
    /// Time at which the source's stream reached a kernel behind copy and flag.
    pub end_ns: i64,
    /// Time at which the sink's kernel was running.
    pub sink_ready_ns: i64,
    /// Time at which the sink's kernel saw the flag.
    pub sink_seen_ns: i64,
}

/// Times of another library's work on the streams of two devices, each by its own clock in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// Time at which the gate at the source was open.
    pub start_ns: i64,
    /// Time at which the source's stream reached a kernel behind the work.
    pub end_ns: i64,
    /// Time at which the sink's stream reached a kernel before the work.
    pub sink_start_ns: i64,
    /// Time at which the sink's stream reached a kernel behind the work.
    pub sink_end_ns: i64,
}

/// A meter's stream, for libraries that put work into streams.
#[derive(Clone, Copy, Debug)]
pub struct RawStream<'m> {
    handle: *mut c_void,
    _meter: PhantomData<&'m Meter>,
}

impl RawStream<'_> {
    /// The driver's handle, valid as long as the meter is borrowed.
    pub fn as_ptr(self) -> *mut c_void {
        self.handle
    }
}

/// Time within which a kernel starts, or a stamp behind finished work appears.
const SOON: Duration = Duration::from_millis(500);

impl Meter {
    /// Copies `len` bytes from the start of memory to the start of another device's, whose meter is `sink`. The devices
    /// have to reach each other.
    ///
    /// # Errors
    /// If the memory is too small, a flag does not come, or the driver refuses a call.
    pub fn one_way(
        &mut self,
        sink: &mut Self,
        mover: Mover,
        (to, from): (&DeviceMemory, &DeviceMemory),
        len: u64,
    ) -> Result<OneWay, GpuError> {
        let outside = |_| self.device.unsupported("timing copies beyond their memory");
        let place = |memory: &DeviceMemory| memory.address(0, len).map_err(outside);
        let copy = RawCopy { to: place(to)?, from: place(from)?, len };
        let table = self.write_tables(mover, &[copy])?.first().copied();
        for place in 0..2 {
            self.slot(place).store(0, Ordering::Release);
        }
        let (flag, value) = sink.begin_await()?;
        let sent = self.send(mover, &copy, table, flag, value);
        let ended = sink.drain_here();
        let [start_ns, end_ns] = sent?;
        ended?;
        match sink.stamp(1) {
            0 => Err(sink.device.unsupported("seeing a flag behind a copy")),
            sink_seen_ns => {
                let sink_ready_ns = sink.stamp(0);
                Ok(OneWay { start_ns, end_ns, sink_ready_ns, sink_seen_ns })
            }
        }
    }

    /// Times the work that `queue` puts into the streams of this device and of `sink`, in this order: a gate holds this
    /// one's back meanwhile. If the work does not end within `patience`, or `queue` fails, `give_up` must make it end.
    ///
    /// # Errors
    /// If `queue` fails, the work does not end in time, the gate opened by itself because `queue`
    /// took too long, or the driver refuses a call.
    pub fn crossing<E: From<GpuError>>(
        &mut self,
        sink: &mut Self,
        patience: Duration,
        queue: impl FnOnce([RawStream<'_>; 2]) -> Result<(), E>,
        give_up: impl FnOnce(),
    ) -> Result<Crossing, E> {
        for meter in [&*self, &*sink] {
            (0..2).for_each(|place| meter.slot(place).store(0, Ordering::Release));
        }
        let gate = self.opened.wrapping_add(1);
        let begin = Instant::now();
        let held = self.here(|meter| meter.queue_gate(gate));
        let held = held.and_then(|()| sink.here(|meter| meter.queue_stamp(0)));
        let queued = held.map_err(E::from).and_then(|()| queue([self.stream(), sink.stream()]));
        let marked = self.here(|meter| meter.queue_stamp(1));
        let marked = marked.and_then(|()| sink.here(|meter| meter.queue_stamp(1)));
        let was_late = begin.elapsed() > Duration::from_nanos(LIMIT_NS / 2);
        self.word().store(gate, Ordering::Release);
        self.opened = gate;
        let is_idle = |meter: &Self| meter.is_idle_within(patience).unwrap_or(false);
        let is_over = queued.is_ok() && marked.is_ok() && is_idle(self) && is_idle(sink);
        if !is_over {
            give_up();
        }
        let ended = [self.drain_here(), sink.drain_here()];
        queued?;
        marked?;
        for one in ended {
            one?;
        }
        if !is_over || was_late {
            return Err(self.device.unsupported("work behind a gate that ends in time").into());
        }
        Ok(Crossing {
            start_ns: self.stamp(0),
            end_ns: self.stamp(1),
            sink_start_ns: sink.stamp(0),
            sink_end_ns: sink.stamp(1),
        })
    }

    /// Returns the stream, for work that ends before anything else uses this meter.
    pub fn stream(&self) -> RawStream<'_> {
        RawStream { handle: self.stream.0, _meter: PhantomData }
    }

    /// Whether all work in the stream is done, now or within this time. Polls without sleeping.
    ///
    /// # Errors
    /// An error of the device.
    pub fn is_idle_within(&self, patience: Duration) -> Result<bool, GpuError> {
        let begin = Instant::now();
        let _current = self.device.current()?;
        loop {
            // SAFETY: the stream is open as long as `self` lives.
            match unsafe { self.device.driver().stream_query(self.stream) } {
                Ok(()) => return Ok(true),
                Err(refused) if refused.code != NOT_READY => return Err(refused.into()),
                Err(_) if begin.elapsed() > patience => return Ok(false),
                Err(_) => std::hint::spin_loop(),
            }
        }
    }

    /// Runs the kernel that raises flags once, on this meter's own flag: the first run of a kernel may have to wait for
    /// all others.
    pub(super) fn raise_own(&mut self) -> Result<(), GpuError> {
        let flag = self.scratch_at(ARRIVAL)?;
        self.here(|meter| meter.queue_raise(flag, 0))?;
        self.drain_here()?;
        // The waiting kernel sees this flag at once.
        self.begin_await_of(0)?;
        self.drain_here()
    }

    /// Launches the kernel that waits for the next flag; returns the place of the flag and the value that it must have.
    fn begin_await(&mut self) -> Result<(u64, u32), GpuError> {
        self.arrivals = self.arrivals.wrapping_add(1).max(1);
        let value = self.arrivals;
        let flag = self.begin_await_of(value)?;
        let begin = Instant::now();
        while self.stamp(0) == 0 {
            if begin.elapsed() > SOON {
                self.drain_here()?;
                return Err(self.device.unsupported("starting a kernel that waits"));
            }
            std::hint::spin_loop();
        }
        Ok((flag, value))
    }

    fn begin_await_of(&self, value: u32) -> Result<u64, GpuError> {
        (0..2).for_each(|place| self.slot(place).store(0, Ordering::Release));
        let flag = self.scratch_at(ARRIVAL)?;
        let (mut at, mut log) = (flag, self.page_at(FIRST_STAMP)?);
        let (mut value, mut limit) = (value, LIMIT_NS);
        let mut parameters =
            [pointer(&mut at), pointer(&mut value), pointer(&mut log), pointer(&mut limit)];
        let _current = self.device.current()?;
        // SAFETY: the parameters are the kernel's; flag and log are this meter's own, and the caller waits for it.
        unsafe { self.launch(self.code.wait, 1, 1, &mut parameters)? };
        Ok(flag)
    }

    /// Copies behind a gate, raises the flag of the other device, and waits. Returns the stamps of the gate and behind
    /// everything.
    fn send(
        &mut self,
        mover: Mover,
        copy: &RawCopy,
        table: Option<(u64, u32)>,
        flag: u64,
        value: u32,
    ) -> Result<[i64; 2], GpuError> {
        let gate = self.opened.wrapping_add(1);
        let queued = self.here(|meter| {
            meter.queue_gate(gate)?;
            meter.queue_copy(mover, copy, table)?;
            match mover {
                // SAFETY: the flag is in memory that the sink's meter keeps, whose owner this device reaches; the
                // caller waits. Without flags the driver puts a barrier before the write.
                Mover::Engine => unsafe {
                    meter.device.driver().stream_write(meter.stream, flag, value, 0)?;
                },
                Mover::Kernel => meter.queue_raise(flag, value)?,
            }
            meter.queue_stamp(1)
        });
        self.word().store(gate, Ordering::Release);
        self.opened = gate;
        let ended = self.drain_here();
        queued?;
        ended?;
        Ok([self.stamp(0), self.stamp(1)])
    }

    fn queue_raise(&self, flag: u64, value: u32) -> Result<(), GpuError> {
        let (mut far, mut value) = (flag, value);
        let mut parameters = [pointer(&mut far), pointer(&mut value)];
        // SAFETY: the parameters are the kernel's; the flag is in memory that a meter keeps until
        // the caller has waited.
        unsafe { self.launch(self.code.raise, 1, 1, &mut parameters) }
    }

    /// Runs a closure with the device's context current.
    fn here<T>(&self, what: impl FnOnce(&Self) -> Result<T, GpuError>) -> Result<T, GpuError> {
        let _current = self.device.current()?;
        what(self)
    }
}
