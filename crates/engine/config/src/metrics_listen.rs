//! Address where a process serves its metrics.

use std::net::SocketAddr;

use crate::file_name;
use crate::invalid::Invalid;

/// Address of a process's metrics; a value of the setting `metrics_listen` that names one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetricsListen {
    /// On a TCP port.
    Tcp(SocketAddr),
    /// On a Unix socket of this name, which may hold the marks of [`crate::expand_file_name`].
    Unix(String),
    /// On a Unix socket with its own name in this folder, whose name may hold the same marks.
    Folder(String),
}

/// Allowed forms, as text.
pub(crate) const FORMS: &str = "empty (for `polyrail top` alone), off, ADDRESS:PORT, \
     unix:/path/to/file.sock, or dir:/path/to/folder; %h host, %p process";

impl MetricsListen {
    /// Value with which a process serves no metrics, not even to `polyrail top`.
    pub const OFF: &str = "off";

    /// Reads a value. Returns `None` if it names no address.
    ///
    /// # Errors
    /// The fault, as a phrase that follows the value.
    pub fn parse(text: &str) -> Result<Option<Self>, Invalid> {
        if text.is_empty() || text == Self::OFF {
            return Ok(None);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            check_path(path, "unix:/run/polyrail/%p.sock")?;
            return Ok(Some(Self::Unix(path.to_owned())));
        }
        if let Some(path) = text.strip_prefix("dir:") {
            check_path(path, "dir:/run/polyrail")?;
            return Ok(Some(Self::Folder(path.to_owned())));
        }
        let Ok(address) = text.parse::<SocketAddr>() else {
            return Err(Invalid::because("is in none of the allowed forms").help(
                "write it like 127.0.0.1:9754, unix:/run/polyrail/%p.sock or dir:/run/polyrail",
            ));
        };
        if address.port() == 0 {
            return Err(Invalid::because("has port 0, which nobody could scrape").help(
                "give a port from 1 to 65535; several processes of a host share dir:FOLDER",
            ));
        }
        Ok(Some(Self::Tcp(address)))
    }
}

fn check_path(path: &str, example: &str) -> Result<(), Invalid> {
    if !path.starts_with('/') {
        let reason = "has a path that does not begin with `/`";
        return Err(Invalid::because(reason).help(format!("write it like {example}")));
    }
    file_name::check(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_read() {
        assert_eq!(MetricsListen::parse(""), Ok(None));
        assert_eq!(MetricsListen::parse("off"), Ok(None));
        let tcp = MetricsListen::Tcp("[::1]:9754".parse().unwrap());
        assert_eq!(MetricsListen::parse("[::1]:9754"), Ok(Some(tcp)));
        let unix = MetricsListen::Unix("/run/%p.sock".to_owned());
        assert_eq!(MetricsListen::parse("unix:/run/%p.sock"), Ok(Some(unix)));
        let folder = MetricsListen::Folder("/run/polyrail".to_owned());
        assert_eq!(MetricsListen::parse("dir:/run/polyrail"), Ok(Some(folder)));
    }

    #[test]
    fn anything_else_is_refused_with_a_hint() {
        for (text, reason) in [
            ("9754", "none of the allowed forms"),
            ("localhost:9754", "none of the allowed forms"),
            ("127.0.0.1:70000", "none of the allowed forms"),
            ("http://127.0.0.1:9754", "none of the allowed forms"),
            ("127.0.0.1:0", "has port 0"),
            ("unix:", "does not begin with `/`"),
            ("dir:metrics", "does not begin with `/`"),
            ("dir:/run/%d", "unknown mark `%d`"),
        ] {
            let invalid = MetricsListen::parse(text).unwrap_err();
            assert!(invalid.reason.contains(reason), "{text}: {invalid}");
            assert!(invalid.help.is_some(), "{text}");
        }
    }
}
