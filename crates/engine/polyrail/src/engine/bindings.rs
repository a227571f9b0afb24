//! CPUs that the settings bind interfaces to.

use std::thread::{Builder, ScopedJoinHandle};

use polyrail_config::{Binding, Config, parse_bindings};
use polyrail_sys::threads::{allowed_cpus, bind_current};

use crate::base::error::{EngineError, origin_of};

/// More CPUs than any machine has. The kernel ignores those that don't exist.
const CPUS_MAX: u32 = 1024;

/// Reads bindings. This process can use all CPUs of the result.
///
/// Bindings may name CPUs outside the caller's affinity: users put `taskset` around a program with
/// bindings to keep its other threads off the CPUs of the proxies.
pub(crate) fn bindings(
    config: &Config,
    (setting, text): (&'static str, &str),
) -> Result<Vec<Binding>, EngineError> {
    // The configuration has checked the syntax, so an error means no bindings.
    let mut bindings = parse_bindings(text).unwrap_or_default();
    if bindings.is_empty() {
        return Ok(bindings);
    }
    let possible = bindable_cpus()?;
    if bindings.iter().flat_map(|b| &b.cpus).all(|cpu| possible.contains(cpu)) {
        return Ok(bindings);
    }
    let numbers: Vec<String> = possible.iter().map(u32::to_string).collect();
    let (got, origin) = (text.to_owned(), origin_of(config, setting));
    if !origin.is_foreign() {
        return Err(EngineError::Cpus { setting, got, origin, allowed: numbers.join(",") });
    }
    tracing::warn!(target: "polyrail::proxy", value = text, allowed = numbers.join(","),
        "{}: CPUs that this process can't use are left out", origin.place());
    bindings.retain_mut(|binding| {
        binding.cpus.retain(|cpu| possible.contains(cpu));
        !binding.cpus.is_empty()
    });
    Ok(bindings)
}

/// The CPUs that threads of this process can be bound to: the online CPUs of its cgroup.
fn bindable_cpus() -> Result<Vec<u32>, EngineError> {
    let every: Vec<u32> = (0..CPUS_MAX).collect();
    // A separate thread, because the affinity that it tries stays with it.
    let tried = std::thread::scope(|scope| {
        let try_all = || bind_current(&every).and_then(|()| allowed_cpus());
        Builder::new().spawn_scoped(scope, try_all).map(ScopedJoinHandle::join)
    });
    match tried {
        Ok(Ok(Ok(cpus))) => Ok(cpus),
        // Only the CPUs of this thread are usable where binding or another thread is forbidden.
        _ => usable_cpus(),
    }
}

/// CPUs that this thread may use.
pub(crate) fn usable_cpus() -> Result<Vec<u32>, EngineError> {
    allowed_cpus().map_err(|source| EngineError::System { what: "CPUs", source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_outside_of_the_machine_are_refused_by_setting() {
        let config = Config::builder().set("tx_bindings", "lo:8000").unwrap().build().unwrap();
        let of = |setting, text: &str| bindings(&config, (setting, text));
        let error = of("tx_bindings", "lo:8000").unwrap_err().to_string();
        assert!(error.starts_with("tx_bindings = `lo:8000` (from an option"), "{error}");
        assert!(error.contains("; allowed: "), "{error}");
        let first = bindable_cpus().unwrap()[0];
        assert_eq!(of("tx_bindings", &format!("lo:{first}")).unwrap()[0].cpus, [first]);
        assert_eq!(of("rx_bindings", "").unwrap(), []);
    }

    #[test]
    fn bindings_of_another_tool_lose_the_cpus_that_are_not_here() {
        let first = bindable_cpus().unwrap()[0];
        let text = format!("lo:{first},8000;eth1:8001");
        let variable = ("NCCL_GPUDIRECTTCPX_TX_BINDINGS".to_owned(), text.clone());
        let config = Config::builder().env_from([variable]).build().unwrap();
        let left = bindings(&config, ("tx_bindings", &text)).unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!((left[0].interface.as_deref(), &left[0].cpus[..]), (Some("lo"), &[first][..]));
    }
}
