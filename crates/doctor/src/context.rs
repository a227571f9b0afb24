//! The host as the checks see it.

use std::time::Duration;

use polyrail_host::{CpuSet, Distance, Nic, Sysroot, Topology};
use polyrail_tune::Reach;

use crate::check::Unknown;
use crate::error::DoctorError;
use crate::probes::{NicProbe, Probes};

/// What the checks assume, where the host can't tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The interfaces that are meant to be rails; a bond stands for the cards below it. Empty: all
    /// interfaces that belong to a device, except representors and those above another card.
    pub interfaces: Vec<String>,
    /// The round-trip time between hosts.
    pub rtt: Duration,
    /// CPUs that are kept for the threads of the engine.
    pub workers: Option<CpuSet>,
    /// Whether to check what receiving into device memory needs.
    pub devmem: bool,
}

/// A host to be examined, with everything that checks share.
#[derive(Debug)]
pub struct Context {
    root: Sysroot,
    topology: Topology,
    probes: Probes,
    options: Options,
    notes: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            // Between racks of one datacentre, under load.
            rtt: Duration::from_micros(200),
            workers: None,
            devmem: false,
        }
    }
}

impl Context {
    /// Reads the machine and asks its kernel, if it is the running one.
    ///
    /// # Errors
    /// [`DoctorError`] if the machine can't be read at all, or an interface in the options is not
    /// there.
    pub fn read(root: &Sysroot, mut options: Options) -> Result<Self, DoctorError> {
        let topology = Topology::read(root)?;
        let followed = topology.follow(&options.interfaces).map_err(|name| {
            let known: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
            let known = match known.as_slice() {
                [] => "none, as there is no card".to_owned(),
                known => known.join(", "),
            };
            DoctorError::NoInterface { name, known }
        })?;
        options.interfaces = followed.nics;
        let mut notes = followed.notes;
        notes.extend(topology.unread.clone());
        let all_cpus = topology.cpus.possible.union(&topology.cpus.online);
        let beyond = options.workers.as_ref().filter(|cpus| !cpus.is_subset(&all_cpus));
        if let Some(workers) = beyond {
            let (workers, known) = (workers.to_string(), all_cpus.to_string());
            return Err(DoctorError::NoCpu { workers, known });
        }
        let probes = Probes::take(root, &topology.nics)?;
        Ok(Self { root: root.clone(), topology, probes, options, notes })
    }

