//! `/proc/interrupts`: counts of each interrupt on each CPU.

use std::collections::HashSet;

use serde::Serialize;

use crate::cpuset::LAST_CPU;
use crate::pci::PciAddress;
use crate::sysroot::{ReadError, Sysroot, short};

const PATH: &str = "/proc/interrupts";
/// Words after a chip's first one that are searched for its number: `Hyper-V PCIe MSI 4018143232-edge`.
const CHIP_WORDS: usize = 3;
/// Ends of chip names that include the flow.
const FLOWS_OF_CHIPS: &[&str] = &["-edge", "-level", "-fasteoi"];

/// Content of `/proc/interrupts` at one moment.
///
/// The kernel writes a column per online CPU. Only the heading shows which CPU a column is for, and the number of
/// columns can change between two reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interrupts {
    /// CPU of each column, in ascending order.
    pub cpus: Vec<u32>,
    /// Numbered interrupts, in the file's order.
    pub irqs: Vec<Irq>,
    /// Rows with a name instead of a number: `LOC`, `RES`, `CAL`, `TLB`, on s390 `I/O` and so on.
    pub named: Vec<NamedRow>,
    /// Rows that are not in the kernel's format. The other fields leave them out.
    #[serde(skip)]
    pub unread: Vec<InterruptsError>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Irq {
    /// Number of the interrupt. It changes with reboots and drivers: [`Self::pci`], [`Self::hwirq`] and the names in
    /// [`Self::actions`] identify the interrupt.
    pub number: u32,
    /// One count per entry of [`Interrupts::cpus`]. The kernel's counters wrap at 2³².
    pub counts: Vec<u64>,
    /// Chip as written, such as `PCI-MSIX-0000:00:03.0` or `IO-APIC`.
    pub chip: String,
    /// The chip's own number. For chips with [`Self::pci`], the index of the vector in its device.
    pub hwirq: Option<u64>,
    /// Flow as written: `edge`, `level`, `fasteoi` and so on.
    pub flow: Option<String>,
    /// Device that raises the interrupt, if the chip names it (Linux 6.3 and later).
    pub pci: Option<PciAddress>,
    /// Names of the handlers. Several share one interrupt on old buses; there is none while no driver uses it.
    pub actions: Vec<String>,
}

/// A row without a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedRow {
    /// Name of the row: `LOC`, `RES` and so on.
    pub name: String,
    /// One count per entry of [`Interrupts::cpus`], or a single total (`ERR`, `MIS`).
    pub counts: Vec<u64>,
    /// The kernel's description, such as `Rescheduling interrupts`.
    pub description: String,
}

/// The text is not `/proc/interrupts`, or a row is not in its format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct InterruptsError {
    /// Line number, counted from 1.
    pub line: usize,
    /// The fault in this line.
    pub fault: String,
}

impl Interrupts {
    /// Reads `/proc/interrupts` below the root.
    ///
    /// # Errors
    /// [`ReadError`] with the path.
    pub fn read(root: &Sysroot) -> Result<Self, ReadError> {
        match root.read(PATH)? {
            text if text.is_empty() => {
                Err(root.content(PATH, "is empty: this container hides the machine's interrupts"))
            }
            text => Self::parsed(root, &text),
        }
    }

