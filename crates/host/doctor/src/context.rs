//! The host that the checks examine.

use std::time::Duration;

use polyrail_host::bindings::Bindings;
use polyrail_host::{CpuSet, Distance, Nic, Sysroot, Topology};
use polyrail_tune::Reach;

use crate::check::{Answers, Unknown};
use crate::error::DoctorError;
use crate::probes::{NicProbe, Probes};

/// Assumptions of the checks about facts that the host can't give.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Interfaces to use as rails; a bond stands for the NICs below it. Empty: all interfaces that belong to a device,
    /// except representors and those above another NIC.
    pub interfaces: Vec<String>,
    /// Round-trip time between hosts.
    pub rtt: Duration,
    /// CPUs reserved for the threads of the engine.
    pub workers: Option<CpuSet>,
    /// Whether to check the requirements of receiving into device memory.
    pub devmem: bool,
    /// Bindings from the settings: for threads that send, then for threads that receive. An error holds the reason why
    /// the settings can't be used.
    pub bindings: Result<[Bindings; 2], String>,
}

/// A host to examine, with all data that checks share.
#[derive(Debug)]
pub struct Context {
    root: Sysroot,
    topology: Topology,
    probes: Probes,
    options: Options,
    answers: Answers,
    notes: Vec<String>,
    /// Interfaces that lead out of a network namespace without NICs, such as the `eth0` of a pod.
    ways_out: Vec<Nic>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            // Typical between racks of one datacentre, under load.
            rtt: Duration::from_micros(200),
            workers: None,
            devmem: false,
            bindings: Ok(Default::default()),
        }
    }
}

impl Context {
    /// Reads the machine. On the running machine, asks the kernel as well.
    ///
    /// # Errors
    /// [`DoctorError`] if the machine or its file of probes can't be read, or the options name an interface or a CPU
    /// that does not exist.
    pub fn read(root: &Sysroot, mut options: Options) -> Result<Self, DoctorError> {
        let topology = Topology::read(root)?;
        let mut ways_out = ways_out(root, &topology);
        let named = std::mem::take(&mut options.interfaces);
        let (virtual_ones, named): (Vec<String>, Vec<String>) =
            named.into_iter().partition(|name| ways_out.iter().any(|one| one.name == *name));
        if !virtual_ones.is_empty() {
            ways_out.retain(|one| virtual_ones.contains(&one.name));
        }
        let followed = topology.follow(&named).map_err(|name| {
            let known = topology.nics.iter().chain(&ways_out);
            let known: Vec<&str> = known.map(|nic| nic.name.as_str()).collect();
            let known = match known.as_slice() {
                [] => "none, as there is no card".to_owned(),
                known => known.join(", "),
            };
            DoctorError::NoInterface { name, known }
        })?;
        options.interfaces = followed.nics;
        let mut notes = followed.notes;
        notes.extend(topology.unread.clone());
        notes.extend(note_of_namespace(&ways_out));
        if root.is_live() {
            let names = polyrail_sys::interfaces::survey().unwrap_or_default();
            let names: Vec<&str> = names.iter().map(|one| one.name.as_str()).collect();
            notes.extend(note_of_sysfs(&topology, &names));
        }
        let all_cpus = topology.cpus.possible.union(&topology.cpus.online);
        let beyond = options.workers.as_ref().filter(|cpus| !cpus.is_subset(&all_cpus));
        if let Some(workers) = beyond {
            let (workers, known) = (workers.to_string(), all_cpus.to_string());
            return Err(DoctorError::NoCpu { workers, known });
        }
        let probes = Probes::take(root, &examined(root, &topology))?;
        let answers = Answers::default();
        Ok(Self { root: root.clone(), topology, probes, options, answers, notes, ways_out })
    }

    /// Adds results about plugins.
    #[must_use]
    pub fn with(mut self, answers: Answers) -> Self {
        self.answers = answers;
        self
    }

    /// Returns one sentence for each interface that stands for NICs and each value that can't be read.
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

    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the interfaces to use as rails.
    pub(crate) fn rails(&self) -> Vec<&Nic> {
        let wanted = &self.options.interfaces;
        let is_wanted = |nic: &&Nic| match wanted.is_empty() {
            // On Azure, the interface above a virtual function has the queues of that function.
            true => self.topology.carriers(&nic.name).iter().all(|card| card.name == nic.name),
            false => wanted.contains(&nic.name),
        };
        self.topology.nics.iter().filter(is_wanted).collect()
    }

