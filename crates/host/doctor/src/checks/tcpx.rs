//! Requirements of GPUDirect-TCPX, besides the kernel's, for receiving into GPU memory, and a check that packets land
//! there. The checks run only with `--devmem`.

use super::devmem::not_asked;
use super::topology::no_rails_means_nothing;
use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::Context;
use crate::plugins::{PluginProbe, RULES, is_of_gpu};
use crate::probes::NicProbe;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "tcpx-plugin",
        group: Group::Devmem,
        title: "there is no plugin that brings gVNICs' payload to GPUs",
        cost: Cost::Breaks,
        why: "On hosts with gVNICs payload goes straight to GPUs by GPUDirect-TCPX, a net plugin of NCCL that \
              `rails = plugin:…` hosts. Without it payload takes host memory.",
        remedy: "Install it, and name its folder in LD_LIBRARY_PATH or the file in `rails`.",
        needs_root: true,
        reversible: true,
        reads: &["libnccl-net*.so in LD_LIBRARY_PATH and the usual folders"],
        run: tcpx_plugin,
    },
    Check {
        id: "tcpx-daemon",
        group: Group::Devmem,
        title: "the daemon of GPUDirect-TCPX does not listen",
        cost: Cost::Breaks,
        why: "The plugin has memory of each GPU from the daemon (tcpgpudmarxd), which also steers flows to it; a plugin \
              that can't ask it fails when it accepts. The daemon ends when the last process that used it \
              does, and sees only the GPUs of its own container.",
        remedy: "Start the daemon in this network namespace, with all GPUs.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/net/unix"],
        run: tcpx_daemon,
    },
    Check {
        id: "devmem-landing",
        group: Group::Devmem,
        title: "most packets come unsplit, so that their payload is in host memory",
        cost: Cost::Large,
        why: "The driver's counters are the truth about where payload lands: a packet that the NIC does not split goes to host \
              memory whole. They count since the driver was loaded, so a host that has just begun may look worse.",
        remedy: "Switch tcp-data-split on, and see that each packet holds a page: an MTU that leaves room for 4096 bytes \
                 or a multiple beside the headers.",
        needs_root: true,
        reversible: true,
        reads: &["ethtool -S"],
        run: devmem_landing,
    },
];

/// Returns the reason why GPUDirect-TCPX does not concern this host, or `None` if it does.
fn is_elsewhere(cx: &Context) -> Option<Outcome> {
    let is_gve = |driver: &str| matches!(driver, "gve" | "gvnic");
    let has_gve = cx.rails().iter().any(|nic| nic.driver.as_deref().is_some_and(is_gve));
    let has_both = has_gve && !cx.topology().gpus.is_empty();
    let why = "GPUDirect-TCPX is for hosts with GPUs and NICs of the driver gve";
    not_asked(cx).or_else(|| (!has_both).then(|| Outcome::not_applicable(why)))
}

fn plugins(cx: &Context) -> Result<&[PluginProbe], Unknown> {
    let plugins = cx.probes().plugins.as_deref();
    plugins.ok_or_else(|| Unknown("the copy of the machine does not tell its plugins".to_owned()))
}

const FOLDERS: &str = "LD_LIBRARY_PATH and the usual folders";

fn tcpx_plugin(cx: &Context) -> Result<Outcome, Unknown> {
    if let Some(outcome) = is_elsewhere(cx) {
        return Ok(outcome);
    }
    let mut outcome = Outcome::default();
    let all = plugins(cx)?;
    let names = |plugin: &PluginProbe| plugin.path.display().to_string();
    let mut found = all.iter().filter(|plugin| plugin.is_tcpx).peekable();
    if found.peek().is_none() {
        let others: Vec<String> = all.iter().map(names).collect();
        let there = if others.is_empty() { "no plugin".to_owned() } else { others.join(", ") };
        outcome.found(Finding::new("GPUDirect-TCPX is not found").because(FOLDERS, there));
    }
    for plugin in found {
        let tables: Vec<String> = plugin.tables.iter().map(|table| format!("v{table}")).collect();
        outcome.saw(names(plugin), format!("GPUDirect-TCPX, tables {}", tables.join(", ")));
    }
    Ok(outcome)
}

fn tcpx_daemon(cx: &Context) -> Result<Outcome, Unknown> {
    const UNIX: &str = "/proc/net/unix";
    if let Some(outcome) = is_elsewhere(cx) {
        return Ok(outcome);
    }
    if !plugins(cx)?.iter().any(|plugin| plugin.is_tcpx) {
        return Ok(Outcome::not_applicable("GPUDirect-TCPX is not found"));
    }
    let sockets = cx.probes().tcpx_sockets.as_ref();
    let sockets = sockets.ok_or_else(|| Unknown(format!("{UNIX} was not read")))?;
    let told = if sockets.is_empty() { "none of its sockets".into() } else { sockets.join(", ") };
    let mut outcome = Outcome::default();
    if !sockets.iter().any(|socket| socket == RULES) {
        let what = format!("nobody listens on the socket {RULES}");
        outcome.found(Finding::new(what).because(UNIX, &told));
        return Ok(outcome);
    }
    for gpu in &cx.topology().gpus {
        let address = gpu.pci.address.to_string();
        match sockets.iter().find(|socket| is_of_gpu(socket, &address)) {
            Some(socket) => outcome.saw(UNIX, socket),
            None => outcome.found(
                Finding::new("the daemon has no memory of this GPU")
                    .about(format!("GPU {}", gpu.index))
                    .because(UNIX, &told),
            ),
        }
    }
    Ok(outcome)
}

fn devmem_landing(cx: &Context) -> Result<Outcome, Unknown> {
    /// Packets to ignore: handshakes and acknowledgements always come unsplit.
    const FEW: u64 = 1000;
    if let Some(outcome) = not_asked(cx) {
        return Ok(outcome);
    }
    let mut outcome = Outcome::default();
    let mut counts = false;
    for nic in cx.rails() {
        let told =
            |probe: &NicProbe| (!probe.errors.contains_key("stats")).then(|| probe.devmem.clone());
        let counters = match cx.probe(nic, "stats", told) {
            Ok(counters) => counters,
            Err(Unknown(why)) => {
                counts = true;
                outcome.unknown(why);
                continue;
            }
        };
        if counters.is_empty() {
            continue;
        }
        counts = true;
        let asked = format!("ethtool -S {}", nic.name);
        let told: Vec<String> =
            counters.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let count = |of: &str| counters.get(of).copied().unwrap_or_default();
        let (split, unsplit) = (count("rx_hsplit_pkt"), count("rx_hsplit_unsplit_pkt"));
        if unsplit > split && unsplit > FEW {
            let what = format!("{unsplit} packets came unsplit, and {split} split");
            outcome.found(Finding::new(what).about(&nic.name).because(asked, told.join(", ")));
        } else {
            outcome.saw(asked, told.join(", "));
        }
    }
    match counts || cx.rails().is_empty() {
        true => Ok(no_rails_means_nothing(outcome)),
        false => Ok(Outcome::not_applicable("no driver counts that")),
    }
}
