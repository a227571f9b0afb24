//! Namespaces without root: an idle process keeps a user namespace and the network namespaces of a
//! lab alive. Other processes reach the namespaces through that process's entries in `/proc`.

use std::fs;
use std::io::ErrorKind::PermissionDenied;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, WaitOptions, getegid, geteuid, waitpid};
use serde::{Deserialize, Serialize};

use crate::error::{During, LabError};
use crate::namespaces::{self, Namespaces, OWN_NETWORK};
use crate::node::{Form, MAX_SEATS};
use crate::os;
use crate::privilege;
use crate::processes::{self, ProcessId};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HolderId {
    #[serde(flatten)]
    process: ProcessId,
    /// The holder's descriptors of the network namespaces: the nodes, and then the switch.
    net_fds: Vec<i32>,
}

/// A holder process that ends when this value is dropped, unless [`Holder::keep`] was called.
#[derive(Debug)]
pub(crate) struct Holder {
    id: HolderId,
    /// The holder ends when the other end of this closes.
    channel: Option<OwnedFd>,
}

/// Maximum time that an ending process may take to disappear.
const DYING_TIME: Duration = Duration::from_secs(1);
/// The name that `ps -o comm` shows.
const NAME: &std::ffi::CStr = c"polyrail-lab";

impl Holder {
    /// Starts a holder of a lab of this form. The holder keeps `record` open, so that it can be found even if the file
    /// is gone.
    pub(crate) fn spawn(record: BorrowedFd<'_>, form: Form) -> Result<Self, LabError> {
        let (ours, theirs) = namespaces::channel().during(|| "making a socket pair".into())?;
        let keep = [theirs.as_raw_fd(), record.as_raw_fd()];
        // SAFETY: `hold` makes bare system calls only, and closes only descriptors that it does not
        // use.
        let forked = unsafe { os::fork(|| hold(theirs.as_fd(), keep, form.seats())) };
        let pid = forked.during(|| "starting the process that holds the lab".into())?;
        drop(theirs);

        let process = ProcessId { pid: pid.as_raw_pid(), start_ticks: 0 };
        let id = HolderId { process, net_fds: Vec::new() };
        let mut holder = Self { id, channel: Some(ours) };
        let [step, errno, nets @ ..] =
            holder.receive().during(|| "waiting for the holder".into())?;
        if step != 0 {
            let errno = Errno::from_raw_os_error(errno);
            return Err(match step {
                STEP_USER => privilege::explain("making a user namespace", errno),
                STEP_SECOND => privilege::explain("making a second network namespace", errno),
                STEP_CLOSE => {
                    LabError::system("closing files in the process that holds the lab", errno)
                }
                _ => LabError::system("opening a network namespace to hold it", errno),
            });
        }
        holder.id.net_fds = nets[..form.seats()].to_vec();
        holder.id.process = ProcessId::of(pid)
            .ok_or(Errno::SRCH)
            .during(|| "reading when the holder started".into())?;
        holder.map_user()?;
        Ok(holder)
    }

    pub(crate) fn id(&self) -> &HolderId {
        &self.id
    }

    /// Lets the holder outlive this value and this process.
    pub(crate) fn keep(mut self) -> Result<(), LabError> {
        let channel = self.channel.take();
        let sent = channel.map(|channel| rustix::net::send(channel, &[1], SendFlags::NOSIGNAL));
        sent.unwrap_or(Err(Errno::PIPE)).during(|| "telling the holder to stay".into())?;
        Ok(())
    }

    /// Maps this user to root inside the namespace, and no other user.
    fn map_user(&self) -> Result<(), LabError> {
        let write = |file: &str, text: String| {
            let path = PathBuf::from(format!("/proc/{}/{file}", self.id.pid()));
            fs::write(&path, text).during_path("writing", &path)
        };
        // The kernel accepts a group map from a user only once groups can't be dropped any more.
        write("setgroups", "deny".into())?;
        write("uid_map", format!("0 {} 1", geteuid().as_raw()))?;
        write("gid_map", format!("0 {} 1", getegid().as_raw()))
    }

    fn receive(&self) -> Result<Report, Errno> {
        let mut bytes = [0; 4 * REPORT_WORDS];
        let channel = self.channel.as_ref().ok_or(Errno::PIPE)?;
        let (_, length) = rustix::io::retry_on_intr(|| {
            rustix::net::recv(channel, &mut bytes[..], RecvFlags::empty())
        })?;
        if length != bytes.len() {
            return Err(Errno::PIPE);
        }
        let word = |at: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|byte| bytes[at * 4 + byte]));
        Ok(std::array::from_fn(word))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if self.channel.take().is_some()
            && let Some(pid) = Pid::from_raw(self.id.pid())
        {
            // The holder ends once its channel is closed; waiting for it removes it from the
            // process table.
            let _ = rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
        }
    }
}

impl HolderId {
    /// Returns the form of the lab, as far as the number of namespaces determines it.
    pub(crate) fn form(&self) -> Option<Form> {
        Form::of_seats(self.net_fds.len())
    }

    /// Whether the process runs and is the one that was started.
    pub(crate) fn is_alive(&self) -> bool {
        self.process.process().is_some()
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Returns the paths through which other processes open the network namespaces.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let path = |fd| PathBuf::from(format!("/proc/{}/fd/{fd}", self.pid()));
        self.net_fds.iter().map(path).collect()
    }