    /// Returns the rails or, in a network namespace without NICs, the interfaces that lead out of it.
    pub(crate) fn links(&self) -> Vec<&Nic> {
        if self.ways_out.is_empty() { self.rails() } else { self.ways_out.iter().collect() }
    }

    /// Returns the rails for data and, separately, the interfaces that seem to serve the host itself, with the reason.
    /// Every interface that the user names is a rail.
    ///
    /// Among interfaces of one kind, one is not a rail if it alone differs from at least two others: it carries a
    /// default route and they do not, or it shares no PCI switch with a GPU and they do.
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

    /// Returns `answer` from the probes of an interface's driver. `question` names the probe whose error explains a
    /// missing answer.
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

    /// Returns the text of a file that every machine has.
    pub(crate) fn text(&self, path: &str) -> Result<String, Unknown> {
        self.root.read(path).map_err(|error| match error.is_absent() && self.is_hidden(path) {
            true => Unknown(format!("{path} is only in the host's network namespace: ask there")),
            false => error.into(),
        })
    }

    /// Whether only the host's network namespace has this file, and this namespace is another one.
    fn is_hidden(&self, path: &str) -> bool {
        !self.ways_out.is_empty()
            && path.starts_with("/proc/sys/net/")
            && self.root.exists("/proc/sys/net")
    }

    /// Returns the text of a file that a machine may lack.
    pub(crate) fn optional(&self, path: &str) -> Result<Option<String>, Unknown> {
        Ok(self.root.read_optional(path)?)
    }

    /// Returns the number in a file that every machine has.
    pub(crate) fn number(&self, path: &str) -> Result<u64, Unknown> {
        parse(path, &self.text(path)?)
    }

    /// Returns the three numbers in a file such as `tcp_rmem`.
    pub(crate) fn three(&self, path: &str) -> Result<[u64; 3], Unknown> {
        let text = self.text(path)?;
        let numbers: Vec<u64> =
            text.split_whitespace().map(|word| parse(path, word)).collect::<Result<_, _>>()?;
        numbers.try_into().map_err(|_| Unknown(format!("{path} has `{text}`, not three numbers")))
    }

    /// Returns the kernel's release as major and minor number.
    pub(crate) fn kernel(&self) -> Result<(u32, u32), Unknown> {
        let text = self.text(OSRELEASE)?;
        let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
            _ => Err(Unknown(format!("{OSRELEASE} has `{text}`, not a release"))),
        }
    }

    /// Returns a row of `/proc/self/status`, or of another file of `name: value` rows.
    pub(crate) fn row(&self, path: &str, name: &str) -> Result<String, Unknown> {
        let text = self.text(path)?;
        let mut rows = text.lines().filter_map(|line| line.split_once(':'));
        let row = rows.find(|(key, _)| *key == name).map(|(_, value)| value.trim().to_owned());
        row.ok_or_else(|| Unknown(format!("{path} has no row {name}")))
    }

    /// Returns a counter of `/proc/net/snmp` or `/proc/net/netstat`, where a line of names precedes each line of
    /// values.
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

/// Returns the interfaces whose drivers are queried.
pub fn examined(root: &Sysroot, topology: &Topology) -> Vec<Nic> {
    [topology.nics.clone(), ways_out(root, topology)].concat()
}

/// Returns the interfaces that have routes, if no NIC of a device is in this network namespace.
fn ways_out(root: &Sysroot, topology: &Topology) -> Vec<Nic> {
    if !topology.nics.is_empty() {
        return Vec::new();
    }
    let routes = root.read(ROUTE).unwrap_or_default();
    let has_route = |name: &&String| {
        routes.lines().skip(1).any(|line| line.split_whitespace().next() == Some(name.as_str()))
    };
    let names = topology.virtual_interfaces.iter().filter(|name| *name != "lo").filter(has_route);
    names.map(|name| Topology::read_virtual(root, name)).collect()
}

