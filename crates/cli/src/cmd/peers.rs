//! `polyrail peers`: shows the members of a group.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use polyrail::{Config, Engine, Explain};
use polyrail_rendezvous::{
    Event, Group, Member, Membership, Name, RendezvousError, Watcher, join, look,
};
use polyrail_report::{Align, Table, counted, exit};
use serde_json::{Value, json};
use signal_hook::flag;

use crate::config_args::{self, ConfigArgs, print_warnings, told};
use crate::progress::Progress;
use crate::signals;
use crate::stdout::{complain, fitted, print, refuse, say_to_reader, start_log, tell};
use crate::values::{Refusal, number_within, time};

/// Version of the JSON, raised when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

/// Interval between checks whether the user wants to end, which causes no event.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Arguments of the subcommand.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The group.
    #[arg(long, value_name = "GROUP", default_value = "default", value_parser = name)]
    group: Name,

    /// Join the group under this name, and be seen by the others, until the end. Ranks and DNS are
    /// always joined.
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<Name>,

    /// Wait for so many members, this one included if it joins [default: all ranks, or none].
    #[arg(long, value_name = "COUNT", value_parser = number_within(1, 1_000_000))]
    wait: Option<u64>,

    /// How long joining, or the first answer, and waiting for them may take together.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    timeout: Duration,

    /// Go on, and tell who joins and who leaves, for this long [default: until Ctrl-C].
    #[arg(long, value_name = "TIME", num_args = 0..=1, value_parser = time)]
    watch: Option<Option<Duration>>,

    /// Print JSON; with --watch a line for each change.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

const EXAMPLES: &str = "\
Examples:
  polyrail peers --set rendezvous=dir:///shared/polyrail --group trainers
  polyrail peers --set rendezvous=etcd://node1:2379 --group trainers --watch
  srun polyrail peers --set rendezvous=slurm://

docs/rendezvous.md (in packages: /usr/share/doc/polyrail/docs) describes every rendezvous.";

/// A membership, or a view from outside.
enum View {
    Member(Group),
    Outside(Watcher),
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let config = match args.config.resolve() {
        Ok(config) => config,
        Err(error) => return config_args::refuse(&error),
    };
    print_warnings(&config);
    let config = told(config);
    if let Err(error) = start_log(&config) {
        let help = Some(error.help().to_owned());
        return refuse(&error, help, config_args::code_of_log(&error));
    }
    let (stopped, is_entering) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    for signal in signals::ending() {
        // Joining may block for as long as a lease, and can't be stopped. Until it is done, a signal ends the process
        // at once.
        let code = i32::from(exit::INTERRUPTED);
        let _ = flag::register_conditional_shutdown(signal, code, Arc::clone(&is_entering));
        // If this fails, a signal ends the process at once, and the other members notice it later.
        let _ = flag::register(signal, Arc::clone(&stopped));
    }
    let begin = Instant::now();
    let progress = Progress::waiting("joining");
    let view = match enter(args, &config) {
        Ok(view) => view,
        Err(code) => {
            drop(progress);
            return code;
        }
    };
    is_entering.store(false, Ordering::Relaxed);
    let wanted = args.wait.and_then(|count| usize::try_from(count).ok()).or(view.expected());
    progress.say("waiting for members");
    let left = args.timeout.saturating_sub(begin.elapsed());
    let members = view.wait(wanted.unwrap_or(0), left, &stopped);
    progress.clear();
    drop(progress);
    let code = match members {
        Some(_) => exit::OK,
        None if stopped.load(Ordering::Relaxed) => exit::INTERRUPTED,
        None => {
            complain(
                &format!(
                    "--wait: within {:?} the group `{}` had {}; wanted: {}",
                    args.timeout,
                    args.group,
                    counted((view.members().len() + view.own()) as u64, "member"),
                    wanted.map_or("an answer".to_owned(), |count| count.to_string()),
                ),
                Some("see that the others use the same rendezvous and group, or give --timeout"),
            );
            exit::VERDICT
        }
    };
    if let Some(limit) = args.watch.filter(|_| code == exit::OK) {
        watch(args, limit, &view, &stopped);
        return ExitCode::from(exit::OK);
    }
    print(&shown(args, &config, &view.members()), code)
}

fn enter(args: &Args, config: &Config) -> Result<View, ExitCode> {
    let failed = |error: RendezvousError| refuse(&error, error.help(), error.exit_code());
    if args.name.is_none() {
        match look(config, &args.group, args.timeout) {
            Err(RendezvousError::MembersOnly { .. }) => {}
            looked => return looked.map(View::Outside).map_err(failed),
        }
    }
    let engine = Engine::builder().config(config.clone()).build();
    let engine = engine.map_err(|error| refuse(&error, error.help(), error.exit_code()))?;
    let membership = Membership::new(args.group.as_str())
        .and_then(|it| match &args.name {
            Some(name) => it.name(name.as_str()),
            None => Ok(it),
        })
        .map_err(|error| failed(error.into()))?
        .timeout(args.timeout);
    join(&engine, &membership).map(View::Member).map_err(failed)
}

