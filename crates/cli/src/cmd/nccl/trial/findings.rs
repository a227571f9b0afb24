//! Findings of `polyrail nccl try`, as JSON and in words.

use polyrail_host::{Sysroot, Topology};
use polyrail_nccl_abi::{NCCL_RELEASES, Properties};
use polyrail_report::{Align, Table, exit, show_size};
use serde::{Deserialize, Serialize};

use crate::stdout::{fitted, say};

const SCHEMA_VERSION: u32 = 1;
/// Polyrail's plugin assumes this speed for a rail whose driver reports none, and a multiple of it for loopback.
const ASSUMED_MBPS: i32 = 100_000;

/// All findings about one plugin.
#[derive(Debug, Default, Serialize)]
pub(super) struct Findings {
    schema_version: u32,
    pub(super) library: String,
    pub(super) tables: Vec<TableFound>,
    /// Version of the table that was tried.
    pub(super) version: Option<u32>,
    pub(super) devices: Vec<DeviceFound>,
    pub(super) transfers: Vec<Transfer>,
    pub(super) not_tried: Vec<String>,
    pub(super) left: Left,
    pub(super) close_faults: Vec<CloseFault>,
    /// Lines that the plugin logged as warnings or wrote to standard output or error.
    pub(super) said: Vec<String>,
    pub(super) fault: Option<Fault>,
    pub(super) verdict: Verdict,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TableFound {
    pub(super) version: u32,
    pub(super) name: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct DeviceFound {
    pub(super) name: String,
    pub(super) pci_path: Option<String>,
    pub(super) speed_mbps: i32,
    pub(super) latency_us: Option<f32>,
    /// Bits: 1 host, 2 CUDA, 4 DMA-BUF.
    pub(super) ptr_support: i32,
    pub(super) max_comms: i32,
    pub(super) max_recvs: i32,
    pub(super) max_bytes: u64,
    pub(super) reg_is_global: bool,
    pub(super) force_flush: bool,
    /// 0: receives end in place; 1: a kernel on the GPU unpacks them.
    pub(super) device_type: i32,
    pub(super) device_version: i32,
    pub(super) faults: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Transfer {
    pub(super) device: usize,
    pub(super) memory: String,
    pub(super) bytes: usize,
    pub(super) messages: usize,
    pub(super) seconds: f64,
}

/// Changes that the plugin left in its process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Left {
    pub(super) threads: Vec<Thread>,
    /// Targets of descriptors that were not closed.
    pub(super) descriptors: Vec<String>,
    pub(super) environment: Vec<String>,
    pub(super) signal_handlers: Vec<String>,
    /// CPUs of the thread that called the plugin, if they have changed.
    pub(super) caller_cpus: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Thread {
    pub(super) name: String,
    pub(super) cpus: String,
}

/// A call that was to end something, and failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CloseFault {
    /// NCCL's name of the function.
    pub(super) call: String,
    pub(super) text: String,
    /// Number of failures.
    pub(super) times: u32,
}

/// The error that ended the trial early, or makes it fail at the end.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fault {
    /// NCCL's name of the function that failed or was called last, `dlopen`, or `exit` for the end of the process.
    pub(super) call: String,
    pub(super) text: String,
    /// The last lines of the plugin's log before that, of any level.
    pub(super) last_words: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Everything that was tried is right.
    #[default]
    Works,
    /// The plugin works, but some of what it reports or leaves behind is wrong.
    WorksOddly,
    /// The plugin has no device, so nothing was tried.
    NoDevice,
    /// The library is not a plugin, or can't be loaded.
    NoPlugin,
    /// A call failed, or ended the process, or did not return.
    Fails,
    /// Received data differs from the data sent.
    WrongData,
}

impl Verdict {
    pub(super) fn exit_code(self) -> u8 {
        match self {
            Self::Works | Self::WorksOddly => exit::OK,
            Self::NoDevice | Self::Fails => exit::VERDICT,
            Self::NoPlugin => exit::ENVIRONMENT,
            Self::WrongData => exit::DATA,
        }
    }
}

impl DeviceFound {
    /// Speed in Mbit/s, marked if the plugin assumes it: for loopback, and for rails whose drivers report none.
    pub(super) fn speed(&self) -> String {
        let topology = Topology::read(&Sysroot::live());
        let nics = topology.iter().flat_map(|it| &it.nics);
        let told = nics.filter(|nic| nic.speed_mbps.is_some()).filter_map(|nic| nic.pci.as_ref());
        let told: Vec<String> = told.map(|pci| pci.address.to_string()).collect();
        self.speed_among(&told)
    }

