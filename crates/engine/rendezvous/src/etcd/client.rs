//! Calls of etcd's JSON gateway that the rendezvous uses.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::http::{Answer, Connection};
use crate::error::RendezvousError;
use crate::stop::Stop;

/// Client of an etcd cluster. Asks one host at a time.
pub(crate) struct Client {
    /// The place as written in the setting, for messages.
    place: String,
    hosts: Vec<(String, u16)>,
    /// Index of the host in use.
    at: usize,
    connection: Option<Connection>,
    user: Option<User>,
    token: Option<String>,
}

/// Name and password of an etcd user.
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
}

pub(crate) struct Watch {
    connection: Connection,
}

/// Changes of keys up to a revision. The revision is 0 if there are none.
pub(crate) struct Happened {
    pub(crate) revision: i64,
    /// Changed keys with their values, or `None` for deleted keys.
    pub(crate) changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

/// Keys with their values.
pub(crate) type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Result of a conditional put.
pub(crate) enum Put {
    Done,
    /// The key exists with this value.
    Taken(Held),
    /// The key no longer exists.
    Gone,
}

/// A key that exists.
#[derive(PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) value: Vec<u8>,
    /// Lease of the key. `None` if the key stays until it is deleted.
    pub(crate) lease: Option<String>,
}

/// Times of a lease, in seconds.
#[derive(Deserialize)]
struct TimeToLive {
    #[serde(rename = "TTL", default)]
    left: String,
    #[serde(rename = "grantedTTL", default)]
    granted: String,
}

#[derive(Deserialize)]
struct KeyValue {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    lease: String,
    #[serde(default)]
    mod_revision: String,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    revision: String,
}

#[derive(Deserialize)]
struct Range {
    header: Header,
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct Txn {
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<TxnPart>,
}

#[derive(Deserialize)]
struct TxnPart {
    response_range: Option<Range>,
}

#[derive(Deserialize)]
struct Granted {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "TTL", default)]
    ttl: String,
}

#[derive(Deserialize)]
struct KeptAlive {
    result: Option<Kept>,
}

#[derive(Deserialize)]
struct Kept {
    #[serde(rename = "TTL", default)]
    ttl: String,
}

#[derive(Deserialize)]
struct Authenticated {
    token: String,
}

#[derive(Deserialize)]
struct WatchLine {
    result: Option<WatchResult>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct WatchResult {
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    cancel_reason: String,
    #[serde(default)]
    events: Vec<WatchEvent>,
}

#[derive(Deserialize)]
struct WatchEvent {
    #[serde(rename = "type", default)]
    kind: String,
    kv: KeyValue,
}

impl Client {
    pub(crate) fn new(place: &str, hosts: &[(String, u16)], user: Option<User>) -> Self {
        Self {
            place: place.to_owned(),
            hosts: hosts.to_vec(),
            at: 0,
            connection: None,
            user,
            token: None,
        }
    }

    /// Takes a lease of `seconds`. Returns its id and the seconds that etcd granted, at least one.
    pub(crate) fn grant(
        &mut self,
        seconds: u64,
        stop: &Stop,
    ) -> Result<(String, u64), RendezvousError> {
        let body = json!({ "TTL": seconds });
        let granted: Granted = self.call("/v3/lease/grant", &body, stop)?;
        // A lease without a time would be renewed without a pause.
        match granted.ttl.parse() {
            Ok(seconds) if seconds > 0 => Ok((granted.id, seconds)),
            _ => Err(self.nonsense("it gave a lease without a time")),
        }
    }

    /// Renews a lease for its whole time. Returns false if etcd no longer knows it.
    pub(crate) fn keep_alive(&mut self, lease: &str, stop: &Stop) -> Result<bool, RendezvousError> {
        let kept: KeptAlive = self.call("/v3/lease/keepalive", &json!({ "ID": lease }), stop)?;
        Ok(kept.result.is_some_and(|kept| kept.ttl.parse::<u64>().is_ok_and(|left| left > 0)))
    }

