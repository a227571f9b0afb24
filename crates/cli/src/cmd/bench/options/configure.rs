//! Conversion of the options into the settings in effect, at both ends.

use polyrail_config::{Config, ConfigBuilder, Origin, Progress};
use polyrail_nccl_ref::Nccl;

use super::args::Args;
use super::choices::{Against, not_devices};
use super::memory_kind::MemoryKind;
use super::near::{NEAR, near_rails};
use super::placement::{Placed, place};
use super::role::{Role, loopback_rails};
use crate::fault::Fault;
use crate::stdout::excerpt;

/// Reason that is shown with the proposed `path`, which the user did not set.
const RAILS_ALONE: &str =
    "bench measures rails unless told otherwise; --path auto allows the other ways";

/// Reason that is shown with the proposed `address_family`.
const ADDRESSES_OF_IPV6: &str = "the addresses to connect to or to listen on are all IPv6";

impl Args {
    /// Returns the settings in effect for this role.
    ///
    /// `more` are settings that this program chose; the settings that the user gave were checked before.
    pub(crate) fn resolve_config(
        &self,
        role: &Role,
        more: &[(&str, String)],
    ) -> Result<Config, Fault> {
        let given = self.builder()?.build()?;
        if let Role::Lab { rates } = role
            && given.origin("rails") == Some(&Origin::Set)
        {
            self.refuse_rails_outside(&given, rates.len())?;
        }
        let mut builder = self.builder()?;
        if let Some(rails) = self.default_rails(role, given.origin("rails")) {
            builder = builder.set("rails", &rails)?;
        }
        let is_given = |name| given.origin(name).is_some_and(Origin::is_explicit);
        if role.is_ipv6() && !is_given("address_family") && !given.names_rails() {
            builder = builder.propose("address_family", "ipv6", ADDRESSES_OF_IPV6)?;
        }
        // `bench` measures rails, even between two ends on one host, unless the user chooses another path.
        let is_host = |mem: &MemoryKind| *mem == MemoryKind::Host;
        let is_between_hosts = is_host(&self.mem) && is_host(&self.peer_mem);
        if self.is_of_rails() {
            builder = builder.set("path", "tcp")?;
        } else if is_between_hosts && !is_given("path") {
            // Connections of callers would share memory.
            let path = if given.progress == Progress::Caller { "tcp" } else { "device" };
            builder = builder.propose("path", path, RAILS_ALONE)?;
        }
        if let Role::Listen { addresses } = role
            && let Some(address) = addresses.first()
        {
            let port = address.port();
            // In a given range of ports this is the first port to try. Further engines take the ports after it.
            let ports = &given.listen_port;
            let ports = match ports.contains(&port) && port != *ports.end() {
                true => format!("{port}-{}", ports.end()),
                false => port.to_string(),
            };
            builder = builder.set("listen_port", &ports)?;
        }
        for (name, value) in more {
            builder = builder.set(name, value)?;
        }
        Ok(builder.build()?)
    }

