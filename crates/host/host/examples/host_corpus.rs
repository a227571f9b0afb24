//! Writes the seeds of the fuzzers `cpus`, `interrupts` and `bindings`:
//! `cargo run -p polyrail-host --features fixtures --example host_corpus -- fuzz/corpus`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use polyrail_host::fixtures;

const CPUS: &[&str] = &[
    "",
    "0",
    "8-21,112-125",
    " 3, 0-1 ,8191",
    "5-3",
    "1,,2",
    "0x3",
    "0-8192",
    "ffff,ffffffff,ffffffff,ffffffff",
    "0000,00000000,00000000,3fff0000,00000000,00000000,003fff00\n",
    "1,1",
    "fffffffff",
];

const BINDINGS: &[&str] = &[
    "",
    "eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177",
    "eth1:22-35,124-139",
    " eth10: 5 ;eth1:8-9,112;",
    "eth1",
    ";eth1:8",
    "eth1:8;;eth2:9",
    ":8",
    "eth/1:8",
    "eth1:8;eth1:9",
    "eth1:",
    "eth1:0x8",
    "eth1:0-9000",
];

/// Rows in the formats of kernels 6.18 and 6.1 and of ARM servers, and invalid tables.
const TABLES: &[&str] = &[
    "           CPU0       CPU1       CPU3       \n  0:  9  0  0  IO-APIC   2-edge  timer\n 24: 1 0 2 \
     PCI-MSIX-0000:00:03.0   1-edge  virtio2-input.0\nERR: 4\nMIS: 0\n",
    "CPU0 CPU1\n 25: 0 7   PCI-MSI 34078723-edge      mlx5_comp0@pci:0000:08:00.0\n",
    "CPU0\n 27: 3 IR-PCI-MSI-0000:00:1c.0    0-edge      PCIe PME, aerdrv, pciehp\n",
    "CPU0\n 28: 5     GICv3  27 Level     arch_timer\n 30: 4   IO-APIC-fasteoi   acpi\n",
    "CPU1 CPU0\n",
    "CPU0\n 1: 5 x\n 1: 5 x\n",
    "CPU0\n2 5\n",
    "cpu  10 1 5 100 2 0 3 1 0 0\ncpu0 4 0 2 50 1 0 1 1 0 0\nctxt 77\nbtime 1700000000\n",
    "   CPU0  CPU1\n  HI:  0 1\nNET_RX:  5   7\n",
    "0000ffff 00000001 00000002 0 0 0 0 0 0 00000003 00000004 00000005 00000000 0 0\n",
    "Inter-|\n face |\n eth10: 1 2 3 4 5 0 0 0 9 10 11 12 0 0 0 0\n  eth1:21 0 0 0 0 0 0 0 0 0 0 0 0\n",
];

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: host_corpus FOLDER");
        return ExitCode::from(2);
    };
    match write_all(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(3)
        }
    }
}

fn write_all(folder: &Path) -> io::Result<()> {
    // Add a whole table, but of a small machine: fuzzers like short inputs.
    let small = fixtures::cpu_holes().root().read("/proc/interrupts").map_err(io::Error::other)?;
    let tables: Vec<&str> = TABLES.iter().copied().chain([small.as_str()]).collect();
    for (fuzzer, seeds) in [("cpus", CPUS), ("bindings", BINDINGS), ("interrupts", &tables)] {
        let folder = folder.join(fuzzer);
        fs::create_dir_all(&folder)?;
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(folder.join(format!("seed-{number:02}")), seed)?;
        }
    }
    Ok(())
}