    /// Reads like [`Self::read`]; returns `None` if the file is missing, forbidden or empty: containers hide it in each
    /// of these ways.
    ///
    /// # Errors
    /// As [`Self::read`], for every other reason.
    pub fn read_optional(root: &Sysroot) -> Result<Option<Self>, ReadError> {
        match root.read(PATH) {
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => Self::parsed(root, &text).map(Some),
            Err(error) if error.is_absent() || error.is_permission() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// [`InterruptsError`] for a heading that is not a list of CPUs, because then no count can be understood. A row
    /// without a label, or whose number occurred before, goes to [`Self::unread`]. Rows with fewer counts than CPUs get
    /// zeros only if they are numbered.
    pub fn parse(text: &str) -> Result<Self, InterruptsError> {
        let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
        let heading = lines.next().map_or("", |(_, line)| line);
        let cpus = heading_cpus(heading).map_err(|fault| InterruptsError { line: 1, fault })?;
        let mut table = Self { cpus, ..Self::default() };
        let mut seen = HashSet::new();
        for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
            let found = text.split_once(':').filter(|(label, _)| is_label(label.trim()));
            let Some((label, rest)) = found else {
                let fault = format!("`{}` has no label before a colon", short(text));
                table.unread.push(InterruptsError { line, fault });
                continue;
            };
            let (counts, rest) = counts(rest, table.cpus.len());
            let label = label.trim();
            match label.parse::<u32>() {
                Ok(number) if !seen.insert(number) => {
                    let fault = format!("interrupt {number} is there twice");
                    table.unread.push(InterruptsError { line, fault });
                }
                Ok(number) => table.irqs.push(Irq::new(number, counts, rest, table.cpus.len())),
                Err(_) => table.named.push(NamedRow {
                    name: label.to_owned(),
                    counts,
                    description: rest.trim().to_owned(),
                }),
            }
        }
        Ok(table)
    }

    /// Returns the interrupt of this number.
    pub fn irq(&self, number: u32) -> Option<&Irq> {
        self.irqs.iter().find(|irq| irq.number == number)
    }

    /// Returns the interrupts of the device at this address, in the order of their index in the device.
    ///
    /// Kernels before 6.3 do not write the address with the chip. There, an interrupt is found only if its driver puts
    /// the address into the handler's name (`mlx5_comp0@pci:0000:08:00.0`).
    pub fn of_device(&self, pci: PciAddress) -> Vec<&Irq> {
        let suffix = format!("@pci:{pci}");
        let by_name = |irq: &Irq| irq.actions.iter().any(|action| action.ends_with(&suffix));
        let mut irqs: Vec<_> = self
            .irqs
            .iter()
            .filter(|irq| irq.pci == Some(pci) || irq.pci.is_none() && by_name(irq))
            .collect();
        irqs.sort_unstable_by_key(|irq| (irq.hwirq, irq.number));
        irqs
    }

    /// Returns the row of this name, such as `RES`.
    pub fn named(&self, name: &str) -> Option<&NamedRow> {
        self.named.iter().find(|row| row.name == name)
    }

    fn parsed(root: &Sysroot, text: &str) -> Result<Self, ReadError> {
        Self::parse(text)
            .map_err(|error| root.content(PATH, format!("is not a table of interrupts: {error}")))
    }
}

impl Irq {
    /// Returns the count over all CPUs.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn new(number: u32, mut counts: Vec<u64>, rest: &str, columns: usize) -> Self {
        counts.resize(columns, 0);
        let rest = rest.trim();
        let mut irq = Self {
            number,
            counts,
            chip: String::new(),
            hwirq: None,
            flow: None,
            pci: None,
            actions: Vec::new(),
        };
        let actions = irq.take_chip(rest);
        irq.actions = actions
            .split(", ")
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        irq.pci = irq.chip.match_indices('-').find_map(|(at, _)| irq.chip[at + 1..].parse().ok());
        irq
    }

    /// Takes chip, number and flow off the front and returns the rest, which is the actions.
    ///
    /// x86 writes `PCI-MSI 34078723-edge name` and, since 6.3, `PCI-MSIX-0000:00:03.0 1-edge name`. Hyper-V's chip has
    /// spaces: `Hyper-V PCIe MSI 4018143232-edge name`. ARM writes `GICv3 27 Level name`. Chips without a number:
    /// `IO-APIC-edge name`, `xen-pirq -msi-x name`.
    fn take_chip<'a>(&mut self, text: &'a str) -> &'a str {
        let (first, rest) = word(text);
        first.clone_into(&mut self.chip);
        let (second, after) = word(rest);
        if let Some(flow) = second.strip_prefix('-') {
            self.flow = Some(flow.to_owned());
            return after;
        }
        // Linux 3.10 writes no number: `PCI-MSI-edge name`. The name may begin with a number.
        if FLOWS_OF_CHIPS.iter().any(|flow| first.ends_with(flow)) {
            return rest;
        }
        let mut behind = rest;
        for _ in 0..CHIP_WORDS {
            let (found, after) = word(behind);
            let (digits, flow) = found.split_once('-').unwrap_or((found, ""));
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let Some(hwirq) = is_number.then(|| digits.parse().ok()).flatten() else {
                behind = after;
                continue;
            };
            let chip = &text.trim_start()[..text.trim_start().len() - behind.len()];
            chip.trim_end().clone_into(&mut self.chip);
            self.hwirq = Some(hwirq);
            let (third, last) = word(after);
            return match flow {
                "" if matches!(third, "Level" | "Edge") => {
                    self.flow = Some(third.to_lowercase());
                    last
                }
                "" => after,
                flow => {
                    self.flow = Some(flow.to_owned());
                    after
                }
            };
        }
        rest
    }
}

/// Returns the first word and the rest.
fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()))
}