    /// Returns the granted and the remaining seconds of a lease, or `None` if it is over.
    pub(crate) fn time_to_live(
        &mut self,
        lease: &str,
        stop: &Stop,
    ) -> Result<Option<(u64, u64)>, RendezvousError> {
        let time: TimeToLive = self.call("/v3/lease/timetolive", &json!({ "ID": lease }), stop)?;
        Ok(time.granted.parse().ok().zip(time.left.parse().ok()))
    }

    /// Ends a lease, which deletes its keys.
    pub(crate) fn revoke(&mut self, lease: &str, stop: &Stop) -> Result<(), RendezvousError> {
        self.call::<Value>("/v3/lease/revoke", &json!({ "ID": lease }), stop).map(drop)
    }

    /// Puts a key that does not exist yet, or replaces one whose value is `old`.
    pub(crate) fn put_new(
        &mut self,
        key: &[u8],
        value: &[u8],
        lease: &str,
        old: Option<&[u8]>,
        stop: &Stop,
    ) -> Result<Put, RendezvousError> {
        let (key, value) = (STANDARD.encode(key), STANDARD.encode(value));
        let compare = match old {
            None => {
                json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": 0 })
            }
            Some(old) => json!({
                "key": key, "target": "VALUE", "result": "EQUAL", "value": STANDARD.encode(old),
            }),
        };
        let body = json!({
            "compare": [compare],
            "success": [{ "request_put": { "key": key, "value": value, "lease": lease } }],
            "failure": [{ "request_range": { "key": key } }],
        });
        let answer: Txn = self.call("/v3/kv/txn", &body, stop)?;
        if answer.succeeded {
            return Ok(Put::Done);
        }
        let found = answer.responses.into_iter().find_map(|part| part.response_range);
        let Some(found) = found.and_then(|range| range.kvs.into_iter().next()) else {
            return Ok(Put::Gone);
        };
        let has_lease = !matches!(found.lease.as_str(), "" | "0");
        Ok(Put::Taken(Held {
            value: self.bytes(&found.value)?,
            lease: has_lease.then_some(found.lease),
        }))
    }

    /// Returns all keys with this prefix, and the revision of the table.
    pub(crate) fn list(
        &mut self,
        prefix: &[u8],
        stop: &Stop,
    ) -> Result<(Pairs, i64), RendezvousError> {
        let (begin, end) = range_of(prefix);
        let range: Range =
            self.call("/v3/kv/range", &json!({ "key": begin, "range_end": end }), stop)?;
        let mut all = BTreeMap::new();
        for found in &range.kvs {
            all.insert(self.bytes(&found.key)?, self.bytes(&found.value)?);
        }
        Ok((all, self.revision(&range.header)?))
    }

    /// Checks that etcd answers. Reads below the prefix, because a user may have rights there only.
    pub(crate) fn ping(&mut self, prefix: &[u8], stop: &Stop) -> Result<(), RendezvousError> {
        let (begin, end) = range_of(prefix);
        let body = json!({ "key": begin, "range_end": end, "limit": "1", "keys_only": true });
        self.call::<Range>("/v3/kv/range", &body, stop).map(drop)
    }

    /// Watches the keys with this prefix, from a revision on.
    pub(crate) fn watch(
        &mut self,
        prefix: &[u8],
        from: i64,
        stop: &Stop,
    ) -> Result<Watch, RendezvousError> {
        let (begin, end) = range_of(prefix);
        let request = json!({
            "create_request": { "key": begin, "range_end": end, "start_revision": from.to_string() },
        });
        let (host, port) = self.hosts[self.at].clone();
        let body = request.to_string();
        let began = Connection::open(&host, port, stop).and_then(|mut connection| {
            let began =
                connection.begin("/v3/watch", self.token.as_deref(), body.as_bytes(), stop)?;
            Ok(began.map(|()| connection))
        });
        match began {
            Ok(Ok(connection)) => Ok(Watch { connection }),
            Ok(Err(answer)) => {
                self.token = None;
                Err(self.refused(&answer))
            }
            Err(error) => Err(self.no_answer(&[(self.at, error)])),
        }
    }

