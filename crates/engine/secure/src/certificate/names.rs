//! Names on a certificate.

use webpki::EndEntityCert;

use super::CertificateError;

const SPIFFE: &str = "spiffe://";
/// Maximum length of a SPIFFE ID that the standard requires readers to accept.
const SPIFFE_MAX: usize = 2048;

/// Returns the DNS names of a certificate in lower case, and its SPIFFE ID. A certificate with a SPIFFE ID has no other
/// URI: with two, it would be ambiguous which one counts (X509-SVID, 2).
pub(super) fn names_of(leaf: &EndEntityCert<'_>) -> Result<Vec<String>, CertificateError> {
    let mut names: Vec<String> = leaf.valid_dns_names().map(str::to_ascii_lowercase).collect();
    let uris: Vec<&str> = leaf.valid_uri_names().collect();
    if uris.iter().any(|uri| is_of_scheme(uri)) {
        match uris[..] {
            [id] if is_spiffe_id(id) => names.push(id.to_owned()),
            _ => return Err(CertificateError::Nameless),
        }
    }
    if names.is_empty() { Err(CertificateError::Nameless) } else { Ok(names) }
}

fn is_of_scheme(uri: &str) -> bool {
    uri.get(..SPIFFE.len() - 2).is_some_and(|scheme| scheme.eq_ignore_ascii_case("spiffe:"))
}

/// Returns whether the ID conforms to the standard (SPIFFE-ID, 2): then equal texts are equal names, and no part of a
/// path leads elsewhere.
fn is_spiffe_id(id: &str) -> bool {
    let Some(name) = id.strip_prefix(SPIFFE) else { return false };
    let (domain, path) = name.split_once('/').map_or((name, None), |(d, path)| (d, Some(path)));
    let of_domain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    let of_path = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let is_part = |part: &str| !["", ".", ".."].contains(&part) && part.bytes().all(of_path);
    id.len() <= SPIFFE_MAX
        && !domain.is_empty()
        && domain.bytes().all(of_domain)
        && path.is_none_or(|path| path.split('/').all(is_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spiffe_id_is_as_the_standard_wants_it() {
        for id in ["spiffe://a.example", "spiffe://a_b-1.c/ns/default/sa/Train-3_x.y"] {
            assert!(is_spiffe_id(id), "{id}");
        }
        for id in [
            "spiffe://",
            "spiffe:///path",
            "spiffe://a/",
            "spiffe://a//b",
            "spiffe://a/./b",
            "spiffe://a/b/..",
            "spiffe://A/b",
            "SPIFFE://a/b",
            "spiffe://a:80/b",
            "spiffe://u@a/b",
            "spiffe://a/b?c",
            "spiffe://a/b#c",
            "spiffe://a/b%2fc",
            "spiffe://a/ü",
            "https://a/b",
        ] {
            assert!(!is_spiffe_id(id), "{id}");
        }
        assert!(!is_spiffe_id(&format!("spiffe://a/{}", "b".repeat(SPIFFE_MAX))));
        assert!(is_of_scheme("SPIFFE://A") && !is_of_scheme("spiff") && !is_of_scheme("spiffx://"));
    }
}
