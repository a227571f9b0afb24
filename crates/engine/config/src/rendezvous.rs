//! Rendezvous of engines.

use std::time::Duration;

use polyrail_yaml::excerpt;

use crate::invalid::Invalid;
use crate::number::parse_time;
use crate::suggest;

/// Rendezvous of engines; a value of the setting `rendezvous` that is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rendezvous {
    /// Files in a folder that all engines see.
    Dir {
        /// Path of the folder, from `/`.
        folder: String,
        /// Time without a sign of life after which an engine is gone.
        lease: Duration,
    },
    /// Keys in etcd.
    Etcd {
        /// Members of etcd, each a host and a port; one that answers is enough.
        hosts: Vec<(String, u16)>,
        /// Prefix of the keys, without a slash at either end.
        prefix: String,
        /// Time without a sign of life after which an engine is gone.
        lease: Duration,
        /// File with `user:password` in its first line.
        user_file: Option<String>,
    },
    /// Ranks of a job: rank 0 listens, the others send it their addresses.
    Ranks {
        /// Launcher of the job.
        launcher: Launcher,
        /// Host of rank 0, unless the launcher provides it.
        host: Option<String>,
        /// Port of rank 0, if not the launcher's.
        port: Option<u16>,
    },
    /// Addresses of a DNS name.
    Dns {
        /// DNS name.
        name: String,
        /// Port that each engine listens on.
        port: u16,
        /// Interval of name resolution.
        every: Duration,
    },
}

/// Launcher of the ranks of a job, which sets environment variables about the other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// Slurm's `srun`.
    Slurm,
    /// `mpirun` of Open MPI, MPICH or Intel MPI.
    Mpi,
    /// PyTorch's `torchrun`.
    Torchrun,
}

impl Launcher {
    /// Returns the name as in a value of the setting.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Mpi => "mpi",
            Self::Torchrun => "torchrun",
        }
    }
}

/// Allowed forms, as text.
pub(crate) const FORMS: &str = "empty (none), dir:///FOLDER, etcd://HOST:PORT/PREFIX, \
     dns://NAME:PORT, slurm://, mpi://, torchrun://";

const SCHEMES: [&str; 6] = ["dir", "etcd", "dns", "slurm", "mpi", "torchrun"];
const LONGEST_HOST_BYTES: usize = 253;
const MOST_HOSTS: usize = 16;
const ETCD_PORT: u16 = 2379;
const LEASES: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(3600));
const PERIODS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3600));