impl View {
    fn wait(&self, count: usize, timeout: Duration, stopped: &AtomicBool) -> Option<Vec<Member>> {
        let until = Instant::now().checked_add(timeout);
        loop {
            let left = until.map_or(LOOK_EVERY, |it| it.saturating_duration_since(Instant::now()));
            let slice = left.min(LOOK_EVERY);
            let found = match self {
                Self::Member(group) => group.wait_for(count, slice),
                Self::Outside(watcher) => watcher.wait_for(count, slice),
            };
            if found.is_some() || left.is_zero() || stopped.load(Ordering::Relaxed) {
                return found;
            }
        }
    }

    fn next_event(&self) -> Option<Event> {
        match self {
            Self::Member(group) => group.next_event(LOOK_EVERY),
            Self::Outside(watcher) => watcher.next_event(LOOK_EVERY),
        }
    }

    fn members(&self) -> Vec<Member> {
        match self {
            Self::Member(group) => group.members(),
            Self::Outside(watcher) => watcher.members(),
        }
    }

    /// Number of members that the launcher has started.
    fn expected(&self) -> Option<usize> {
        match self {
            Self::Member(group) => group.expected(),
            Self::Outside(_) => None,
        }
    }

    /// 1 if this process is a member, else 0.
    fn own(&self) -> usize {
        usize::from(matches!(self, Self::Member(_)))
    }
}

fn watch(args: &Args, limit: Option<Duration>, view: &View, stopped: &AtomicBool) {
    let end = limit.map(|limit| Instant::now() + limit);
    tell!("polyrail: watching the group {}", args.group);
    while !stopped.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        let Some(event) = view.next_event() else { continue };
        let (what, name, member) = match &event {
            Event::Joined(member) => ("joined", member.name(), Some(member)),
            Event::Left { name } => ("left", name.as_str(), None),
            _ => continue,
        };
        let line = match args.json {
            true => {
                let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let document = json!({
                    "schema_version": SCHEMA_VERSION,
                    "time_unix_s": time.as_secs_f64(),
                    "event": what,
                    "name": name,
                    "member": member.map(document),
                });
                document.to_string()
            }
            false => match member.and_then(Member::card) {
                Some(card) => format!("{what} {name} {} {}", card.engine, list(&card.addresses)),
                None => format!("{what} {name}"),
            },
        };
        if say_to_reader(&line).is_err() {
            return;
        }
    }
}

fn shown(args: &Args, config: &Config, members: &[Member]) -> String {
    if args.json {
        let members: Vec<Value> = members.iter().map(document).collect();
        let document = json!({
            "schema_version": SCHEMA_VERSION,
            "rendezvous": config.rendezvous,
            "group": args.group.as_str(),
            "members": members,
        });
        return format!("{document:#}\n");
    }
    if members.is_empty() {
        let who = if args.name.is_some() { "nobody else" } else { "nobody" };
        // A wrong name, or a disk that is not mounted, looks like this.
        let folder = config.rendezvous.strip_prefix("dir://");
        let folder = folder.and_then(|place| place.split('?').next());
        let why = folder.filter(|it| !Path::new(it).exists()).map_or_else(String::new, |folder| {
            format!("; there is no folder {folder}: who joins first makes it")
        });
        return format!("{who} is in the group {}{why}\n", args.group);
    }
    let mut table = ["name", "engine", "instance", "addresses"]
        .into_iter()
        .fold(Table::default(), |table, heading| table.column(heading, Align::Left));
    for member in members {
        let unknown = || "?".to_owned();
        let card = member.card();
        table.row([
            member.name().to_owned(),
            card.as_ref().map_or_else(unknown, |card| card.engine.clone()),
            card.as_ref().map_or_else(unknown, |card| card.instance.clone()),
            card.as_ref().map_or_else(unknown, |card| list(&card.addresses)),
        ]);
    }
    fitted(&table)
}

/// A member as JSON, without its metadata, which would let the reader in.
fn document(member: &Member) -> Value {
    let card = member.card();
    json!({
        "name": member.name(),
        "engine": card.as_ref().map(|card| &card.engine),
        "instance": card.as_ref().map(|card| &card.instance),
        "addresses": card.as_ref().map(|card| &card.addresses),
    })
}

fn list(addresses: &[std::net::SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn name(text: &str) -> Result<Name, Refusal> {
    let parsed: Result<Name, _> = text.parse();
    parsed.map_err(|error| {
        let refusal = Refusal::new(error.fault(), Name::ALLOWED);
        refusal.with_help("engines of one group find each other; each has a name of its own there")
    })
}