    /// The same, if the drivers of the NICs at these PCI addresses report a speed.
    fn speed_among(&self, told: &[String]) -> String {
        let path = self.pci_path.as_deref().unwrap_or_default();
        let is_told = path.split('/').any(|part| told.iter().any(|address| address == part));
        let is_round = self.speed_mbps > 0 && self.speed_mbps % ASSUMED_MBPS == 0;
        let is_assumed = is_round && !is_told;
        format!("{}{}", self.speed_mbps, if is_assumed { " (assumed)" } else { "" })
    }

    pub(super) fn new(props: &Properties) -> Self {
        let pci = props.pci_path.as_ref();
        let refused = polyrail_carrier::refusal(props);
        let refused = refused.map(|why| format!("is one that no engine of Polyrail takes: {why}"));
        Self {
            name: props.name.clone(),
            pci_path: pci.map(|path| path.display().to_string()),
            speed_mbps: props.speed_mbps,
            latency_us: Some(props.latency_us).filter(|latency| latency.is_finite()),
            ptr_support: props.ptr_support,
            max_comms: props.max_comms,
            max_recvs: props.max_recvs,
            max_bytes: props.max_p2p_bytes as u64,
            reg_is_global: props.reg_is_global,
            force_flush: props.force_flush,
            device_type: props.device_type,
            device_version: props.device_version,
            faults: props.faults().into_iter().chain(refused).collect(),
        }
    }

    fn kinds(&self) -> String {
        let kinds = [(1, "host"), (2, "CUDA"), (4, "DMA-BUF")];
        let has = kinds.iter().filter(|(bit, _)| self.ptr_support & bit != 0);
        let names: Vec<&str> = has.map(|(_, name)| *name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }

    fn receives(&self) -> String {
        match self.device_type {
            0 => "in place".to_owned(),
            1 => format!("unpacked by a GPU, version {}", self.device_version),
            other => format!("by device type {other}"),
        }
    }
}

impl CloseFault {
    pub(super) fn words(&self) -> String {
        match self.times {
            1 => self.text.clone(),
            times => format!("{}, {times} times", self.text),
        }
    }
}

impl Left {
    fn sentences(&self) -> Vec<String> {
        let mut all = Vec::new();
        for thread in &self.threads {
            all.push(format!("It keeps a thread {} on CPUs {}.", thread.name, thread.cpus));
        }
        let files: Vec<&str> = self.descriptors.iter().map(String::as_str).collect();
        if !files.is_empty() {
            all.push(format!(
                "It has not closed {} descriptors: {}.",
                files.len(),
                files.join(", ")
            ));
        }
        all.extend(
            self.environment.iter().map(|change| format!("It changed the environment: {change}.")),
        );
        all.extend(
            self.signal_handlers
                .iter()
                .map(|change| format!("It changed what happens at {change}.")),
        );
        if let Some(cpus) = &self.caller_cpus {
            all.push(format!("It moved the thread that called it to CPUs {cpus}."));
        }
        all
    }

    fn is_odd(&self) -> bool {
        !(self.environment.is_empty() && self.signal_handlers.is_empty())
            || self.caller_cpus.is_some()
    }
}

impl Findings {
    pub(super) fn new(library: &str) -> Self {
        Self { schema_version: SCHEMA_VERSION, library: library.to_owned(), ..Self::default() }
    }

    /// Judges the findings, if nothing has failed.
    pub(super) fn judge(&mut self) {
        let is_odd =
            self.devices.iter().any(|device| !device.faults.is_empty()) || self.left.is_odd();
        self.verdict = match (self.devices.is_empty(), is_odd) {
            (true, _) => Verdict::NoDevice,
            (false, true) => Verdict::WorksOddly,
            (false, false) => Verdict::Works,
        };
    }

    pub(super) fn print(&self) {
        say!("{}", self.library);
        let mut tables =
            Table::default().column("version", Align::Right).column("name", Align::Left);
        for found in &self.tables {
            tables.row([found.version.to_string(), found.name.clone()]);
        }
        if !self.tables.is_empty() {
            say!("\n{}", tables.to_string().trim_end());
            say!("\n{}", self.releases().to_string().trim_end());
        }
        if let Some(version) = self.version {
            say!("\ntried: version {version}");
        }
        self.print_devices();
        self.print_transfers();
        let sentences = self.left.sentences();
        if !sentences.is_empty() {
            say!("\n{}", sentences.join("\n"));
        }
        // The conclusion contains them if nothing else failed.
        let end = self.fault.as_ref().map(|fault| fault.text.as_str()).unwrap_or_default();
        let others = self.close_faults.iter().map(CloseFault::words);
        others.filter(|words| !end.contains(words)).for_each(|words| say!("\n{words}."));
        if !self.said.is_empty() {
            say!("\nIt said:\n  {}", self.said.join("\n  "));
        }
        if let Some(fault) = self.fault.as_ref().filter(|fault| !fault.last_words.is_empty()) {
            say!("\nIts last words:\n  {}", fault.last_words.join("\n  "));
        }
        say!("\n{}", self.conclusion());
    }

