//! Two processes: one uses memory of the other. Also the state that remains when one dies or loses its device.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Instant;

use polyrail_gpu::cuda::{Cuda, Method};
use polyrail_gpu::{CopyPlace, Device, DeviceMemory, Export, GpuError};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::ground::{
    Ground, LIMIT, Outcome, download, finish, pattern, queue, same, timed, upload,
};
use super::raw::Raw;
use super::scatter::{PIECE, PIECES, STRIDE};

/// Command: verify exported memory and write to it.
const VERIFY: u64 = 1;
/// Command: measure copies to exported memory.
const MEASURE: u64 = 2;
/// Command: open exported memory and keep it.
const KEEP: u64 = 3;
/// Command: lose the device in the middle of copies.
const LOSE: u64 = 4;

const SIZES: [(u64, usize); 4] = [(8, 2000), (16 << 20, 200), (256 << 20, 30), (1 << 30, 15)];

/// The second process, and this process's end of the socket to it.
struct Second {
    child: Child,
    socket: UnixStream,
}

pub(crate) fn all(ground: &mut Ground) -> Outcome<()> {
    let memory = ground.device.allocate(5 << 20)?;
    let small = ground.device.allocate(777)?;
    let mapped = ground.device.allocate_mapped(&[2 << 20, 4 << 20, 2 << 20])?;
    let index = ground.peer.identity().index;
    let mut second = Second::start(index, None)?;
    let named = [
        ("a whole allocation", memory.clone()),
        ("the same again", memory.clone()),
        ("a part with odd ends", memory.part(12_345, 1_000_001)?),
        ("an allocation of 777 bytes", small),
        ("three mappings", mapped.clone()),
        ("a part that spans two mappings", mapped.part((2 << 20) - 77, 100_000)?),
    ];
    for (name, memory) in &named {
        let result = verify(ground, &mut second, memory);
        ground.check(&format!("in another process: {name}"), result);
    }
    let result = match ground.device.clone().import(&ground.device.export(&memory)?) {
        Err(GpuError::OwnExport) => Ok(()),
        other => Err(format!("{other:?}").into()),
    };
    ground.check("importing our own export is refused", result);
    let own = || -> Outcome<()> {
        let bytes = pattern(9, mapped.len());
        upload(&ground.device, &mapped, &bytes)?;
        let again = ground.peer.clone().import(&ground.device.export(&mapped)?)?;
        same(&download(&ground.peer, &again)?, &bytes)
    };
    let result = own();
    ground.check("mappings are imported in the same process, too", result);
    measure(ground, &mut second)?;
    let result = second.ask(LOSE, 0, None).map(|error| println!("      {error}"));
    ground.check("a lost device is an error of every ticket, and no hang", result);
    drop(second);

    let result = killed(ground, index);
    ground.check("a peer that is killed with our memory open", result);
    let hidden = || -> Outcome<()> {
        let mut second = Second::start(0, Some(index))?;
        verify(ground, &mut second, &memory)?;
        verify(ground, &mut second, &mapped)
    };
    let result = hidden();
    ground.check("in a process that sees only its own device", result);
    Ok(())
}

