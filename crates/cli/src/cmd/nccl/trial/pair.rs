//! Transfers as NCCL has a plugin make them, between host memory.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use polyrail_nccl_abi::{HostMemory, Part, RecvComm, Region, SendComm};

use super::canary::{Failure, PAUSE, POISON, ended};
use super::findings::Transfer;

/// Message sizes: nothing, odd ones, and more than a plugin sends in one piece.
pub(super) const SIZES: [usize; 8] = [0, 1, 13, 4096, 65_537, 524_288, 1_048_577, 4_194_304];
/// Room after a message, which the plugin must leave alone.
const GUARD: usize = 4096;

/// A connection with memory at both ends.
pub(super) struct Pair<'c> {
    sender: &'c mut SendComm,
    receiver: &'c mut RecvComm,
    from: Arc<HostMemory>,
    to: Arc<HostMemory>,
    out: Region,
    into: Region,
    timeout: Duration,
    seed: u64,
    /// Whether the device reports the lengths of received messages.
    pub(super) is_told: bool,
}

impl<'c> Pair<'c> {
    pub(super) fn new(
        sender: &'c mut SendComm,
        receiver: &'c mut RecvComm,
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let most = SIZES.into_iter().max().unwrap_or_default() + GUARD;
        let memory = || {
            let memory = HostMemory::new(most).map(Arc::new);
            memory.ok_or_else(|| Failure::Call(format!("there are no {most} bytes of memory")))
        };
        let (from, to) = (memory()?, memory()?);
        let out = sender.register(from.clone())?;
        let into = receiver.register(to.clone())?;
        Ok(Self { sender, receiver, from, to, out, into, timeout, seed: 1, is_told: true })
    }

    /// Sends this many messages of a size, and compares what arrives and the bytes after it.
    pub(super) fn transfer(
        &mut self,
        device: usize,
        bytes: usize,
        messages: usize,
    ) -> Result<Transfer, Failure> {
        let room = bytes + GUARD / 2;
        let stride = room + GUARD / 2;
        let expected: Vec<Vec<u8>> = (0..messages).map(|_| self.pattern(bytes)).collect();
        for (number, content) in expected.iter().enumerate() {
            self.from.write(number * stride, content);
            self.to.write(number * stride, &vec![POISON; room]);
        }
        let begun = Instant::now();
        self.exchange(bytes, room, stride, messages)?;
        let seconds = begun.elapsed().as_secs_f64();
        for (number, content) in expected.iter().enumerate() {
            let mut got = vec![0; room];
            self.to.read(number * stride, &mut got);
            let (message, behind) = got.split_at(bytes);
            let what = if message != content {
                let at = message.iter().zip(content).take_while(|(got, sent)| got == sent).count();
                format!("byte {at} of a message of {bytes} bytes is wrong")
            } else if behind != vec![POISON; behind.len()] {
                let at = behind.iter().take_while(|byte| **byte == POISON).count();
                format!("byte {at} behind a message of {bytes} bytes was written")
            } else {
                continue;
            };
            return Err(Failure::Data(format!("device {device}: {what}")));
        }
        Ok(Transfer { device, memory: "host".to_owned(), bytes, messages, seconds })
    }

    /// Posts all, receives first, and tests the oldest of each side, as NCCL does.
    fn exchange(
        &mut self,
        bytes: usize,
        room: usize,
        stride: usize,
        messages: usize,
    ) -> Result<(), Failure> {
        let until = Instant::now() + self.timeout;
        let (mut receives, mut sends) = (Vec::new(), Vec::new());
        let (mut received, mut sent) = (0, 0);
        while received < messages || sent < messages {
            let offset = receives.len() * stride;
            let part = Part { region: self.into, offset, bytes: room, tag: 0 };
            if receives.len() < messages
                && let Some(request) = self.receiver.irecv(&[part])?
            {
                receives.push(Some(request));
            }
            let part = Part { region: self.out, offset: sends.len() * stride, bytes, tag: 0 };
            if sends.len() < messages.min(receives.len())
                && let Some(request) = self.sender.isend(part)?
            {
                sends.push(request);
            }
            if let Some(request) = sends.get_mut(sent)
                && self.sender.test(request)?.is_some()
            {
                sent += 1;
            }
            if let Some(Some(request)) = receives.get_mut(received)
                && let Some(sizes) = self.receiver.test(request)?
            {
                self.is_told &= sizes.is_told();
                if sizes.is_told() && sizes.first() != bytes {
                    let got = sizes.first();
                    let text = format!("test tells {got} bytes for a message of {bytes}");
                    return Err(Failure::Data(text));
                }
                if let Some(request) = receives[received].take() {
                    self.receiver.consume(request)?;
                }
                received += 1;
            }
            if Instant::now() > until {
                let (what, count) = match (receives.len(), sends.len()) {
                    (posted, _) if posted < messages => ("irecv took no more than", posted),
                    (_, posted) if posted < messages => ("isend took no more than", posted),
                    _ if sent < messages => ("test finished no more sends than", sent),
                    _ => ("test finished no more receives than", received),
                };
                let of = format!("{messages} messages of {bytes} bytes");
                let text = format!("{what} {count} of {of} in {:?}", self.timeout);
                return Err(Failure::Call(text));
            }
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + self.timeout;
        let part = Part { region: self.into, offset: 0, bytes: 1, tag: 0 };
        let Some(mut request) = self.receiver.iflush(&[part])? else { return Ok(()) };
        while self.receiver.test(&mut request)?.is_none() {
            if Instant::now() > until {
                return Err(Failure::Call(format!("a flush did not end in {:?}", self.timeout)));
            }
            sleep(PAUSE);
        }
        Ok(())
    }

    pub(super) fn deregister(self) -> Result<(), Failure> {
        ended(self.sender.deregister(self.out))?;
        ended(self.receiver.deregister(self.into))
    }

    /// Returns other bytes each time, so that remains of an earlier message are noticed.
    fn pattern(&mut self, bytes: usize) -> Vec<u8> {
        self.seed += 1;
        let mut state = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = (0..bytes.div_ceil(8)).flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        let mut all: Vec<u8> = words.collect();
        all.truncate(bytes);
        all
    }
}
