//! Kubernetes' service links: the variables that every container gets for each Service of its namespace. A Service
//! `polyrail-exporter` brings `POLYRAIL_EXPORTER_PORT=tcp://10.96.0.7:9754`, which is not a setting.

use std::net::IpAddr;

/// Returns whether a variable is a service link, by the form of both its name and its value: no value of a setting has
/// that form.
pub(crate) fn is_link(name: &str, value: &str) -> bool {
    link(name, value).is_some()
}

const HOST: &str = "_SERVICE_HOST";

/// Returns the Service of a link, in the spelling of variables.
fn link<'a>(name: &'a str, value: &str) -> Option<&'a str> {
    let host = || name.strip_suffix(HOST).filter(|_| is_address(value));
    let service_port = || {
        let (service, port) = name.split_once("_SERVICE_PORT")?;
        let is_named = port.is_empty() || (port.len() > 1 && port.starts_with('_'));
        (is_named && is_port(value)).then_some(service)
    };
    let port = || name.strip_suffix("_PORT").filter(|_| is_url(value));
    let one_port = || {
        let (service, port) = name.rsplit_once("_PORT_")?;
        is_of_one_port(port, value).then_some(service)
    };
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let service = host().or_else(service_port).or_else(port).or_else(one_port)?;
    (!service.is_empty() && service.chars().all(is_name)).then_some(service)
}

/// Matches `9754_TCP`, alone or with `_PROTO`, `_PORT` or `_ADDR`.
fn is_of_one_port(port: &str, value: &str) -> bool {
    let mut parts = port.split('_');
    let (Some(number), Some(protocol)) = (parts.next(), parts.next()) else { return false };
    if !is_port(number) || !PROTOCOLS.contains(&protocol.to_ascii_lowercase().as_str()) {
        return false;
    }
    let fits = match parts.next() {
        None => is_url(value),
        Some("PROTO") => PROTOCOLS.contains(&value),
        Some("PORT") => is_port(value),
        Some("ADDR") => is_address(value),
        Some(_) => false,
    };
    fits && parts.next().is_none()
}

const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];

fn is_address(value: &str) -> bool {
    value.parse::<IpAddr>().is_ok()
}

fn is_port(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_digit()) && value.parse::<u16>().is_ok()
}

/// Matches `tcp://10.96.0.7:9754`; `tcp://[fd00::7]:9754`.
fn is_url(value: &str) -> bool {
    let Some((protocol, rest)) = value.split_once("://") else { return false };
    let Some((host, port)) = rest.rsplit_once(':') else { return false };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    PROTOCOLS.contains(&protocol) && is_port(port) && is_address(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TABLE;

    /// Every form that exists, for a Service with this spelling.
    fn links(service: &str) -> Vec<(String, String)> {
        let mut all = vec![
            ("_SERVICE_HOST".to_owned(), "10.96.0.7"),
            ("_SERVICE_HOST".to_owned(), "fd00::7"),
            ("_SERVICE_PORT".to_owned(), "9754"),
            ("_SERVICE_PORT_METRICS".to_owned(), "9754"),
            ("_SERVICE_PORT_HTTP_PORT_2".to_owned(), "1"),
            ("_PORT".to_owned(), "tcp://10.96.0.7:9754"),
            ("_PORT".to_owned(), "tcp://[fd00::7]:9754"),
            ("_PORT".to_owned(), "sctp://10.96.0.7:65535"),
        ];
        for (protocol, url, short) in [
            ("TCP", "tcp://10.96.0.7:9754", "tcp"),
            ("UDP", "udp://10.96.0.7:9754", "udp"),
            ("SCTP", "sctp://10.96.0.7:9754", "sctp"),
        ] {
            let port = |end: &str| format!("_PORT_9754_{protocol}{end}");
            all.extend([
                (port(""), url),
                (port("_PROTO"), short),
                (port("_PORT"), "9754"),
                (port("_ADDR"), "10.96.0.7"),
            ]);
        }
        all.into_iter().map(|(end, value)| (format!("{service}{end}"), value.to_owned())).collect()
    }

    #[test]
    fn every_form_of_a_link_is_recognised() {
        for service in [
            "POLYRAIL",
            "POLYRAIL_EXPORTER",
            "POLYRAIL_2",
            "POLYRAIL_PORT_MAPPER",
            "POLYRAIL_SERVICE",
        ] {
            for (name, value) in links(service) {
                assert!(is_link(&name, &value), "{name}={value}");
            }
        }
        for (name, value) in links("POLYRAIL_EXPORTER") {
            assert_eq!(link(&name, &value), Some("POLYRAIL_EXPORTER"), "{name}={value}");
        }
    }

    #[test]
    fn a_form_with_another_value_is_not_a_link() {
        for (name, value) in [
            ("POLYRAIL_PORT", "9754"),
            ("POLYRAIL_LISTN_PORT", "9754"),
            ("POLYRAIL_LISTEN_PORTT", "tcp://10.96.0.7:9754"),
            ("POLYRAIL_PORT", "tcp://host:9754"),
            ("POLYRAIL_PORT", "http://10.96.0.7:9754"),
            ("POLYRAIL_SERVICE_HOST", "on"),
            ("POLYRAIL_SERVICE_PORT", "+5"),
            ("POLYRAIL_SERVICE_PORT_", "5"),
            ("POLYRAIL_SERVICE_PORTS", "5"),
            ("POLYRAIL_SERVICE_PORT", "99999"),
            ("POLYRAIL_PORT_9754_TCP_ADDR", "eth0"),
            ("POLYRAIL_PORT_9754_TCP_ADDR_X", "10.0.0.1"),
            ("POLYRAIL_PORT_9754_ICMP", "tcp://10.96.0.7:9754"),
            ("POLYRAIL_PORT_X_TCP", "tcp://10.96.0.7:9754"),
            ("POLYRAIL_PORT_", "tcp://10.96.0.7:9754"),
        ] {
            assert!(!is_link(name, value), "{name}={value}");
        }
    }

    #[test]
    fn no_value_of_a_setting_is_taken_for_a_link() {
        let values = links("X").into_iter().map(|(_, value)| value);
        let values: Vec<String> =
            values.chain(["0", "1", "on", "auto"].map(str::to_owned)).collect();
        for spec in TABLE {
            for value in &values {
                let is_value = spec.kind.parse(value).is_ok();
                assert!(!(is_value && is_link(&spec.env_name(), value)), "{}={value}", spec.name);
            }
        }
    }
}