impl Rendezvous {
    /// Reads a value. Returns `None` if the program itself exchanges metadata.
    ///
    /// # Errors
    /// The fault, as a phrase that follows the value.
    pub fn parse(text: &str) -> Result<Option<Self>, Invalid> {
        if text.is_empty() {
            return Ok(None);
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(Invalid::because("has no `://`").help("write it like etcd://node1:2379"));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.split('/').next().is_some_and(|host| host.contains('@')) && scheme != "dir" {
            let reason = "has a user before its host, which others could see";
            return Err(Invalid::because(reason)
                .help("give a file: etcd://node1:2379?user_file=/path, or ETCDCTL_USER"));
        }
        let mut options = Options::parse(query)?;
        let found = match scheme {
            "dir" => dir(rest, &mut options)?,
            "etcd" => etcd(rest, &mut options)?,
            "etcds" | "https" | "http" => {
                let reason = format!("begins with `{scheme}://`, and only `etcd://` is spoken");
                return Err(Invalid::because(reason).help(
                    "for TLS run `etcd grpc-proxy` or stunnel on this host, and name its address",
                ));
            }
            "dns" => dns(rest, &mut options)?,
            "slurm" => ranks(Launcher::Slurm, rest)?,
            "mpi" => ranks(Launcher::Mpi, rest)?,
            "torchrun" => ranks(Launcher::Torchrun, rest)?,
            _ => {
                let near = suggest::closest(scheme, SCHEMES);
                let help = near.map(|near| format!("did you mean `{near}://`?"));
                let invalid = Invalid::because(format!(
                    "begins with `{}://`, which is none of the schemes",
                    excerpt(scheme)
                ));
                return Err(
                    invalid.help(help.unwrap_or_else(|| "docs/rendezvous.md has them".to_owned()))
                );
            }
        };
        options.end(scheme)?;
        Ok(Some(found))
    }
}

fn dir(rest: &str, options: &mut Options<'_>) -> Result<Rendezvous, Invalid> {
    if !rest.starts_with('/') || rest.len() < 2 {
        return Err(Invalid::because("has a folder that does not begin with `/`")
            .help("write it with three slashes, like dir:///shared/polyrail"));
    }
    let lease = options.time("lease", Duration::from_secs(30), LEASES)?;
    Ok(Rendezvous::Dir { folder: rest.to_owned(), lease })
}

fn etcd(rest: &str, options: &mut Options<'_>) -> Result<Rendezvous, Invalid> {
    let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let hosts: Vec<_> = hosts
        .split(',')
        .map(|one| {
            let (host, port) = host_and_port(one)?;
            let host = host.ok_or_else(|| {
                Invalid::because("has no host").help("write it like etcd://node1:2379/polyrail")
            })?;
            Ok((host, port.unwrap_or(ETCD_PORT)))
        })
        .collect::<Result<_, Invalid>>()?;
    if hosts.len() > MOST_HOSTS {
        let reason = format!("has {} hosts, and {MOST_HOSTS} are the most", hosts.len());
        return Err(Invalid::because(reason).help("a few members of the cluster are enough"));
    }
    let prefix = prefix.trim_end_matches('/');
    let is_known = |one: u8| one.is_ascii_alphanumeric() || b"._-/".contains(&one);
    if !prefix.bytes().all(is_known) || prefix.len() > 128 || prefix.contains("//") {
        return Err(Invalid::because("has a prefix with other characters than names have")
            .help("write letters, digits, `.`, `_`, `-` and single `/`, 128 at most"));
    }
    let prefix = if prefix.is_empty() { "polyrail" } else { prefix };
    Ok(Rendezvous::Etcd {
        hosts,
        prefix: prefix.to_owned(),
        lease: options.time("lease", Duration::from_secs(10), LEASES)?,
        user_file: options.path("user_file")?,
    })
}

fn dns(rest: &str, options: &mut Options<'_>) -> Result<Rendezvous, Invalid> {
    let (Some(name), Some(port)) = host_and_port(rest)? else {
        return Err(Invalid::because("has no name or no port").help(
            "write it like dns://workers.default.svc:29600; engines have listen_port=29600",
        ));
    };
    let every = options.time("every", Duration::from_secs(5), PERIODS)?;
    Ok(Rendezvous::Dns { name, port, every })
}

fn ranks(launcher: Launcher, rest: &str) -> Result<Rendezvous, Invalid> {
    let (host, port) = host_and_port(rest)?;
    Ok(Rendezvous::Ranks { launcher, host, port })
}

/// Reads `HOST`, `HOST:PORT`, `:PORT`, `[IPV6]:PORT` or nothing.
fn host_and_port(text: &str) -> Result<(Option<String>, Option<u16>), Invalid> {
    let bad_host = |host: &str| {
        let reason = format!("has the host `{}`", excerpt(host));
        Invalid::because(reason).help("write a name, an IPv4 address, or an IPv6 address in []")
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => {
            let (host, rest) = inner.split_once(']').ok_or_else(|| bad_host(text))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(bad_host(host));
            }
            match rest.strip_prefix(':') {
                None if rest.is_empty() => (host, None),
                None => return Err(bad_host(text)),
                Some(port) => (host, Some(port)),
            }
        }
        None => {
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            };
            let is_name = |one: u8| one.is_ascii_alphanumeric() || b".-_".contains(&one);
            if !host.bytes().all(is_name) || host.len() > LONGEST_HOST_BYTES {
                return Err(bad_host(host));
            }
            (host, port)
        }
    };
    let port = port.map(|port| match port.parse::<u16>() {
        Ok(port) if port > 0 && !text.contains('+') => Ok(port),
        _ => Err(Invalid::because(format!("has the port `{}`", excerpt(port)))
            .help("give a port from 1 to 65535")),
    });
    Ok(((!host.is_empty()).then(|| host.to_owned()), port.transpose()?))
}

