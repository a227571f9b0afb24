//! `polyrail host show`: shows this machine, by subject.

use std::process::ExitCode;
use std::time::Duration;

use polyrail_host::bindings::Bindings;
use polyrail_nic::Group;

use super::nic::Asked as OfNic;
use super::place::Where;
use super::subject::split_nic;
use super::topology::Part;
use super::words::{excess, given, refuse_others, refused};
use super::{bindings, irq, nic, profiles, topology};
use crate::fault::Fault;
use crate::values::{bindings as read_bindings, interface, profile_name, time};

#[derive(clap::Args)]
pub(super) struct ShowArgs {
    /// The subject; --help explains each.
    #[arg(value_enum, default_value_t = What::Topology)]
    what: What,

    /// Interfaces; for `bindings` those to send and those to receive, for `profiles` the name of one.
    ///
    /// `irq` shows all interfaces, or those that are named; `channels`, `rings`, `coalesce`, `rss` and `counters` show
    /// one. `bindings 'eth1:8-21;eth2:22-35' 'eth1:36'` shows these; without any, those of the settings.
    #[arg(value_name = "VALUE")]
    values: Vec<String>,

    /// The time to count interrupts; 0s shows the counts since boot [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = time)]
    interval: Option<Duration>,

    /// Also counters that are zero.
    #[arg(long)]
    all: bool,

    /// Do not ask NVIDIA's library NVML about the GPUs, which wakes those that sleep.
    #[arg(long)]
    no_nvml: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// CPUs, nodes, interfaces and GPUs, how far they are apart, and the rails that are taken here.
    Topology,
    /// Only the tree of nodes, buses and devices.
    Tree,
    /// Only the distances between GPUs and interfaces, and the best interface of each GPU.
    Matrix,
    /// A topology file for NCCL (NCCL_TOPO_FILE).
    NcclXml,
    /// The interrupts of each interface: their queue, the CPUs that they may go to and do go to, and how many come.
    Irq,
    /// The number of queues of an interface.
    Channels,
    /// The number of packets that each queue holds.
    Rings,
    /// The time that an interrupt waits for more packets.
    Coalesce,
    /// The spread of received packets over the queues.
    Rss,
    /// The counters of each queue, and those of the driver.
    Counters,
    /// Bindings by interface, with its node, its interrupts, and what is wrong; exit code 1 if there is an error.
    Bindings,
    /// The profiles for `tune`, or what one wants and why.
    Profiles,
}

/// The subject with its values.
pub(super) enum Asked {
    Topology(Part),
    Irq(Vec<String>),
    Nic(OfNic, String),
    Bindings(Option<[Bindings; 2]>),
    Profiles(Option<String>),
}

impl What {
    fn word(self) -> &'static str {
        match self {
            Self::Topology => "topology",
            Self::Tree => "tree",
            Self::Matrix => "matrix",
            Self::NcclXml => "nccl-xml",
            Self::Irq => "irq",
            Self::Channels => "channels",
            Self::Rings => "rings",
            Self::Coalesce => "coalesce",
            Self::Rss => "rss",
            Self::Counters => "counters",
            Self::Bindings => "bindings",
            Self::Profiles => "profiles",
        }
    }

    /// Options that this subject reads. Others are refused.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Topology => &["--json", "--no-nvml"],
            Self::Tree | Self::Matrix => &["--no-nvml"],
            Self::NcclXml | Self::Profiles => &[],
            Self::Irq => &["--json", "--interval"],
            Self::Counters => &["--json", "--all"],
            _ => &["--json"],
        }
    }
}

impl ShowArgs {
    /// Reads the subject with its values.
    ///
    /// # Errors
    /// A fault if a value is wrong, or if an option belongs to another subject.
    pub(super) fn asked(&self, as_json: bool) -> Result<Asked, Fault> {
        let given = given(&[
            ("--json", as_json),
            ("--interval", self.interval.is_some()),
            ("--all", self.all),
            ("--no-nvml", self.no_nvml),
        ]);
        refuse_others(self.what.word(), &given, self.what.options())?;
        let of_nic = |asked| {
            let (nic, rest) = split_nic(&self.values, "an interface")?;
            match rest {
                [] => Ok(Asked::Nic(asked, nic)),
                [value, ..] => {
                    let apply = format!("`polyrail host apply {}` sets values", self.what.word());
                    Err(excess(value, "one interface").with_help(apply))
                }
            }
        };
        match self.what {
            What::Topology => self.topology(Part::All),
            What::Tree => self.topology(Part::Tree),
            What::Matrix => self.topology(Part::Matrix),
            What::NcclXml => self.topology(Part::NcclXml),
            What::Irq => {
                let read =
                    |text: &String| interface(text).map_err(|refusal| refused(text, &refusal));
                Ok(Asked::Irq(self.values.iter().map(read).collect::<Result<_, _>>()?))
            }
            What::Channels => of_nic(OfNic::Settings(Group::Channels)),
            What::Rings => of_nic(OfNic::Settings(Group::Rings)),
            What::Coalesce => of_nic(OfNic::Settings(Group::Coalesce)),
            What::Rss => of_nic(OfNic::Rss),
            What::Counters => of_nic(OfNic::Counters(self.all)),
            What::Bindings => self.bindings(),
            What::Profiles => match &self.values[..] {
                [] => Ok(Asked::Profiles(None)),
                [name] => match profile_name(name) {
                    Ok(name) => Ok(Asked::Profiles(Some(name))),
                    Err(refusal) => Err(refused(name, &refusal)),
                },
                [_, value, ..] => Err(excess(value, "one profile")),
            },
        }
    }

    fn topology(&self, part: Part) -> Result<Asked, Fault> {
        match self.values.first() {
            None => Ok(Asked::Topology(part)),
            Some(value) => Err(excess(value, &format!("`{}` alone", self.what.word()))),
        }
    }

    /// Bindings of sending threads, then of receiving threads. Either may be left out.
    fn bindings(&self) -> Result<Asked, Fault> {
        let read = |text: &String| read_bindings(text).map_err(|refusal| refused(text, &refusal));
        match &self.values[..] {
            [] => Ok(Asked::Bindings(None)),
            [tx] => Ok(Asked::Bindings(Some([read(tx)?, Bindings::default()]))),
            [tx, rx] => Ok(Asked::Bindings(Some([read(tx)?, read(rx)?]))),
            [_, _, value, ..] => {
                Err(excess(value, "those of threads that send and of those that receive"))
            }
        }
    }
}

pub(super) fn run(args: &ShowArgs, place: &Where) -> Result<ExitCode, Fault> {
    match args.asked(place.json)? {
        Asked::Topology(part) => Ok(topology::show(part, args.no_nvml, place)?),
        Asked::Irq(nics) => {
            let interval = args.interval.unwrap_or(Duration::from_secs(1));
            Ok(irq::show(&nics, interval, place)?)
        }
        Asked::Nic(asked, name) => nic::show(&asked, &name, place),
        Asked::Bindings(given) => bindings::show(given.as_ref(), place),
        Asked::Profiles(name) => Ok(profiles::list(name.as_deref())?),
    }
}