    /// Returns the names of the settings that the options give, without those of files and variables.
    pub(crate) fn given(&self) -> Result<Vec<&'static str>, Fault> {
        let config = self.builder()?.build()?;
        let names = config.rows().into_iter().map(|row| row.name);
        Ok(names.filter(|name| config.origin(name) == Some(&Origin::Set)).collect())
    }

    /// Checks that the measurements can be combined, and that everything that they need is available.
    pub(crate) fn check_schedule(&self, config: &Config) -> Result<(), Fault> {
        let schedule = self.schedule();
        schedule.validate(config.ops_pool)?;
        let [cuda, nccl] =
            [Against::Cuda, Against::Nccl].map(|who| schedule.against.contains(&who));
        if (cuda || nccl) && (self.mem == MemoryKind::Host || self.lab.is_some()) {
            return Err(not_devices(if cuda { "cuda" } else { "nccl" }));
        }
        if schedule.against.contains(&Against::Raw) && self.one_process {
            let reason = "takes two processes";
            return Err(Fault::usage("--against", "raw", reason, "without --one-process"));
        }
        let modes: Vec<String> = self.nccl_modes.iter().map(ToString::to_string).collect();
        let modes = Some(modes.join(",")).filter(|modes| !modes.is_empty());
        let library = self.nccl_lib.as_ref().map(|path| excerpt(&path.to_string_lossy()));
        let mut of_nccl = [("--nccl-modes", modes), ("--nccl-lib", library)].into_iter();
        if let Some((option, value)) = of_nccl.find_map(|(option, value)| Some((option, value?)))
            && !nccl
        {
            let reason = "is for what is measured against NCCL";
            return Err(Fault::usage(option, value, reason, "with --against nccl"));
        }
        if nccl {
            // Load the library now, before the measurements, so that an error comes early.
            Nccl::load(schedule.nccl_library.as_deref())?;
        }
        Ok(())
    }

    /// Whether standard output is for a program.
    pub(crate) fn is_for_programs(&self) -> bool {
        [&self.json, &self.csv].into_iter().flatten().any(|file| file.as_os_str() == "-")
    }

    /// Chooses CPUs for the progress threads, if the settings leave them open.
    pub(crate) fn place(&self, role: &Role) -> Result<Placed, Fault> {
        let config = self.resolve_config(role, &[])?;
        Ok(place(&config, role, self.inside_lab.is_some(), self.place)?)
    }

    /// Refuses rails that no lab with this number of rails has. Addresses of one end don't exist at the other.
    fn refuse_rails_outside(&self, given: &Config, count: usize) -> Result<(), Fault> {
        let rails = &*given.rails;
        let (is_exact, list) = rails.strip_prefix('=').map_or((false, rails), |list| (true, list));
        let is_inside = |word: &str| {
            let mut names = (0..count).map(|rail| format!("{LAB_RAILS}{rail}"));
            word.starts_with("plugin:")
                || names.any(|name| if is_exact { name == word } else { name.starts_with(word) })
        };
        if !given.names_rails() || list.split(',').map(str::trim).all(is_inside) {
            return Ok(());
        }
        let option = if self.rails.is_some() { "--rails" } else { "--set rails" };
        let value = self.rails.as_deref().unwrap_or(rails);
        let allowed = format!("rail0 to rail{}, which --lab makes", count - 1);
        Err(Fault::usage(option, value, "is not in the lab", allowed))
    }

    /// Returns rails for roles that the engine's own choice can't fit. For others the engine chooses the interfaces.
    fn default_rails(&self, role: &Role, origin: Option<&Origin>) -> Option<String> {
        if matches!(role, Role::Lab { .. }) || self.inside_lab.is_some() {
            // Rails that a file or the environment names are those of the machine, not of the lab.
            return (origin != Some(&Origin::Set)).then(|| LAB_RAILS.to_owned());
        }
        if origin.is_some_and(Origin::is_explicit) {
            return None;
        }
        match role {
            Role::Both => Some(loopback(DEFAULT_RAILS)),
            Role::NcclRank => Some(loopback(1)),
            Role::Connect(server) => loopback_rails(&server.addresses),
            // A name that also has another address is meant to be reached from other hosts.
            Role::Listen { addresses } if addresses.iter().all(|one| one.ip().is_loopback()) => {
                loopback_rails(addresses)
            }
            _ => None,
        }
    }

    fn builder(&self) -> Result<ConfigBuilder, Fault> {
        let mut builder = self.config.builder()?;
        let rails = self.rails.as_deref().map(|rails| match rails.parse() {
            Ok(count) => Ok(loopback(count)),
            Err(_) if rails == NEAR => near_rails(self.mem),
            Err(_) => Ok(rails.to_owned()),
        });
        if let Some(rails) = rails {
            builder = builder.set("rails", &rails?)?;
        }
        for (setting, value) in [
            ("path", self.path.as_deref()),
            ("verbose_bindings", self.verbose_bindings.then_some("true")),
        ] {
            if let Some(value) = value {
                builder = builder.set(setting, value)?;
            }
        }
        Ok(builder)
    }
}

const DEFAULT_RAILS: u32 = 4;
pub(super) const LOOPBACK_MAX: u32 = 64;
/// Prefix that matches every rail of a lab.
const LAB_RAILS: &str = "rail";