/// Options after the `?`.
struct Options<'a> {
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> Options<'a> {
    fn parse(query: &'a str) -> Result<Self, Invalid> {
        let mut left: Vec<(&str, &str)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if left.iter().any(|(other, _)| *other == name) {
                let reason = format!("has `{}` twice", excerpt(name));
                return Err(Invalid::because(reason).help("leave one of them out"));
            }
            left.push((name, value));
        }
        Ok(Self { left })
    }

    fn take(&mut self, name: &str) -> Option<&'a str> {
        let at = self.left.iter().position(|(other, _)| *other == name)?;
        Some(self.left.swap_remove(at).1)
    }

    fn time(
        &mut self,
        name: &str,
        default: Duration,
        (min, max): (Duration, Duration),
    ) -> Result<Duration, Invalid> {
        let Some(text) = self.take(name) else { return Ok(default) };
        let time = parse_time(text).map_err(|error| {
            let reason = format!("has {name} `{}`, which {}", excerpt(text), error.reason);
            Invalid::because(reason).help(error.help.unwrap_or_else(|| format!("{name}=10s")))
        })?;
        match (min..=max).contains(&time) {
            true => Ok(time),
            false => {
                let reason = format!("has {name} `{}`, which is out of range", text);
                Err(Invalid::because(reason).help(format!("{name} may be {min:?} to {max:?}")))
            }
        }
    }

    fn path(&mut self, name: &str) -> Result<Option<String>, Invalid> {
        match self.take(name) {
            Some(path) if !path.starts_with('/') => {
                let reason = format!("has a {name} that does not begin with `/`");
                Err(Invalid::because(reason).help(format!("write it like {name}=/etc/etcd.user")))
            }
            path => Ok(path.map(str::to_owned)),
        }
    }

    /// Refuses options that were not used.
    fn end(self, scheme: &str) -> Result<(), Invalid> {
        let Some((name, _)) = self.left.first() else { return Ok(()) };
        let known = match scheme {
            "dir" => "lease",
            "etcd" => "lease and user_file",
            "dns" => "every",
            _ => "none; a host and a port stand behind `://`",
        };
        let reason = format!("has `{}`, which `{scheme}://` doesn't know", excerpt(name));
        Err(Invalid::because(reason).help(format!("options of `{scheme}://`: {known}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Rendezvous {
        Rendezvous::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).unwrap()
    }

    #[test]
    fn each_form_is_read() {
        assert_eq!(Rendezvous::parse(""), Ok(None));
        let lease = Duration::from_secs(30);
        let folder = "/shared/polyrail".to_owned();
        assert_eq!(read("dir:///shared/polyrail"), Rendezvous::Dir { folder, lease });

        let plain = Rendezvous::Etcd {
            hosts: vec![("node1".to_owned(), 2379)],
            prefix: "polyrail".to_owned(),
            lease: Duration::from_secs(10),
            user_file: None,
        };
        assert_eq!(read("etcd://node1"), plain);
        assert_eq!(read("etcd://node1:2379/"), plain);
        let hosts = [("10.0.0.1", 1), ("::1", 2), ("c", 2379)];
        let full = Rendezvous::Etcd {
            hosts: hosts.map(|(host, port)| (host.to_owned(), port)).to_vec(),
            prefix: "jobs/7".to_owned(),
            lease: Duration::from_secs(5),
            user_file: Some("/etc/user".to_owned()),
        };
        assert_eq!(read("etcd://10.0.0.1:1,[::1]:2,c/jobs/7?lease=5s&user_file=/etc/user"), full);

        let (name, every) = ("workers.default.svc".to_owned(), Duration::from_millis(500));
        let found = read("dns://workers.default.svc:29600?every=500ms");
        assert_eq!(found, Rendezvous::Dns { name, port: 29600, every });

        for (text, launcher, host, port) in [
            ("slurm://", Launcher::Slurm, None, None),
            ("mpi://:29600", Launcher::Mpi, None, Some(29600)),
            ("torchrun://node1", Launcher::Torchrun, Some("node1"), None),
        ] {
            let host = host.map(str::to_owned);
            assert_eq!(read(text), Rendezvous::Ranks { launcher, host, port });
            assert!(text.starts_with(launcher.scheme()));
        }
    }

    #[test]
    fn anything_else_is_refused_with_its_fault_and_a_hint() {
        for (text, reason) in [
            ("node1:2379", "has no `://`"),
            ("ectd://node1", "none of the schemes"),
            ("etcds://node1", "only `etcd://` is spoken"),
            ("etcd://", "has no host"),
            ("etcd://a,,b", "has no host"),
            ("etcd://root:secret@node1", "has a user before its host"),
            ("etcd://node1:0", "has the port `0`"),
            ("etcd://node1:70000", "has the port `70000`"),
            ("etcd://node1:+5", "has the port `+5`"),
            ("etcd://no de", "has the host `no de`"),
            ("etcd://[::1", "has the host `[::1`"),
            ("etcd://[::x]:1", "has the host `::x`"),
            ("etcd://node1/a//b", "has a prefix"),
            ("etcd://node1/a%2fb", "has a prefix"),
            ("etcd://node1?lease=1s", "has lease `1s`, which is out of range"),
            ("etcd://node1?lease=10", "has lease `10`, which has no unit"),
            ("etcd://node1?lease=5s&lease=6s", "has `lease` twice"),
            ("etcd://node1?ttl=5s", "has `ttl`, which `etcd://` doesn't know"),
            ("etcd://node1?user_file=user", "a user_file that does not begin with `/`"),
            ("dir://shared", "has a folder that does not begin with `/`"),
            ("dir:///", "has a folder that does not begin with `/`"),
            ("dns://workers", "has no name or no port"),
            ("dns://:5", "has no name or no port"),
            ("slurm://?port=5", "has `port`, which `slurm://` doesn't know"),
        ] {
            let invalid = Rendezvous::parse(text).unwrap_err();
            assert!(invalid.reason.contains(reason), "{text}: {invalid}");
            assert!(invalid.help.is_some(), "{text}");
        }
        let near = Rendezvous::parse("ectd://node1").unwrap_err();
        assert_eq!(near.help.as_deref(), Some("did you mean `etcd://`?"));
        let many = format!("etcd://{}", vec!["a"; 17].join(","));
        assert!(Rendezvous::parse(&many).unwrap_err().reason.contains("has 17 hosts"));
    }
}