    /// Interfaces that stand for cards, and values that can't be read, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(crate) fn root(&self) -> &Sysroot {
        &self.root
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(crate) fn probes(&self) -> &Probes {
        &self.probes
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The interfaces that are meant to be rails.
    pub(crate) fn rails(&self) -> Vec<&Nic> {
        let wanted = &self.options.interfaces;
        let is_wanted = |nic: &&Nic| match wanted.is_empty() {
            // Azure's interface above its virtual function has that one's queues.
            true => self.topology.carriers(&nic.name).iter().all(|card| card.name == nic.name),
            false => wanted.contains(&nic.name),
        };
        self.topology.nics.iter().filter(is_wanted).collect()
    }

    /// The rails for data, and separately the interfaces that seem to serve the host itself, with
    /// the reason. Every interface that the user names is a rail.
    ///
    /// Among interfaces of one kind, one is not a rail if it alone differs from at least two
    /// others: it carries a default route and they do not, or it shares no PCI switch with a GPU
    /// and they do.
    pub(crate) fn data_rails(&self) -> (Vec<&Nic>, Vec<(&Nic, &'static str)>) {
        let rails = self.rails();
        if !self.options.interfaces.is_empty() {
            return (rails, Vec::new());
        }
        // Without routes, only the PCI switch can tell.
        let reach = Reach::read(&self.root, None).unwrap_or_default();
        let has_route = |nic: &Nic| reach.carries(&nic.name).is_some();
        let has_gpu = |nic: &Nic| {
            let distances = self.topology.gpus.iter().map(|gpu| self.topology.distance(gpu, nic));
            distances.flatten().any(|distance| distance <= Distance::Pxb)
        };
        let others = |nic: &Nic, is_rail: &dyn Fn(&Nic) -> bool| {
            rails.iter().filter(|other| kind(other) == kind(nic) && is_rail(other)).count()
        };
        let (mut data, mut aside) = (Vec::new(), Vec::new());
        for nic in &rails {
            if has_route(nic) && others(nic, &|other| !has_route(other)) >= 2 {
                aside.push((*nic, "it carries the default route"));
            } else if !has_gpu(nic) && others(nic, &has_gpu) >= 2 {
                aside.push((*nic, "it is behind no switch with a GPU, as its siblings are"));
            } else {
                data.push(*nic);
            }
        }
        (data, aside)
    }

    /// The answers of an interface's driver, and the answer to `question` in particular.
    pub(crate) fn probe<T>(
        &self,
        nic: &Nic,
        question: &str,
        answer: impl Fn(&NicProbe) -> Option<T>,
    ) -> Result<T, Unknown> {
        let name = &nic.name;
        let Some(probe) = self.probes.nics.get(name) else {
            return Err(Unknown(format!(
                "{name}: the copy of the machine has no answers of drivers"
            )));
        };
        answer(probe).ok_or_else(|| {
            let why = probe.errors.get(question).or_else(|| probe.errors.get("ethtool"));
            Unknown(match why {
                Some(why) => format!("{name}: {why}"),
                None => format!("{name}: its driver does not tell ({question})"),
            })
        })
    }

    /// The text of a file that every machine has.
    pub(crate) fn text(&self, path: &str) -> Result<String, Unknown> {
        Ok(self.root.read(path)?)
    }

    /// The text of a file that a machine may lack.
    pub(crate) fn optional(&self, path: &str) -> Result<Option<String>, Unknown> {
        Ok(self.root.read_optional(path)?)
    }

    /// The number in a file that every machine has.
    pub(crate) fn number(&self, path: &str) -> Result<u64, Unknown> {
        parse(path, &self.text(path)?)
    }

    /// The three numbers in a file, such as `tcp_rmem`.
    pub(crate) fn three(&self, path: &str) -> Result<[u64; 3], Unknown> {
        let text = self.text(path)?;
        let numbers: Vec<u64> =
            text.split_whitespace().map(|word| parse(path, word)).collect::<Result<_, _>>()?;
        numbers.try_into().map_err(|_| Unknown(format!("{path} has `{text}`, not three numbers")))
    }

    /// The kernel's release as major and minor number.
    pub(crate) fn kernel(&self) -> Result<(u32, u32), Unknown> {
        let text = self.text(OSRELEASE)?;
        let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
            _ => Err(Unknown(format!("{OSRELEASE} has `{text}`, not a release"))),
        }
    }

    /// A row of `/proc/self/status`, or of another file of `name: value` rows.
    pub(crate) fn row(&self, path: &str, name: &str) -> Result<String, Unknown> {
        let text = self.text(path)?;
        let mut rows = text.lines().filter_map(|line| line.split_once(':'));
        let row = rows.find(|(key, _)| *key == name).map(|(_, value)| value.trim().to_owned());
        row.ok_or_else(|| Unknown(format!("{path} has no row {name}")))
    }

    /// A counter of `/proc/net/snmp` or `/proc/net/netstat`, where a line of names comes before each
    /// line of values.
    pub(crate) fn protocol(&self, path: &str, group: &str, name: &str) -> Result<u64, Unknown> {
        let text = self.text(path)?;
        let mut rows = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
        let (names, values) = (rows.next().unwrap_or(""), rows.next().unwrap_or(""));
        let at = names.split_whitespace().position(|word| word == name);
        let value = at.and_then(|at| values.split_whitespace().nth(at));
        let value = value.ok_or_else(|| Unknown(format!("{path} has no {group} {name}")))?;
        parse(path, value)
    }
}

/// Interfaces with the same key are of one kind: driver, vendor and device number.
pub(crate) fn kind(nic: &Nic) -> (Option<&str>, Option<u16>, Option<u16>) {
    let pci = nic.pci.as_ref();
    let (vendor, device) = (pci.and_then(|pci| pci.vendor), pci.and_then(|pci| pci.device));
    (nic.driver.as_deref(), vendor, device)
}

pub(crate) const OSRELEASE: &str = "/proc/sys/kernel/osrelease";

fn parse(path: &str, text: &str) -> Result<u64, Unknown> {
    text.trim().parse().map_err(|_| Unknown(format!("{path} has `{}`, not a number", text.trim())))
}

#[cfg(test)]
mod tests {
    use polyrail_host::fixtures;

    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_refused_with_those_that_are() {
        let host = fixtures::a3_high();
        let options = Options { interfaces: vec!["eth9".into()], ..Options::default() };
        let message = Context::read(&host.root(), options).unwrap_err().to_string();
        assert!(
            message.contains("`eth9`: is no network card of this machine")
                && message.contains("; allowed: eth0, eth1"),
            "{message}"
        );
    }

    #[test]
    fn the_interface_of_the_host_itself_is_no_rail_unless_it_is_named() {
        let host = fixtures::a3_high();
        let names = |interfaces: &[&str]| {
            let interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
            let options = Options { interfaces, ..Options::default() };
            let cx = Context::read(&host.root(), options).unwrap();
            let (data, aside) = cx.data_rails();
            let data: Vec<String> = data.iter().map(|nic| nic.name.clone()).collect();
            (data.join(","), aside.iter().map(|(_, why)| *why).collect::<Vec<_>>().join(","))
        };
        let rails = || "eth1,eth2,eth3,eth4".to_owned();
        assert_eq!(
            names(&[]),
            (rails(), "it is behind no switch with a GPU, as its siblings are".to_owned())
        );
        let route = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                     eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n";
        host.write("/proc/net/route", route);
        assert_eq!(names(&[]), (rails(), "it carries the default route".to_owned()));
        assert_eq!(names(&["eth0", "eth1"]), ("eth0,eth1".to_owned(), String::new()));
        // Where every interface has a default route, none serves the host alone.
        let all: String = (0..5)
            .map(|nic| format!("eth{nic} 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n"))
            .collect();
        host.write("/proc/net/route", &format!("Iface\n{all}"));
        assert_eq!(names(&[]).0, rails(), "the GPUs still tell");
        // Two interfaces of one kind are both rails, even if one of them carries the default route.
        let host = fixtures::cpu_holes();
        host.write("/proc/net/route", route);
        let cx = Context::read(&host.root(), Options::default()).unwrap();
        assert_eq!(cx.data_rails().0.len(), 2);
    }

    #[test]
    fn a_release_is_read_with_whatever_follows_it() {
        let host = fixtures::no_nics();
        let root = host.root();
        let release = |text: &str| {
            std::fs::create_dir_all(root.path("/proc/sys/kernel")).unwrap();
            std::fs::write(root.path(OSRELEASE), text).unwrap();
            Context::read(&root, Options::default()).unwrap().kernel()
        };
        assert_eq!(release("6.18.44-fc-v657\n"), Ok((6, 18)));
        assert_eq!(release("6.1-rc3\n"), Ok((6, 1)));
        assert!(release("six\n").is_err());
    }
}
