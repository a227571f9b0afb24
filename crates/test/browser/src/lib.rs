//! A real browser for tests: Chromium without a window, driven by its own protocol over a pipe
//! (`--remote-debugging-pipe`: JSON messages that end with a zero byte).
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

/// Reason why no browser starts.
pub const MISSING: &str = "chromium is not installed";

/// Lists the faults of the page at the width of the window.
const FAULTS: &str = "(() => { const faults = []; const say = (what, one) => faults.push(`${what}: ${one}`); \
    if (document.documentElement.scrollWidth > innerWidth) say('wider than the window', document.documentElement.scrollWidth); \
    for (const one of document.querySelectorAll('td, th, svg, p, li')) { \
      const box = one.getBoundingClientRect(); \
      if (box.right > innerWidth + 1 && !one.closest('.scroll')) say('cut', one.textContent.slice(0, 60)); } \
    for (const one of document.querySelectorAll('svg text')) { \
      const svg = one.closest('svg'), scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width; \
      if (parseFloat(getComputedStyle(one).fontSize) * scale < 11) say('small', one.textContent); \
      const box = one.getBoundingClientRect(), around = svg.getBoundingClientRect(); \
      if (box.left < around.left - 1 || box.right > around.right + 1) say('outside its drawing', one.textContent); \
      if (/[0-9]e[-+]/.test(one.textContent)) say('exponent', one.textContent); } \
    for (const svg of document.querySelectorAll('svg')) { \
      const labels = [...svg.querySelectorAll('.label')].map(one => one.getBoundingClientRect()).sort((a, b) => a.top - b.top); \
      labels.forEach((one, at) => { if (at && one.top + 11 < labels[at - 1].top + 22) say('labels overlap', svg.getAttribute('aria-label')); }); \
      if (svg.querySelector('.curve') && !labels.length) say('no label', svg.getAttribute('aria-label')); } \
    const banner = document.querySelector('.banner').getBoundingClientRect(); \
    if (banner.top + scrollY > 300) say('low banner', banner.top); \
    return faults; })()";

/// A browser with one empty page.
pub struct Browser {
    child: Child,
    stdin: ChildStdin,
    messages: Receiver<Value>,
    events: VecDeque<Value>,
    session: Option<String>,
    next: u64,
    width: u32,
    _profile: TempDir,
}

impl Browser {
    /// `None` where there is none; the test is to be skipped then, with [`MISSING`] as the reason.
    ///
    /// # Panics
    /// If the browser does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        let program = chromium()?;
        let profile = tempfile::tempdir().unwrap();
        // The pipe is on descriptors 3 and 4, which the shell makes of standard input and output.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 >/dev/null"])
            .arg(program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--remote-debugging-pipe", "--hide-scrollbars", "--disable-dev-shm-usage"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, messages) = channel();
        let stdout = child.stdout.take().unwrap();
        thread::spawn(move || {
            for message in BufReader::new(stdout).split(0) {
                let Ok(message) = message else { return };
                let message = serde_json::from_slice(&message).unwrap();
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take().unwrap();
        let events = VecDeque::new();
        let mut browser = Self {
            child,
            stdin,
            messages,
            events,
            session: None,
            next: 0,
            width: 1_180,
            _profile: profile,
        };
        let page = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser
            .call("Target.attachToTarget", json!({"targetId": page["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the Chrome DevTools Protocol.
    ///
    /// # Panics
    /// If the browser refuses, or does not answer within a minute.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut message = json!({"id": self.next, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.stdin.write_all(message.to_string().as_bytes()).unwrap();
        self.stdin.write_all(&[0]).unwrap();
        loop {
            let mut answer = self.receive();
            if answer["id"] == self.next {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
            self.events.push_back(answer);
        }
    }

    fn receive(&self) -> Value {
        let message = self.messages.recv_timeout(Duration::from_secs(60));
        message.expect("the browser answers within a minute")
    }

    /// Gives the window a width and a height.
    ///
    /// # Panics
    /// If the browser does not answer within a minute.
    pub fn size(&mut self, width: u32, height: u32) {
        self.width = width;
        let params =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", params);
    }

    /// Opens a file and waits until it is loaded.
    ///
    /// # Panics
    /// If it is not within a minute.
    pub fn open(&mut self, path: &Path) {
        self.events.retain(|event| event["method"] != "Page.loadEventFired");
        self.call("Page.navigate", json!({"url": format!("file://{}", path.display())}));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.receive();
            self.events.push_back(event);
        }
    }

    /// The value of an expression in the page.
    ///
    /// # Panics
    /// If the expression throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let result =
            self.call("Runtime.evaluate", json!({"expression": expression, "returnByValue": true}));
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// The faults of an open report at 1,400 and 420 pixels, in light and dark: parts that are cut or stick out, small or
    /// overlapping text, exponents, lines without a label, and a verdict below the first 300 pixels.
    ///
    /// # Panics
    /// If the page is not a report.
    pub fn faults(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        for width in [1_400, 420] {
            self.size(width, 1_000);
            // Drawings follow the width with the next frame.
            self.value("redrawAll(document)");
            for scheme in ["light", "dark"] {
                let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
                self.call("Emulation.setEmulatedMedia", json!({"features": features}));
                let faults = self.value(FAULTS);
                let faults = faults.as_array().unwrap().iter().filter_map(Value::as_str);
                found.extend(faults.map(|fault| format!("{width} {scheme}: {fault}")));
            }
        }
        found
    }

    /// The errors of the page, and everything that it requested.
    ///
    /// # Panics
    /// If the browser sent something else than its protocol says.
    #[must_use]
    pub fn complaints_and_requests(&self) -> (Vec<String>, Vec<String>) {
        let of = |method: &str| {
            let method = method.to_owned();
            self.events.iter().filter(move |event| event["method"] == method.as_str())
        };
        let complaints = of("Runtime.exceptionThrown")
            .chain(of("Runtime.consoleAPICalled"))
            .chain(of("Log.entryAdded"))
            .map(|event| event["params"].to_string());
        let requests = of("Network.requestWillBeSent")
            .map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned());
        (complaints.collect(), requests.collect())
    }

    /// A picture of the page from its top down to `height`, as PNG.
    ///
    /// # Panics
    /// If the browser does not answer within a minute.
    pub fn screenshot(&mut self, height: u32) -> Vec<u8> {
        let clip = json!({"x": 0, "y": 0, "width": self.width, "height": height, "scale": 1});
        let shot = self
            .call("Page.captureScreenshot", json!({"clip": clip, "captureBeyondViewport": true}));
        base64(shot["data"].as_str().unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|program| program.is_file())
}

/// Reads base64, as the protocol sends pictures.
fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').map(digit).collect();
    let group = |four: &[u8]| {
        let bits = four.iter().fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit))
            << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(group).collect()
}