fn loopback(count: u32) -> String {
    let addresses: Vec<String> = (1..=count).map(|host| format!("127.0.0.{host}")).collect();
    addresses.join(",")
}

#[cfg(test)]
pub(crate) mod tests {
    use polyrail_config::{AddressFamily, PathChoice, Proxies};

    use super::super::args::tests::args;
    use super::*;

    pub(crate) fn config(text: &str) -> Config {
        let args = args(text);
        args.resolve_config(&args.role().unwrap(), &[]).unwrap()
    }

    #[test]
    fn without_options_four_loopback_rails_are_measured() {
        assert_eq!(config("").rails, "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4");
        assert!(matches!(args("").role(), Ok(Role::Both)));
        assert_eq!(args("--sizes 1KiB,2KiB,1KiB").schedule().sizes, [1 << 10, 2 << 10]);
        assert_eq!(args("").schedule().sizes, [64 << 10, 1 << 20, 16 << 20, 256 << 20]);
    }

    #[test]
    fn a_number_of_rails_means_loopback_and_a_text_means_itself() {
        assert_eq!(config("--rails 2").rails, "127.0.0.1,127.0.0.2");
        assert_eq!(config("--rails eth").rails, "eth");
    }

    #[test]
    fn between_host_memories_rails_are_measured_and_with_a_gpu_the_best_way() {
        for (text, expected) in [
            ("", PathChoice::Device),
            ("--path auto", PathChoice::Auto),
            ("--mem cuda:0", PathChoice::Auto),
            ("--peer-mem cuda:0", PathChoice::Auto),
            ("--peer-mem cuda:0 --path device", PathChoice::Device),
        ] {
            assert_eq!(config(text).path, expected, "{text}");
            let is_ours = matches!(config(text).origin("path"), Some(Origin::Proposal { .. }));
            assert_eq!(is_ours, text.is_empty(), "{text}");
        }
    }

    #[test]
    fn options_and_set_give_settings() {
        let config =
            config("--rails eth --path tcp --verbose-bindings --set channels=8 --set proxies=2,3");
        assert_eq!((&*config.rails, config.path), ("eth", PathChoice::Tcp));
        assert!(config.verbose_bindings);
        assert_eq!((config.channels, config.proxies), (8, Proxies { tx: 2, rx: 3 }));
    }

    #[test]
    fn a_client_elsewhere_picks_its_interfaces_itself_and_one_on_loopback_its_address() {
        assert_eq!(config("--connect 10.1.2.3:99").rails, "auto");
        assert_eq!(config("--connect 127.0.0.1:99").rails, "127.0.0.1");
        assert_eq!(
            config("--connect 127.0.0.2:99,10.1.2.3:99,127.0.0.1:99").rails,
            "127.0.0.1,127.0.0.2"
        );
        assert_eq!(config("--listen 127.0.0.9:99").rails, "127.0.0.9");
        assert_eq!(config("--listen 127.0.0.9:99").listen_port, 99..=99);
        assert_eq!(config("--listen 127.0.0.9:99 --rails 2").listen_port, 99..=99);
        let ranged =
            |at: u16| config(&format!("--listen 127.0.0.9:{at} --set listen_port=5000-5003"));
        assert_eq!(ranged(5001).listen_port, 5001..=5003);
        assert_eq!(ranged(6000).listen_port, 6000..=6000);
        assert_eq!(config("--listen 127.0.0.9:0").listen_port, 0..=0);
        let family = |text| config(text).address_family;
        for ipv6 in ["--connect [fd00::1]:99", "--listen [fd00::1]:99 --rails ^eth"] {
            assert_eq!(family(ipv6), AddressFamily::Ipv6, "{ipv6}");
        }
        for any in [
            "--connect [fd00::1]:99,10.0.0.1:99",
            "--connect [fd00::1]:99 --rails eth1",
            "--connect [::1]:99",
            "--connect [fd00::1]:99 --set address_family=auto",
        ] {
            assert_eq!(family(any), AddressFamily::Auto, "{any}");
        }
        assert_eq!(config("--lab 4x1gbit").rails, "rail");
        assert_eq!(config("--lab 4x1gbit --rails rail1").rails, "rail1");
    }
}
