//! First words of `plan` and `apply`: the subject of a plan, and its values.

use polyrail_nic::Group;
use polyrail_tune::nic::Spread;
use polyrail_tune::profile::Profile;

use super::fix::check_id;
use super::words::{conflict, excess, missing, refused};
use crate::fault::Fault;
use crate::stdout::excerpt;
use crate::values::{Refusal, interface, profile_name};

/// The subject of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum What {
    /// The CPUs that the interrupts of each queue go to.
    Irq,
    /// The CPUs of the threads of each interface, as settings for programs; there is nothing to apply.
    Bindings,
    /// Settings for fast TCP: a profile, or --profile-file.
    Tune,
    /// The number of queues of an interface.
    Channels,
    /// The number of packets that each queue holds.
    Rings,
    /// The time that an interrupt waits for more packets.
    Coalesce,
    /// The spread of received packets over the queues (RSS).
    Rss,
    /// The settings that fix what a check of `polyrail doctor` has found.
    Fix,
}

/// The subject of a plan with its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Irq,
    Bindings,
    /// The name of a built-in profile. `None`: the profile comes from a file.
    Tune(Option<String>),
    /// Settings of an interface.
    Setting(Group, String, Vec<(String, u32)>),
    Rss(String, Spread),
    /// The ID of a check.
    Fix(String),
}

impl What {
    /// The word of the command line.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Irq => "irq",
            Self::Bindings => "bindings",
            Self::Tune => "tune",
            Self::Channels => "channels",
            Self::Rings => "rings",
            Self::Coalesce => "coalesce",
            Self::Rss => "rss",
            Self::Fix => "fix",
        }
    }

    /// Options for this subject. `plan` and `apply` refuse others.
    pub(super) fn options(self) -> &'static [&'static str] {
        match self {
            Self::Irq => &[
                "--nic",
                "--irqbalance",
                "--policy",
                "--map",
                "--cpus",
                "--avoid",
                "--tx-bindings",
                "--rx-bindings",
                "--output",
            ],
            Self::Bindings => &["--nic", "--avoid", "--shared"],
            Self::Tune => &["--nic", "--profile-file", "--output"],
            Self::Channels | Self::Rings | Self::Coalesce | Self::Rss => &["--output"],
            Self::Fix => &["--nic", "--output"],
        }
    }
}

impl Subject {
    /// Reads the values after the first word.
    ///
    /// # Errors
    /// A fault that names the value.
    pub(super) fn read(what: What, values: &[String], has_file: bool) -> Result<Self, Fault> {
        match what {
            What::Irq | What::Bindings => match values {
                [] if what == What::Irq => Ok(Self::Irq),
                [] => Ok(Self::Bindings),
                [value, ..] => Err(excess(value, "--nic NICS, for single interfaces")),
            },
            What::Tune => match values {
                [] if has_file => Ok(Self::Tune(None)),
                [] => {
                    let profiles = Profile::built_in().map_err(Fault::from)?;
                    let names: Vec<&str> = profiles.iter().map(|one| one.name.as_str()).collect();
                    Err(missing(&format!("{}, or --profile-file FILE", names.join(", "))))
                }
                [name] if has_file => {
                    Err(conflict("--profile-file", &format!("`{}`", excerpt(name))))
                }
                [name] => match profile_name(name) {
                    Ok(name) => Ok(Self::Tune(Some(name))),
                    Err(refusal) => Err(refused(name, &refusal)),
                },
                [_, value, ..] => Err(excess(value, "one profile")),
            },
            What::Channels => setting(Group::Channels, values),
            What::Rings => setting(Group::Rings, values),
            What::Coalesce => setting(Group::Coalesce, values),
            What::Rss => {
                let form = "an interface and equal=NUMBER or weights=NUMBER,NUMBER,…";
                let (nic, rest) = split_nic(values, form)?;
                match rest {
                    [] => Err(missing(form)),
                    [text] => match spread(text) {
                        Ok(spread) => Ok(Self::Rss(nic, spread)),
                        Err(refusal) => Err(refused(text, &refusal)),
                    },
                    [_, value, ..] => Err(excess(value, form)),
                }
            }
            What::Fix => match values {
                [] => Err(missing("the ID of a check that `polyrail doctor` shows")),
                [id] => match check_id(id) {
                    Ok(id) => Ok(Self::Fix(id)),
                    Err(refusal) => Err(refused(id, &refusal)),
                },
                [_, value, ..] => Err(excess(value, "one check")),
            },
        }
    }
}

fn setting(group: Group, values: &[String]) -> Result<Subject, Fault> {
    let form = "an interface and NAME=NUMBER, once or more";
    let (nic, rest) = split_nic(values, form)?;
    if rest.is_empty() && nic.contains('=') {
        let refusal = Refusal::new("stands where the interface belongs", form);
        return Err(refused(&nic, &refusal.with_help("`polyrail host show` lists the interfaces")));
    }
    if rest.is_empty() {
        let show = format!("`polyrail host show {} {nic}` shows the names", group.name());
        return Err(missing(form).with_help(show));
    }
    let mut values: Vec<(String, u32)> = Vec::new();
    for text in rest {
        let (name, value) = assignment(text).map_err(|refusal| refused(text, &refusal))?;
        if let Some((_, before)) = values.iter().find(|(known, _)| *known == name) {
            let fault = format!("sets {name} again, after {name}={before}");
            let refusal = Refusal::new(fault, "each setting once");
            return Err(refused(text, &refusal.with_help("leave one of them out")));
        }
        values.push((name, value));
    }
    Ok(Subject::Setting(group, nic, values))
}

/// Splits the values into the interface, which comes first, and the rest.
pub(super) fn split_nic<'a>(
    values: &'a [String],
    form: &str,
) -> Result<(String, &'a [String]), Fault> {
    let [nic, rest @ ..] = values else { return Err(missing(form)) };
    match interface(nic) {
        Ok(nic) => Ok((nic, rest)),
        Err(refusal) => Err(refused(nic, &refusal)),
    }
}

fn assignment(text: &str) -> Result<(String, u32), Refusal> {
    let allowed = "NAME=NUMBER, the number from 0 to 4294967295";
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| Refusal::new("is not NAME=NUMBER", allowed).with_help("as in rx=2048"))?;
    let is_good = |one: char| one.is_ascii_alphanumeric() || one == '-' || one == '_';
    if name.is_empty() || !name.chars().all(is_good) {
        return Err(Refusal::new("has no name of a setting before `=`", allowed));
    }
    Ok((name.to_owned(), number(value, allowed)?))
}

fn number(text: &str, allowed: &str) -> Result<u32, Refusal> {
    text.parse()
        .map_err(|_| Refusal::new(format!("`{}` is not such a number", excerpt(text)), allowed))
}

fn spread(text: &str) -> Result<Spread, Refusal> {
    let allowed = "equal=NUMBER or weights=NUMBER,NUMBER,…, numbers from 0 to 4294967295";
    let unknown = || Refusal::new("is neither equal=NUMBER nor weights=NUMBER,NUMBER,…", allowed);
    let (name, value) = text.split_once('=').ok_or_else(unknown)?;
    let number = |value: &str| number(value, allowed);
    match name {
        "equal" => Ok(Spread::Equal(number(value)?)),
        "weights" => value.split(',').map(number).collect::<Result<_, _>>().map(Spread::Weights),
        _ => Err(unknown()),
    }
}