    /// Table of the newest version that each release of NCCL and RCCL takes.
    fn releases(&self) -> Table {
        let mut releases =
            Table::default().column("release", Align::Left).column("takes version", Align::Right);
        for release in NCCL_RELEASES {
            let versions = self.tables.iter().map(|table| table.version);
            let taken = versions
                .filter(|version| (release.oldest..=release.newest).contains(version))
                .max();
            let text = taken.map_or("none".to_owned(), |version| version.to_string());
            releases.row([release.name.to_owned(), text]);
        }
        releases
    }

    fn print_devices(&self) {
        let mut table = Table::default()
            .column("device", Align::Left)
            .column("Mbit/s", Align::Right)
            .column("memory", Align::Left)
            .column("receives", Align::Left)
            .column("group", Align::Right)
            .column("PCI", Align::Left);
        for device in &self.devices {
            table.row([
                device.name.clone(),
                device.speed(),
                device.kinds(),
                device.receives(),
                device.max_recvs.to_string(),
                device.pci_path.clone().unwrap_or_else(|| "none".to_owned()),
            ]);
        }
        if !self.devices.is_empty() {
            say!("\n{}", fitted(&table).trim_end());
        }
        for (number, device) in self.devices.iter().enumerate() {
            for fault in &device.faults {
                say!("Device {number} {fault}.");
            }
        }
    }

    fn print_transfers(&self) {
        let mut table = Table::default()
            .column("device", Align::Right)
            .column("memory", Align::Left)
            .column("message", Align::Right)
            .column("messages", Align::Right)
            .column("took", Align::Right);
        for done in &self.transfers {
            table.row([
                done.device.to_string(),
                done.memory.clone(),
                show_size(done.bytes as u64),
                done.messages.to_string(),
                format!("{:.0} us", done.seconds * 1e6),
            ]);
        }
        if !self.transfers.is_empty() {
            say!("\n{}", fitted(&table).trim_end());
            match (self.verdict, &self.fault) {
                (Verdict::WrongData, _) => {}
                (_, Some(_)) => say!("Every byte that came was right."),
                (_, None) => say!("Every byte was right."),
            }
        }
        for what in &self.not_tried {
            say!("Not tried: {what}.");
        }
    }

    /// The most important finding, for the end.
    fn conclusion(&self) -> String {
        let fault = self.fault.as_ref().map(|fault| fault.text.as_str()).unwrap_or_default();
        match self.verdict {
            Verdict::Works => "It works.".to_owned(),
            Verdict::WorksOddly => "It works, but for what is said above.".to_owned(),
            Verdict::NoDevice => "It has no device.".to_owned(),
            Verdict::NoPlugin => format!("It can't be loaded: {fault}."),
            Verdict::Fails => format!("It fails: {fault}."),
            Verdict::WrongData => format!("It brings wrong data: {fault}."),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_speed_is_assumed_where_the_driver_of_the_devices_own_nic_tells_none() {
        let device = |speed_mbps, pci_path: Option<&str>| {
            DeviceFound::new(&Properties {
                name: "polyrail".to_owned(),
                pci_path: pci_path.map(PathBuf::from),
                guid: 1,
                ptr_support: 1,
                reg_is_global: true,
                force_flush: false,
                speed_mbps,
                port: 1,
                latency_us: 0.0,
                max_comms: 1,
                max_recvs: 1,
                device_type: 0,
                device_version: 0,
                max_p2p_bytes: 1,
            })
        };
        let told = ["0000:00:04.0".to_owned()];
        let at = |speed, function| {
            device(speed, Some(&format!("/sys/devices/pci0000:00/{function}"))).speed_among(&told)
        };
        assert_eq!(at(100_000, "0000:00:04.0"), "100000");
        assert_eq!(at(100_000, "0000:00:04.0/virtio1"), "100000");
        assert_eq!(at(200_000, "0000:00:05.0"), "200000 (assumed)", "another NIC tells its speed");
        assert_eq!(at(25_000, "0000:00:05.0"), "25000");
        assert_eq!(device(400_000, None).speed_among(&told), "400000 (assumed)");
    }
}