    /// Opens the namespaces; `None` when the holder has ended.
    pub(crate) fn open(&self) -> Result<Option<Namespaces>, LabError> {
        let deadline = Instant::now() + DYING_TIME;
        loop {
            match self.try_open() {
                // An ending process keeps its number for a moment, but its entries can no longer be read.
                Err(LabError::System { errno, .. })
                    if errno.kind() == PermissionDenied && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                result => return result,
            }
        }
    }

    fn try_open(&self) -> Result<Option<Namespaces>, LabError> {
        if !self.is_alive() {
            return Ok(None);
        }
        let user = namespaces::open(Path::new(&format!("/proc/{}/ns/user", self.pid())))?;
        let net = self.paths().into_iter().map(|path| namespaces::open(&path));
        let net = net.collect::<Result<Option<Vec<_>>, _>>()?;
        // Check again: if another process has taken over the id meanwhile, the opened files belong to that process.
        let (Some(user), Some(net), true) = (user, net, self.is_alive()) else {
            return Ok(None);
        };
        Ok(Some(Namespaces { user: Some(user), net }))
    }

    /// Ends the process and waits until it is gone.
    pub(crate) fn end(&self) -> Result<(), LabError> {
        let Some(pid) = self.process.process() else { return Ok(()) };
        processes::kill(pid).during(|| format!("ending the holder, process {}", self.pid()))?;
        // A child of this process stays in the process table until this process waits for it.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        Ok(())
    }
}

/// Lists the holders of this user, each with the path of the record that it keeps open, even if
/// that file is deleted.
pub(crate) fn running() -> Vec<(HolderId, PathBuf)> {
    let name = NAME.to_bytes();
    let own = |pid: &Pid| {
        let directory = PathBuf::from(format!("/proc/{}", pid.as_raw_pid()));
        let comm = fs::read(directory.join("comm"));
        comm.is_ok_and(|comm| comm.strip_suffix(b"\n") == Some(name))
            && fs::metadata(&directory).is_ok_and(|found| found.uid() == geteuid().as_raw())
    };
    processes::all().into_iter().filter(own).filter_map(inspect).collect()
}

/// The step that failed, as the holder reports it; 0 if none did.
const STEP_CLOSE: i32 = 1;
const STEP_USER: i32 = 2;
const STEP_SECOND: i32 = 3;
const STEP_OPEN: i32 = 4;

/// The step that failed, its errno, and the descriptors of the namespaces.
type Report = [i32; REPORT_WORDS];
const REPORT_WORDS: usize = 2 + MAX_SEATS;

/// Main function of a holder process. Bare system calls only. `seats` is at most [`MAX_SEATS`].
fn hold(channel: BorrowedFd<'_>, keep: [i32; 2], seats: usize) -> i32 {
    os::reset_signals();
    let open = || rustix::fs::open(OWN_NETWORK, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let set_up = || -> Result<Report, (i32, Errno)> {
        let mut report = [0; REPORT_WORDS];
        // SAFETY: this copy uses only the two descriptors that it keeps, and those that it opens later.
        unsafe { os::close_all_but(keep) }.map_err(|errno| (STEP_CLOSE, errno))?;
        os::unshare_user_and_network().map_err(|errno| (STEP_USER, errno))?;
        for seat in 0..seats {
            if seat > 0 {
                // Some systems let every user make a user namespace, but give no rights inside. A second network
                // namespace needs such a right, so this step finds out.
                os::unshare_network().map_err(|errno| (STEP_SECOND, errno))?;
            }
            // The descriptors stay open until this process ends.
            report[2 + seat] = open().map_err(|errno| (STEP_OPEN, errno))?.into_raw_fd();
        }
        Ok(report)
    };
    let report = set_up().unwrap_or_else(|(step, errno)| {
        let mut report = [0; REPORT_WORDS];
        (report[0], report[1]) = (step, errno.raw_os_error());
        report
    });
    let mut bytes = [0; 4 * REPORT_WORDS];
    for (slot, word) in bytes.chunks_exact_mut(4).zip(report) {
        slot.copy_from_slice(&word.to_ne_bytes());
    }
    // A new session detaches the holder from the terminal, so that Ctrl-C and a hang-up don't end
    // the lab.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(NAME);
    let mut go = [0];
    if rustix::net::send(channel, &bytes, SendFlags::NOSIGNAL).is_err()
        || rustix::net::recv(channel, &mut go[..], RecvFlags::empty()).map(|(_, n)| n) != Ok(1)
    {
        return 1;
    }
    loop {
        rustix::event::pause();
    }
}

/// Reads a holder's descriptors: its network namespaces and one record.
fn inspect(pid: Pid) -> Option<(HolderId, PathBuf)> {
    let process = ProcessId::of(pid)?;
    let (mut nets, mut record) = (Vec::new(), None);
    for entry in fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())).ok()? {
        let path = entry.ok()?.path();
        let target = fs::read_link(&path).ok()?;
        let text = target.to_string_lossy().into_owned();
        if text.starts_with("net:[") {
            nets.push(path.file_name()?.to_str()?.parse::<i32>().ok()?);
        } else if text.starts_with('/') {
            record = Some(PathBuf::from(text.trim_end_matches(" (deleted)")));
        }
    }
    // The descriptors were opened in this order, and the kernel always picks the lowest free
    // number.
    nets.sort_unstable();
    Form::of_seats(nets.len())?;
    Some((HolderId { process, net_fds: nets }, record?))
}
