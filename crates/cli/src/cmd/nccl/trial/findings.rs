//! What `polyrail nccl try` finds, as JSON and in words.

use polyrail_nccl_abi::{NCCL_RELEASES, Properties};
use polyrail_report::{Align, Table, exit, show_size};
use serde::{Deserialize, Serialize};

use crate::stdout::{fitted, say};

const SCHEMA_VERSION: u32 = 1;

/// Everything about one plugin.
#[derive(Debug, Default, Serialize)]
pub(super) struct Findings {
    schema_version: u32,
    pub(super) library: String,
    pub(super) tables: Vec<TableFound>,
    /// Of the table that was tried.
    pub(super) version: Option<u32>,
    pub(super) devices: Vec<DeviceFound>,
    pub(super) transfers: Vec<Transfer>,
    pub(super) not_tried: Vec<String>,
    pub(super) left: Left,
    pub(super) close_faults: Vec<CloseFault>,
    /// Lines that it logged as warnings or wrote to standard output or error.
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

/// What the plugin left in its process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Left {
    pub(super) threads: Vec<Thread>,
    /// What descriptors that were not closed are open for.
    pub(super) descriptors: Vec<String>,
    pub(super) environment: Vec<String>,
    pub(super) signal_handlers: Vec<String>,
    /// CPUs of the thread that called it, if they are others now.
    pub(super) caller_cpus: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Thread {
    pub(super) name: String,
    pub(super) cpus: String,
}

/// A function that was to end something, and failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct CloseFault {
    /// NCCL's name of it.
    pub(super) call: String,
    pub(super) text: String,
    /// How often it did.
    pub(super) times: u32,
}

/// What ended the trial early, or makes it fail in the end.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fault {
    /// NCCL's name of the function that failed or was called last, `dlopen`, or `exit` for the end of the process.
    pub(super) call: String,
    pub(super) text: String,
    /// The last lines of its log before that, of any level.
    pub(super) last_words: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Everything that was tried is right.
    #[default]
    Works,
    /// It works, and some of what it tells or leaves is not as it should be.
    WorksOddly,
    /// It has no device, so nothing was tried.
    NoDevice,
    /// It is no plugin, or can't be loaded.
    NoPlugin,
    /// A call failed, or ended the process, or did not return.
    Fails,
    /// What arrived is not what was sent.
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

    /// Judges what is there, if nothing has failed.
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
        // Where nothing else failed, they are the end.
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

    /// The newest table that each release of NCCL and RCCL takes.
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
                device.speed_mbps.to_string(),
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

    /// What matters most, for the end.
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
