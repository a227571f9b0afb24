//! The plugin that NCCL loads here, for `polyrail doctor`.

use polyrail_doctor::{Answer, Evidence, Finding};

use super::findings::Verdict;
use super::{Found, look};
use crate::libraries::{
    VARIABLE, listed, named, near_folders, quoted, refuse_bare_of_others, refuse_of_others,
};
use crate::values::library_name;

/// Loads the plugin in a separate process, as NCCL does, and asks for its devices.
pub(in crate::cmd) fn installed() -> Answer {
    let named = named();
    let name = named.as_deref().unwrap_or("polyrail");
    if name.eq_ignore_ascii_case("none") {
        return Answer::Absent(format!("{VARIABLE}={name} keeps NCCL from loading a plugin"));
    }
    if let Err(refusal) = library_name(name) {
        let finding = Finding::new(format!("the value of {VARIABLE} {refusal}"));
        return Answer::Fails(finding.because(VARIABLE, name));
    }
    let file = format!("libnccl-net-{name}.so");
    if let Err(fault) = refuse_bare_of_others(&[name, &file]) {
        return Answer::Unknown(fault.message);
    }
    match look(name) {
        Ok(found) if found.is_missing => {}
        Ok(found) => return judge(&found),
        Err(error) => return untried(&error),
    }
    let folders = near_folders();
    let Some(folder) = folders.iter().find(|folder| folder.join(&file).exists()) else {
        let sought = format!("where the dynamic loader looks, in {}", listed(&folders));
        return match named {
            None => Answer::Absent(format!("there is no {file} {sought}")),
            Some(name) => {
                let what = format!("{VARIABLE} names a plugin that is not there");
                let finding = Finding::new(what).because(VARIABLE, name).because(sought, "nothing");
                Answer::Fails(finding.command("polyrail nccl install FOLDER"))
            }
        };
    };
    let path = folder.join(&file);
    if let Err(fault) = refuse_of_others(&path) {
        return Answer::Unknown(fault.message);
    }
    match look(&path.display().to_string()) {
        Ok(found) => match judge(&found) {
            Answer::Works(evidence) => {
                let folder = quoted(folder);
                let what = "NCCL does not find the plugin: LD_LIBRARY_PATH lacks its folder";
                let finding = Finding { evidence, ..Finding::new(what) };
                let command = format!("eval \"$(polyrail nccl env --folder {folder})\"");
                Answer::Fails(finding.command(command))
            }
            other => other,
        },
        Err(error) => untried(&error),
    }
}

fn untried(error: &std::io::Error) -> Answer {
    Answer::Unknown(format!("the plugin can't be tried: {error}"))
}

fn judge(found: &Found) -> Answer {
    let findings = &found.findings;
    let versions: Vec<String> =
        findings.tables.iter().map(|table| format!("v{}", table.version)).collect();
    let tables = match versions.as_slice() {
        [] => "is not loaded".to_owned(),
        _ => format!("tables {}", versions.join(", ")),
    };
    let library = Evidence::new(&findings.library, tables);
    match (findings.verdict, &findings.fault) {
        (Verdict::Works | Verdict::WorksOddly, _) => {
            let devices = findings.devices.iter().map(|device| {
                let pci = device.pci_path.as_deref().unwrap_or("none");
                let text = format!("{} Mbit/s, PCI {pci}", device.speed());
                Evidence::new(format!("device {}", device.name), text)
            });
            Answer::Works([library].into_iter().chain(devices).collect())
        }
        (Verdict::NoDevice, _) | (_, None) => {
            let finding = Finding::new("NCCL finds no device");
            Answer::Fails(Finding { evidence: vec![library], ..finding })
        }
        (_, Some(fault)) if fault.text.contains("Dynamic loading not supported") => {
            Answer::Absent("this program is linked statically, so it opens no library".to_owned())
        }
        (_, Some(fault)) => {
            let words = fault.last_words.iter().map(|line| Evidence::new("it said", line));
            let evidence = [library].into_iter().chain(words).collect();
            Answer::Fails(Finding { evidence, ..Finding::new(&fault.text) })
        }
    }
}