/// Main loop of the second process, until the first one is gone.
pub(crate) fn be(cuda: &Arc<Cuda>, index: u32, socket: i32) -> Outcome<()> {
    // SAFETY: the first process left it open for us, under this number.
    let mut socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(socket) });
    let mut kept = Vec::new();
    while let Ok((what, seed, export)) = receive(&mut socket) {
        let answer = match (what, export) {
            (VERIFY, Some(export)) => be_verifying(cuda, index, &export, seed),
            (MEASURE, Some(export)) => be_measuring(cuda, index, &export),
            (KEEP, Some(export)) => {
                kept.push(cuda.device(index)?.import(&export)?);
                Ok("kept".into())
            }
            (LOSE, None) => be_losing(cuda, index),
            _ => Err("what?".into()),
        };
        let answer = answer.unwrap_or_else(|error| format!("error: {error}"));
        socket.write_all(&(answer.len() as u64).to_le_bytes())?;
        socket.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// Checks that the other process finds this one's pattern, and this one finds the bytes that the other writes.
fn verify(ground: &Ground, second: &mut Second, memory: &DeviceMemory) -> Outcome<()> {
    let seed = memory.len();
    upload(&ground.device, memory, &pattern(seed, memory.len()))?;
    let export = ground.device.export(memory)?;
    second.ask(VERIFY, seed, Some(export))?;
    same(&download(&ground.device, memory)?, &pattern(seed + 1, memory.len()))
}

fn be_verifying(cuda: &Arc<Cuda>, index: u32, export: &Export, seed: u64) -> Outcome<String> {
    let device = cuda.device(index)?;
    let first = device.clone().import(export)?;
    let memory = device.clone().import(export)?;
    drop(first);
    for other in (0..cuda.count()).filter(|other| *other != index) {
        if cuda.has_context(other)? {
            return Err(format!("importing made a context on device {other}").into());
        }
    }
    same(&download(&device, &memory)?, &pattern(seed, memory.len()))?;
    // Through this process's own memory, so that both kinds of copy are used, in pieces and in one.
    let own = device.allocate(memory.len())?;
    upload(&device, &own, &pattern(seed + 1, memory.len()))?;
    let mut queue = queue(&device, Method::Auto)?;
    let half = memory.len() / 2;
    for (start, end) in [(0, 1), (1, 5), (5, half), (half, half + 1), (half + 1, memory.len())] {
        queue.push(
            CopyPlace::Device(&memory, start),
            CopyPlace::Device(&own, start),
            end - start,
        )?;
    }
    finish(&mut queue)?;
    Ok("verified".into())
}

/// Measures copies of the second process from its memory to this one's.
fn measure(ground: &mut Ground, second: &mut Second) -> Outcome<()> {
    let memories = [
        ("allocated", ground.device.allocate(1 << 30)?),
        ("mapped", ground.device.allocate_mapped(&[512 << 20, 512 << 20])?),
    ];
    for (kind, memory) in memories {
        let export = ground.device.export(&memory)?;
        let answer = match second.ask(MEASURE, 0, Some(export)) {
            Ok(answer) => answer,
            Err(error) => {
                ground.check("measuring between processes", Err(error));
                continue;
            }
        };
        let sizes = SIZES.iter().map(|(bytes, _)| (format!("{bytes} B"), *bytes));
        let sizes = sizes.chain([("16,384 × 16 KiB".to_owned(), PIECES * PIECE)]);
        for ((name, bytes), seconds) in sizes.zip(answer.split(' ')) {
            let seconds: f64 = seconds.parse()?;
            let what = format!("to another process's memory, {name}");
            match bytes {
                8 => ground.figure(&what, kind, seconds * 1e6, "µs"),
                _ => ground.figure(&what, kind, bytes as f64 / seconds / 1e9, "GB/s"),
            }
        }
    }
    Ok(())
}

fn be_measuring(cuda: &Arc<Cuda>, index: u32, export: &Export) -> Outcome<String> {
    let device = cuda.device(index)?;
    let memory = device.clone().import(export)?;
    let own = device.allocate(memory.len())?;
    let mut queue = queue(&device, Method::Auto)?;
    let mut answers = Vec::new();
    for (bytes, times) in SIZES {
        let seconds = timed(times, || {
            queue.push(CopyPlace::Device(&memory, 0), CopyPlace::Device(&own, 0), bytes)?;
            finish(&mut queue)
        })?;
        answers.push(seconds.to_string());
    }
    let seconds = timed(10, || {
        for piece in 0..PIECES {
            let (to, from) = (piece * STRIDE % PIECES * PIECE, piece * PIECE);
            queue.push(CopyPlace::Device(&memory, to), CopyPlace::Device(&own, from), PIECE)?;
        }
        finish(&mut queue)
    })?;
    answers.push(seconds.to_string());
    Ok(answers.join(" "))
}

/// Makes a kernel fail while copies are under way on queues of the same device.
fn be_losing(cuda: &Arc<Cuda>, index: u32) -> Outcome<String> {
    let device = cuda.device(index)?;
    let memory = device.allocate(1 << 30)?;
    let host = device.pinned(1 << 28)?;
    let mut queues = [queue(&device, Method::Engines)?, queue(&device, Method::Auto)?];
    let raw = Raw::new(&device, &device)?;
    let mut tickets = Vec::new();
    for round in 0..40 {
        for queue in &mut queues {
            queue.push(CopyPlace::Host(&host, 0), CopyPlace::Device(&memory, 0), 1 << 28)?;
            tickets.push(queue.begin()?);
        }
        if round == 2 {
            raw.trap()?;
        }
    }
    let begin = Instant::now();
    let last = tickets.iter().map(|ticket| ticket.wait(LIMIT));
    let failed = last.filter(Result::is_err).count();
    if failed < 2 || begin.elapsed() > LIMIT {
        return Err(format!("{failed} tickets failed in {:?}", begin.elapsed()).into());
    }
    let error = match queues[0].begin() {
        Err(error) => error.to_string(),
        Ok(_) => return Err("a queue of a lost device begins another batch".into()),
    };
    Ok(error)
}

/// Checks that a peer which is killed with this process's memory open leaves it usable and freeable.
fn killed(ground: &Ground, index: u32) -> Outcome<()> {
    let mut second = Second::start(index, None)?;
    let memory = ground.device.allocate(64 << 20)?;
    second.ask(KEEP, 0, Some(ground.device.export(&memory)?))?;
    second.child.kill()?;
    second.child.wait()?;
    let bytes = pattern(6, memory.len());
    upload(&ground.device, &memory, &bytes)?;
    same(&download(&ground.device, &memory)?, &bytes)
}

impl Second {
    /// Starts a process for a device, optionally with that device as the only visible one.
    fn start(index: u32, visible: Option<u32>) -> Outcome<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
        socket.set_read_timeout(Some(3 * LIMIT))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--second", &theirs.as_raw_fd().to_string(), "--device", &index.to_string()]);
        if let Some(visible) = visible {
            command.env("CUDA_VISIBLE_DEVICES", visible.to_string());
        }
        Ok(Self { child: command.spawn()?, socket })
    }

    fn ask(&mut self, what: u64, seed: u64, export: Option<Export>) -> Outcome<String> {
        let (bytes, descriptors) = export.map(Export::into_parts).unwrap_or_default();
        let mut head = Vec::new();
        for number in [what, seed, bytes.len() as u64] {
            head.extend(number.to_le_bytes());
        }
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
            return Err("too many descriptors for one message".into());
        }
        sendmsg(&self.socket, &[IoSlice::new(&head)], &mut control, SendFlags::empty())?;
        self.socket.write_all(&bytes)?;
        let mut len = [0; 8];
        self.socket.read_exact(&mut len)?;
        let mut answer = vec![0; u64::from_le_bytes(len) as usize];
        self.socket.read_exact(&mut answer)?;
        let answer = String::from_utf8(answer)?;
        if answer.starts_with("error") { Err(answer.into()) } else { Ok(answer) }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // The process ends when its socket closes; kill it in case it hangs.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn receive(socket: &mut UnixStream) -> Outcome<(u64, u64, Option<Export>)> {
    let mut head = [0; 24];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut head)];
    let received = recvmsg(&*socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes != 24 {
        return Err("the first process is gone".into());
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let number = |index: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&head[8 * index..][..8]);
        u64::from_le_bytes(bytes)
    };
    let mut bytes = vec![0; number(2) as usize];
    socket.read_exact(&mut bytes)?;
    let export = match bytes.is_empty() {
        true => None,
        false => Some(Export::from_parts(&bytes, descriptors)?),
    };
    Ok((number(0), number(1), export))
}
