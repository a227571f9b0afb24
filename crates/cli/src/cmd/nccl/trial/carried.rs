//! Transfers as an engine has a plugin make them: between memory of GPUs, or where the host reassembles messages from
//! fragments.

use std::fmt::Display;
use std::thread::sleep;
use std::time::{Duration, Instant};

use polyrail_carrier::{Bytes, Holder, Lane, Piece};
use polyrail_gpu::cuda::Cuda;
use polyrail_gpu::{CopyPlace, DeviceMemory, Queue, Ticket};
use polyrail_nccl_abi::{RecvComm, SendComm};
use polyrail_sys::Memory;

use super::canary::{Failure, PAUSE, POISON};
use super::findings::Transfer;

/// Message sizes: a few bytes, odd ones, and the longest that comes in fragments.
const SIZES: [u64; 6] = [1, 13, 4096, 65_537, 1_048_577, 4_194_304];
/// Room after a message, which the plugin must leave alone.
const GUARD: u64 = 4096;

/// Memory for the plugin's transfers.
pub(super) enum Place {
    Host,
    /// Memory of a GPU, at both ends.
    Gpu(DeviceMemory, DeviceMemory),
}

impl Place {
    pub(super) fn on_gpu() -> Result<Self, String> {
        let told = |error: polyrail_gpu::GpuError| error.to_string();
        let device = Cuda::load().and_then(|cuda| cuda.device(0)).map_err(told)?;
        let memory = || device.allocate(most() + GUARD).map_err(told);
        let (from, to) = (memory()?, memory()?);
        Ok(Self::Gpu(from, to))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Host => "host, by an engine",
            Self::Gpu(..) => "CUDA, by an engine",
        }
    }

    /// Source and destination of messages.
    fn ends(&self) -> [Bytes; 2] {
        match self {
            Self::Host => {
                [(); 2].map(|()| Bytes::Host(Memory::from(vec![0; (most() + GUARD) as usize])))
            }
            Self::Gpu(from, to) => [from, to].map(|memory| Bytes::Cuda(memory.clone())),
        }
    }
}

fn most() -> u64 {
    SIZES.into_iter().max().unwrap_or_default()
}

/// Sends messages of all sizes over the connection, and compares what arrives and the bytes after it. Each size has
/// other content. Closes the connection.
pub(super) fn transfers(
    device: usize,
    (sender, receiver): (SendComm, RecvComm),
    place: &Place,
    longest: usize,
    timeout: Duration,
    mut tell: impl FnMut(Transfer),
) -> Result<(), Failure> {
    let (out, into, closing) = Lane::both(sender, receiver).map_err(Failure::Call)?;
    let [from, to] = place.ends();
    let holders = [Holder::unique(), Holder::unique()];
    let done = SIZES.into_iter().filter(|bytes| *bytes <= longest as u64).try_for_each(|bytes| {
        let content: Vec<u8> = (0..bytes).map(|at| (at * 31 + bytes) as u8).collect();
        write(&from, &content)?;
        write(&to, &vec![POISON; (bytes + GUARD) as usize])?;
        let begun = Instant::now();
        let post = |lane: &Lane, holder, bytes_of: &Bytes| {
            let piece = Piece { holder, bytes: bytes_of.clone(), offset: 0, len: bytes };
            lane.post([piece], None)
        };
        let tickets = [post(&into, holders[1], &to), post(&out, holders[0], &from)];
        wait([&out, &into], &tickets, timeout, bytes)?;
        let seconds = begun.elapsed().as_secs_f64();
        compare(device, &read(&to, bytes + GUARD)?, &content)?;
        let memory = place.name().to_owned();
        tell(Transfer { device, memory, bytes: bytes as usize, messages: 1, seconds });
        Ok(())
    });
    for (lane, holder) in [&out, &into].into_iter().zip(holders) {
        lane.forget(holder);
        lane.close();
    }
    let until = Instant::now() + timeout;
    while ![&out, &into].iter().all(|lane| lane.is_closed()) {
        if Instant::now() > until {
            return Err(Failure::Call(format!("a connection was not closed in {timeout:?}")));
        }
        sleep(PAUSE);
    }
    // Join our own thread, which would be reported as one that the plugin has left.
    drop((out, into));
    let _ = closing.join();
    done
}

fn wait(
    lanes: [&Lane; 2],
    tickets: &[Ticket; 2],
    timeout: Duration,
    bytes: u64,
) -> Result<(), Failure> {
    let until = Instant::now() + timeout;
    let is_open = |ticket: &Ticket| !matches!(ticket.is_done(), Ok(true));
    while tickets.iter().any(is_open) {
        for lane in lanes {
            lane.poll();
            if let Some(why) = lane.broken() {
                return Err(Failure::Call(format!("with a message of {bytes} bytes: {why}")));
            }
        }
        if Instant::now() > until {
            let text = format!("a message of {bytes} bytes did not come in {timeout:?}");
            return Err(Failure::Call(text));
        }
        // Poll again after a yield, as an engine's progress thread does.
        std::thread::yield_now();
    }
    Ok(())
}

fn compare(device: usize, got: &[u8], content: &[u8]) -> Result<(), Failure> {
    let (message, behind) = got.split_at(content.len());
    let what = if message != content {
        let at = message.iter().zip(content).take_while(|(got, sent)| got == sent).count();
        format!("byte {at} of a message of {} bytes is wrong", content.len())
    } else if let Some(at) = behind.iter().position(|byte| *byte != POISON) {
        format!("byte {at} behind a message of {} bytes was written", content.len())
    } else {
        return Ok(());
    };
    Err(Failure::Data(format!("device {device}: {what}")))
}

fn failed(error: impl Display) -> Failure {
    Failure::Call(format!("memory of the trial: {error}"))
}

fn write(to: &Bytes, content: &[u8]) -> Result<(), Failure> {
    match to {
        Bytes::Host(memory) => memory.write_at(0, content).map_err(failed),
        Bytes::Cuda(memory) => {
            let pinned = memory.device().pinned(content.len() as u64).map_err(failed)?;
            pinned.write_at(0, content).map_err(failed)?;
            copy(memory, CopyPlace::Device(memory, 0), CopyPlace::Host(&pinned, 0), pinned.len())
        }
    }
}

fn read(from: &Bytes, bytes: u64) -> Result<Vec<u8>, Failure> {
    let mut content = vec![0; bytes as usize];
    match from {
        Bytes::Host(memory) => memory.read_at(0, &mut content).map_err(failed)?,
        Bytes::Cuda(memory) => {
            let pinned = memory.device().pinned(bytes).map_err(failed)?;
            copy(memory, CopyPlace::Host(&pinned, 0), CopyPlace::Device(memory, 0), bytes)?;
            pinned.read_at(0, &mut content).map_err(failed)?;
        }
    }
    Ok(content)
}

fn copy(
    of: &DeviceMemory,
    to: CopyPlace<'_>,
    from: CopyPlace<'_>,
    bytes: u64,
) -> Result<(), Failure> {
    let mut queue = Queue::new(of.device()).map_err(failed)?;
    queue.push(to, from, bytes).map_err(failed)?;
    let ticket = queue.begin().map_err(failed)?;
    match ticket.wait(Duration::from_secs(20)).map_err(failed)? {
        true => Ok(()),
        false => Err(failed("the GPU has not copied it in 20 s")),
    }
}