    /// Waits for changes until the deadline. Returns `None` if there are none. Fails also if etcd ends the watch, for
    /// instance because it has compacted the revisions since.
    pub(crate) fn next(
        &mut self,
        watch: &mut Watch,
        until: Instant,
    ) -> Result<Option<Happened>, RendezvousError> {
        let line = match watch.connection.line(until) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.no_answer(&[(self.at, error)])),
        };
        let line: WatchLine = self.read(&line)?;
        let result = match line {
            WatchLine { result: Some(result), .. } if !result.canceled => result,
            WatchLine { result, error } => {
                let why = match (result, error) {
                    (Some(result), _) if !result.cancel_reason.is_empty() => result.cancel_reason,
                    (_, Some(error)) => error.to_string(),
                    _ => "it gave no reason".to_owned(),
                };
                return Err(self.ended(&why));
            }
        };
        // The header has the current revision. This message may cover only a part of the changes up to it.
        let mut revision = 0;
        let mut changes = Vec::new();
        for event in result.events {
            let at = event.kv.mod_revision.parse();
            revision = revision.max(at.map_err(|_| self.nonsense("it gave no revision"))?);
            let value = match event.kind.as_str() {
                "DELETE" => None,
                _ => Some(self.bytes(&event.kv.value)?),
            };
            changes.push((self.bytes(&event.kv.key)?, value));
        }
        Ok(Some(Happened { revision, changes }))
    }

    /// Drops the connection. The next call asks another host.
    pub(crate) fn turn(&mut self) {
        self.connection = None;
        self.at = (self.at + 1) % self.hosts.len();
    }

    fn call<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &Value,
        stop: &Stop,
    ) -> Result<T, RendezvousError> {
        let mut is_second = false;
        loop {
            if self.token.is_none() && self.user.is_some() {
                self.authenticate(stop)?;
            }
            let answer = self.ask(path, body, stop)?;
            if answer.code == 200 {
                return self.read(&answer.body);
            }
            // Tokens expire.
            let is_stale = self.token.take().is_some()
                && String::from_utf8_lossy(&answer.body).contains("invalid auth token");
            if !is_stale || std::mem::replace(&mut is_second, true) {
                return Err(self.refused(&answer));
            }
        }
    }

    fn authenticate(&mut self, stop: &Stop) -> Result<(), RendezvousError> {
        let Some(user) = &self.user else { return Ok(()) };
        let body = json!({ "name": user.name, "password": user.password });
        let answer = self.ask("/v3/auth/authenticate", &body, stop)?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        // A cluster without authentication needs no user.
        if text.contains("authentication is not enabled") {
            self.user = None;
            return Ok(());
        }
        if answer.code != 200 {
            return Err(self.refused(&answer));
        }
        let told: Authenticated = self.read(&answer.body)?;
        self.token = Some(told.token);
        Ok(())
    }

    /// Asks the hosts one after another until one answers.
    fn ask(&mut self, path: &str, body: &Value, stop: &Stop) -> Result<Answer, RendezvousError> {
        let body = body.to_string();
        let mut failed = Vec::new();
        // The other end may have closed an idle connection. That is not an error.
        if let Some(connection) = &mut self.connection {
            match connection.ask(path, self.token.as_deref(), body.as_bytes(), stop) {
                Ok(answer) => return Ok(answer),
                Err(_) => self.connection = None,
            }
        }
        while failed.len() < self.hosts.len() && !stop.is_over() {
            let (host, port) = &self.hosts[self.at];
            let answer = Connection::open(host, *port, stop).and_then(|mut connection| {
                let token = self.token.as_deref();
                let answer = connection.ask(path, token, body.as_bytes(), stop)?;
                Ok((connection, answer))
            });
            match answer {
                Ok((connection, answer)) => {
                    self.connection = Some(connection);
                    return Ok(answer);
                }
                Err(error) => {
                    failed.push((self.at, error));
                    self.turn();
                }
            }
        }
        Err(self.no_answer(&failed))
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, RendezvousError> {
        serde_json::from_slice(body).map_err(|error| self.nonsense(&error.to_string()))
    }

    fn bytes(&self, text: &str) -> Result<Vec<u8>, RendezvousError> {
        STANDARD.decode(text).map_err(|error| self.nonsense(&error.to_string()))
    }

    fn revision(&self, header: &Header) -> Result<i64, RendezvousError> {
        header.revision.parse().map_err(|_| self.nonsense("it gave no revision"))
    }

    fn no_answer(&self, failed: &[(usize, io::Error)]) -> RendezvousError {
        let told: Vec<String> = failed
            .iter()
            .map(|(at, error)| {
                let (host, port) = &self.hosts[*at];
                format!("{host}:{port}: {error}")
            })
            .collect();
        let why =
            if told.is_empty() { "there was no time left".to_owned() } else { told.join("; ") };
        RendezvousError::Unreachable { place: self.place.clone(), why }
    }

    /// Error for a name that is taken by a key without a lease.
    pub(crate) fn kept(&self, key: &str) -> RendezvousError {
        RendezvousError::Refused {
            place: self.place.clone(),
            why: format!(
                "the key `{key}` has the name, and no lease: it is no engine's, and stays"
            ),
            help: format!("give another name, or delete it: `etcdctl del {key}`"),
        }
    }

    fn ended(&self, why: &str) -> RendezvousError {
        RendezvousError::Refused {
            place: self.place.clone(),
            why: format!("etcd has ended the watch: {}", excerpt(why)),
            help: "nothing: the group is read anew".to_owned(),
        }
    }

    fn nonsense(&self, why: &str) -> RendezvousError {
        RendezvousError::Refused {
            place: self.place.clone(),
            why: format!("etcd's answer can't be read: {}", excerpt(why)),
            help: "see that etcd 3.4 or later listens there, with its JSON gateway on".to_owned(),
        }
    }

    fn refused(&self, answer: &Answer) -> RendezvousError {
        let parsed: Option<Value> = serde_json::from_slice(&answer.body).ok();
        let told = parsed.as_ref().and_then(|it| it["error"].as_str().or(it["message"].as_str()));
        let text = String::from_utf8_lossy(&answer.body);
        let told = excerpt(told.unwrap_or(&text));
        let is_about_users = ["auth", "permission", "user"].iter().any(|word| told.contains(word));
        let help = match is_about_users {
            true => {
                "give a user that may read and write below the prefix: \
                 ?user_file=/path with `user:password` in it, or ETCDCTL_USER"
            }
            false => "see that etcd 3.4 or later listens there, and its log",
        };
        RendezvousError::Refused {
            place: self.place.clone(),
            why: format!("etcd refuses with HTTP status {}: {told}", answer.code),
            help: help.to_owned(),
        }
    }
}