pub(crate) fn heading_cpus(heading: &str) -> Result<Vec<u32>, String> {
    let mut cpus: Vec<u32> = Vec::new();
    for label in heading.split_whitespace() {
        let number = label.strip_prefix("CPU").and_then(|digits| digits.parse().ok());
        match number {
            Some(cpu) if cpu <= LAST_CPU && cpus.last().is_none_or(|last| *last < cpu) => {
                cpus.push(cpu);
            }
            Some(_) => return Err(format!("the heading `{}` is out of order", short(label))),
            None => return Err(format!("the heading `{}` is no CPU", short(label))),
        }
    }
    if cpus.is_empty() {
        return Err("the heading names no CPU".to_owned());
    }
    Ok(cpus)
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && !label.contains(char::is_whitespace)
}

/// Returns up to `columns` numbers, and the rest of the line.
fn counts(text: &str, columns: usize) -> (Vec<u64>, &str) {
    // Work on bytes for speed: a sampler repeatedly reads some 200 columns of as many rows.
    let bytes = text.as_bytes();
    let length = |from: usize, is_in: fn(&u8) -> bool| {
        bytes[from..].iter().take_while(|byte| is_in(byte)).count()
    };
    let mut counts = Vec::with_capacity(columns);
    let mut at = 0;
    while counts.len() < columns {
        let begin = at + length(at, u8::is_ascii_whitespace);
        let end = begin + length(begin, u8::is_ascii_digit);
        match text[begin..end].parse() {
            Ok(count) if bytes.get(end).is_none_or(u8::is_ascii_whitespace) => counts.push(count),
            _ => break,
        }
        at = end;
    }
    (counts, &text[at..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// CPU 2 is offline. The rows are in the formats of 6.18, 6.1 and an ARM server.
    const TABLE: &str = "           CPU0       CPU1       CPU3       
  0:          9          0          0  IO-APIC   2-edge      timer
 24:          1          0          2 PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 25:          0          7          0   PCI-MSI 34078723-edge      mlx5_comp0@pci:0000:08:00.0
 26:          0          0          0   PCI-MSI 34078722-edge      mlx5_async0@pci:0000:08:00.0
 27:          3          0          1 IR-PCI-MSI-0000:00:1c.0    0-edge      PCIe PME, aerdrv, pciehp
 28:          5          6          7     GICv3  27 Level     arch_timer
 29:          0          0          1 ITS-PCI-MSIX-0001:01:00.0   4 Edge      eth0-TxRx-3
 30:          4          0          0   IO-APIC-fasteoi   acpi
 31:          0          0          0  IO-APIC   8-edge    
NMI:          0          1          2   Non-maskable interrupts
RES:         10         20         30   Rescheduling interrupts
ERR:          4
MIS:          0
";

    fn pci(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    #[test]
    fn columns_are_known_by_their_heading_so_an_offline_cpu_shifts_nothing() {
        let table = Interrupts::parse(TABLE).unwrap();
        assert_eq!(table.cpus, [0, 1, 3]);
        assert_eq!(table.irq(24).unwrap().counts, [1, 0, 2]);
        assert_eq!(table.irq(28).unwrap().total(), 18);
        assert_eq!(table.named("RES").unwrap().counts, [10, 20, 30]);
        assert_eq!(table.named("ERR").unwrap().counts, [4]);
        assert_eq!(table.named("NMI").unwrap().description, "Non-maskable interrupts");
    }

    #[test]
    fn old_and_new_forms_of_chips_are_told_apart() {
        let table = Interrupts::parse(TABLE).unwrap();
        let seen = |number| {
            let irq = table.irq(number).unwrap();
            (irq.chip.as_str(), irq.hwirq, irq.flow.as_deref(), irq.pci)
        };
        assert_eq!(seen(0), ("IO-APIC", Some(2), Some("edge"), None));
        let msix = "PCI-MSIX-0000:00:03.0";
        assert_eq!(seen(24), (msix, Some(1), Some("edge"), Some(pci("0000:00:03.0"))));
        assert_eq!(seen(25), ("PCI-MSI", Some(34_078_723), Some("edge"), None));
        assert_eq!(seen(28), ("GICv3", Some(27), Some("level"), None));
        assert_eq!(seen(29).3, Some(pci("0001:01:00.0")));
        assert_eq!(seen(30), ("IO-APIC-fasteoi", None, None, None));
    }

    #[test]
    fn an_old_chip_has_no_number_even_before_an_interface_called_100() {
        let table = Interrupts::parse("CPU0\n 90: 5 IR-PCI-MSI-edge      100-q0\n").unwrap();
        let irq = &table.irqs[0];
        assert_eq!((irq.chip.as_str(), irq.hwirq), ("IR-PCI-MSI-edge", None));
        assert_eq!(irq.actions, ["100-q0"]);
    }

    #[test]
    fn handlers_are_taken_apart_and_may_be_missing() {
        let table = Interrupts::parse(TABLE).unwrap();
        assert_eq!(table.irq(27).unwrap().actions, ["PCIe PME", "aerdrv", "pciehp"]);
        assert_eq!(table.irq(30).unwrap().actions, ["acpi"]);
        assert!(table.irq(31).unwrap().actions.is_empty());
    }

    #[test]
    fn the_vectors_of_a_device_come_in_its_own_order() {
        let table = Interrupts::parse(TABLE).unwrap();
        let numbers =
            |at| table.of_device(pci(at)).iter().map(|irq| irq.number).collect::<Vec<_>>();
        assert_eq!(numbers("0000:08:00.0"), [26, 25]);
        assert_eq!(numbers("0000:00:03.0"), [24]);
        assert!(numbers("0000:00:04.0").is_empty());
    }

    #[test]
    fn a_heading_that_names_no_cpus_is_refused() {
        for (text, fault) in [
            ("", "the heading names no CPU"),
            ("CPU0 GPU1", "the heading `GPU1` is no CPU"),
            ("CPU1 CPU0", "the heading `CPU0` is out of order"),
        ] {
            let error = InterruptsError { line: 1, fault: fault.to_owned() };
            assert_eq!(Interrupts::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn an_odd_row_is_left_out_and_the_others_are_read() {
        let text = "CPU0\n 1: 5 x\n2 5\n 1: 6 y\nI/O: 7  I/O interrupts\n 3: 9 z";
        let table = Interrupts::parse(text).unwrap();
        let unread: Vec<String> = table.unread.iter().map(ToString::to_string).collect();
        assert_eq!(
            unread,
            ["line 3: `2 5` has no label before a colon", "line 4: interrupt 1 is there twice"]
        );
        assert_eq!(table.irqs.iter().map(|irq| irq.total()).collect::<Vec<_>>(), [5, 9]);
        assert_eq!(table.named("I/O").unwrap().counts, [7]);
    }

    #[test]
    fn chips_with_spaces_and_without_a_number_leave_the_handlers_alone() {
        let text = "CPU0\n 24: 1 Hyper-V PCIe MSI 4018143232-edge      mlx5_comp0@pci:c7d1:00:02.0\n\
                    25: 1  xen-pirq    -msi-x     eth4-TxRx-0\n 26: 1  xen-dyn    -event     eth0-q0-tx\n";
        let table = Interrupts::parse(text).unwrap();
        let seen = |number| {
            let irq = table.irq(number).unwrap();
            (irq.chip.as_str(), irq.hwirq, irq.flow.as_deref(), irq.actions[0].as_str())
        };
        assert_eq!(
            seen(24),
            ("Hyper-V PCIe MSI", Some(4_018_143_232), Some("edge"), "mlx5_comp0@pci:c7d1:00:02.0")
        );
        assert_eq!(seen(25), ("xen-pirq", None, Some("msi-x"), "eth4-TxRx-0"));
        assert_eq!(seen(26), ("xen-dyn", None, Some("event"), "eth0-q0-tx"));
    }

    #[test]
    fn this_machine_has_a_table() {
        let table = Interrupts::read(&Sysroot::live()).unwrap();
        assert!(!table.cpus.is_empty() && !table.irqs.is_empty());
        assert!(table.irqs.iter().all(|irq| irq.counts.len() == table.cpus.len()));
        assert!(table.irqs.iter().any(|irq| irq.total() > 0));
    }

    proptest! {
        #[test]
        fn what_is_taken_of_any_text_has_a_count_for_every_cpu(text in "(CPU[0-9]{1,2} ?){0,3}\n([0-9A-Z]{1,3}: [0-9 ]*[A-Za-z:.,0-9-]*\n)*|\\PC*") {
            match Interrupts::parse(&text) {
                Ok(table) => {
                    let cpus = table.cpus.len();
                    prop_assert!(cpus > 0 && table.irqs.iter().all(|irq| irq.counts.len() == cpus));
                }
                Err(error) => {
                    let lines = text.lines().count().max(1);
                    prop_assert!((1..=lines).contains(&error.line), "{:?}", error);
                }
            }
        }
    }
}