/// Returns a note that names the interfaces examined instead of NICs, and the place where the NICs can be examined.
fn note_of_namespace(ways_out: &[Nic]) -> Option<String> {
    let names: Vec<&str> = ways_out.iter().map(|one| one.name.as_str()).collect();
    let (names, leads) = (names.join(", "), if names.len() == 1 { "leads" } else { "lead" });
    (!ways_out.is_empty()).then(|| {
        format!(
            "no NIC is in this network namespace: {names} {leads} out of it. Link, MTU, drops, offloads and routes of that are \
             examined, and the settings of sockets, CPUs and memory. For NICs, queues and interrupts run `polyrail doctor` \
             on the host (Kubernetes: in a pod with `hostNetwork: true`)"
        )
    })
}

/// Returns a note if /sys shows another network namespace: `nsenter` and `polyrail lab exec` enter one without mounting
/// its /sys. `here` lists the interfaces of this namespace.
fn note_of_sysfs(topology: &Topology, here: &[&str]) -> Option<String> {
    let in_sysfs = topology.nics.iter().map(|nic| &nic.name).chain(&topology.virtual_interfaces);
    let mut in_sysfs = in_sysfs.filter(|name| *name != "lo").peekable();
    let is_other = in_sysfs.peek().is_some() && !in_sysfs.any(|name| here.contains(&name.as_str()));
    is_other.then(|| {
        format!(
            "/sys shows the interfaces of another network namespace, and these are examined; this one has {}: run \
             `ip netns exec NAMESPACE polyrail doctor`, which mounts the right /sys",
            here.join(", ")
        )
    })
}

pub(crate) const ROUTE: &str = "/proc/net/route";

/// Returns a key that is equal for interfaces of one kind: driver, vendor and device number.
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
        // If every interface has a default route, none serves the host alone.
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
    fn where_no_nic_is_in_the_namespace_its_ways_out_are_examined_and_the_host_is_named() {
        let host = fixtures::container();
        let names =
            |cx: &Context| cx.links().iter().map(|nic| nic.name.clone()).collect::<Vec<_>>();
        let read = |interfaces: &[&str]| {
            let interfaces = interfaces.iter().map(|name| (*name).to_owned()).collect();
            Context::read(&host.root(), Options { interfaces, ..Options::default() })
        };
        let lone = read(&[]).unwrap();
        assert!(names(&lone).is_empty() && lone.notes().is_empty(), "no route leads out");
        let route = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                     eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n";
        host.write("/proc/net/route", route);
        host.write("/proc/sys/net/ipv4/tcp_rmem", "4096 131072 6291456");
        host.write("/sys/devices/virtual/net/eth0/mtu", "1450");
        for cx in [read(&[]).unwrap(), read(&["eth0"]).unwrap()] {
            assert_eq!((names(&cx), cx.rails().len()), (vec!["eth0".to_owned()], 0));
            let note = cx.notes().concat();
            assert!(
                note.contains("eth0 leads out of it") && note.contains("hostNetwork"),
                "{note}"
            );
            let Unknown(why) = cx.text("/proc/sys/net/core/default_qdisc").unwrap_err();
            assert!(why.contains("only in the host's network namespace"), "{why}");
            let report = crate::examine(&cx);
            let mtu = report.checks.iter().find(|check| check.id == "mtu-small").unwrap();
            assert_eq!(mtu.evidence[0].value, "1450");
        }
        let refused = read(&["eth9"]).unwrap_err().to_string();
        assert!(refused.contains("allowed: eth0"), "{refused}");
        // If there is a NIC, virtual interfaces don't count.
        let with_nics = fixtures::a3_high();
        with_nics.write("/proc/net/route", route);
        let cx = Context::read(&with_nics.root(), Options::default()).unwrap();
        assert_eq!(cx.links().len(), cx.rails().len());
    }

    #[test]
    fn where_sysfs_is_that_of_another_namespace_a_note_says_so() {
        let topology = Topology::read(&fixtures::a3_high().root()).unwrap();
        assert_eq!(note_of_sysfs(&topology, &["lo", "eth1"]), None);
        let note = note_of_sysfs(&topology, &["lo", "rail0"]).unwrap();
        assert!(note.contains("this one has lo, rail0: run `ip netns exec"), "{note}");
        let lone = Topology::read(&fixtures::no_nics().root()).unwrap();
        assert_eq!(note_of_sysfs(&lone, &["lo", "rail0"]), None);
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