/// Seconds of the lease requested from etcd, at least 2. One second shorter than the setting, so that watchers notice
/// an engine's end within the lease.
pub(crate) fn seconds_of(lease: Duration) -> u64 {
    lease.as_secs().saturating_sub(1).max(2)
}

/// Returns the first key with this prefix, and the first key behind all of them.
fn range_of(prefix: &[u8]) -> (String, String) {
    let mut end = prefix.to_vec();
    // Prefixes end with a slash, so adding 1 can't overflow.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (STANDARD.encode(prefix), STANDARD.encode(end))
}

/// Shortens text from etcd to one line.
fn excerpt(text: &str) -> String {
    polyrail_config::shortened(text.trim(), 200)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_lease_that_is_over_at_once_is_none() {
        for ttl in ["0", "-1", ""] {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = std::thread::spawn(move || {
                let (mut socket, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"}") {
                    let mut part = [0; 1024];
                    let count = socket.read(&mut part).unwrap();
                    request.extend_from_slice(&part[..count]);
                }
                let body = json!({ "ID": "7", "TTL": ttl }).to_string();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                socket.write_all((head + &body).as_bytes()).unwrap();
            });
            let mut client = Client::new("etcd://test", &[("127.0.0.1".to_owned(), port)], None);
            let error = client.grant(5, &Stop::default()).unwrap_err().to_string();
            assert!(error.contains("a lease without a time"), "{ttl}: {error}");
            server.join().unwrap();
        }
    }
}
