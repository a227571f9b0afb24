//! Display of a command's current step and the time left: a bar on a terminal; elsewhere a line after two seconds, and
//! then every ten.

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::stdout::{harmless, set_bar, tell};

/// Interval between lines if standard error is not a terminal.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Interval between draws of the bar while the run reports nothing, so that its times advance.
const DRAW_EVERY: Duration = Duration::from_millis(500);
/// Minimum duration of a step whose time is shown.
const SHORT: Duration = Duration::from_secs(2);
const TEMPLATE: &str = "{bar:20} {whole_percent} %  {msg}";
/// Template without a bar, for terminals with fewer columns than [`WITH_BAR`]: the words matter more.
const NARROW: &str = "{whole_percent} %  {msg}";
const WITH_BAR: u16 = 80;
/// Minimum number of columns: narrower terminals show nothing.
const LEAST_COLUMNS: u16 = 20;
const WAITING: &str = "{spinner} {msg}";
/// Minimum share of planned work from whose time the rest can be estimated.
const FIRST_SHARE: f64 = 0.02;
/// Minimum share of unplanned work from whose time the whole can be estimated.
const LEAST_SHARE: f64 = 0.002;
/// Number of steps of the bar.
const STEPS: u64 = 1000;
/// Columns of the templates that neither the bar nor the message takes.
const BESIDE: usize = "99 %  ".len();
const BAR: usize = 21;
/// Columns that a terminal needs to show `^C` after a bar without a second line, which would stay when the bar is
/// removed.
const CTRL_C: u16 = 3;

/// Progress of a run. A thread keeps the times up to date even while the run reports nothing.
pub(crate) struct Progress {
    shared: Arc<Shared>,
    ticker: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    show: Show,
}

/// Output of a progress.
enum Show {
    Bar(ProgressBar),
    Lines { every: Duration, say: Box<dyn Fn(&str) + Send + Sync> },
}

/// State of a run.
struct State {
    what: String,
    begin: Instant,
    /// Begin of the current step.
    since: Instant,
    /// Share of all the work that is done, from 0 to 1.
    share: f64,
    /// Time at which that share was reached.
    stepped: Instant,
    /// Whether this is a single wait, which shows nothing while it is short.
    is_waiting: bool,
    /// Minimum duration of the whole run in seconds, if it is known in advance.
    planned: Option<f64>,
    /// Time of the plan: the rate of the work counts from then.
    from: Instant,
    /// Work that is done, and all the work, in a unit of the run's choice.
    work: (f64, f64),
    /// Meaning of the time left: `about`, `at least` or `at most`.
    bound: &'static str,
    is_over: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        if !io::stderr().is_terminal() {
            let say = Box::new(|line: &str| tell!("polyrail: {line}"));
            return Self::begin(Show::Lines { every: SAY_EVERY, say });
        }
        Self::begin(Show::Bar(bar()))
    }

    /// Shows a single wait without known parts. Nothing is shown if the wait is short.
    pub(crate) fn waiting(what: &str) -> Self {
        if !io::stderr().is_terminal() {
            let progress = Self::new();
            progress.say(what);
            return progress;
        }
        let style = ProgressStyle::with_template(WAITING)
            .unwrap_or_else(|_| ProgressStyle::default_spinner());
        let progress = Self::begin(Show::Bar(bar().with_style(style)));
        progress.shared.state().is_waiting = true;
        progress.say(what);
        progress
    }

    fn begin(show: Show) -> Self {
        let now = Instant::now();
        let state = State {
            what: String::new(),
            begin: now,
            since: now,
            share: 0.0,
            stepped: now,
            is_waiting: false,
            planned: None,
            from: now,
            work: (0.0, 0.0),
            bound: "about",
            is_over: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), show });
        let shown = Arc::clone(&shared);
        // Without the thread the run works as well, and only shows less.
        let ticker = thread::Builder::new().name("progress".into()).spawn(move || shown.tick());
        Self { shared, ticker: ticker.ok() }
    }

    /// Sets the name of the current step.
    pub(crate) fn say(&self, what: impl Into<String>) {
        let mut state = self.shared.state();
        let what = what.into();
        if state.what != what {
            (state.what, state.since) = (what, Instant::now());
        }
        self.shared.draw(&state);
    }

    /// Sets the share of the work that is done and the name of the current step.
    pub(crate) fn show(&self, share: f64, what: &str) {
        self.shared.state().reach(share);
        self.say(what);
    }

    /// Plans a run whose rest takes at least this long. The estimate adds the delay of the part that is done.
    /// [`did`](Self::did) then counts in seconds.
    pub(crate) fn plan_time(&self, left: Duration) {
        self.shared.state().plan_time(left, Instant::now());
    }

    /// Shows the time left as `at least` or `at most`, instead of `about`.
    pub(crate) fn bound(&self, bound: &'static str) {
        self.shared.state().bound = bound;
    }

    /// Sets the total work, in a unit of the run's choice. The time left follows from the part that is
    /// [done](Self::did).
    pub(crate) fn plan(&self, work: f64) {
        self.shared.state().plan(work, Instant::now());
    }

    /// Adds to the part of the [planned](Self::plan) work that is done.
    pub(crate) fn did(&self, work: f64) {
        let mut state = self.shared.state();
        state.work.0 += work;
        let (done, all) = state.work;
        if all > 0.0 {
            state.reach(done / all);
        }
        self.shared.draw(&state);
    }

    /// Returns whether all the [planned](Self::plan) work is done.
    pub(crate) fn is_whole(&self) -> bool {
        self.shared.state().share > 1.0 - 1e-6
    }

    #[cfg(test)]
    pub(crate) fn line(&self) -> String {
        self.shared.state().line(Instant::now())
    }

    /// Returns a printer for lines that appear together with this progress.
    pub(crate) fn beside(&self) -> Beside {
        Beside(Arc::clone(&self.shared))
    }

    /// Removes the bar from the terminal, and shows nothing any more.
    pub(crate) fn clear(&self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
        if let Show::Bar(bar) = &self.shared.show {
            bar.finish_and_clear();
            set_bar(None);
        }
    }
}

/// Builds the style of a template, a constant that a test checks. The style never shows 100 % before the work is done.
fn style(template: &str) -> ProgressStyle {
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let percent = |state: &ProgressState, text: &mut dyn fmt::Write| {
        // On failure the bar shows nothing in this place.
        let _ = write!(text, "{}", whole_percent(state.pos()));
    };
    style.with_key("whole_percent", percent).progress_chars("█░")
}

/// Converts a share to a position of the bar. The position is never the end: the run is not over while the bar is
/// shown.
fn position(share: f64) -> u64 {
    ((share * STEPS as f64) as u64).min(STEPS - 1)
}

fn whole_percent(position: u64) -> u64 {
    position * 100 / STEPS
}

fn bar() -> ProgressBar {
    let terminal = Box::new(Terminal(console::Term::buffered_stderr()));
    ProgressBar::with_draw_target(
        Some(STEPS),
        ProgressDrawTarget::term_like_with_hz(terminal, DRAWN_HZ),
    )
}

/// Draws per second: the default of indicatif.
const DRAWN_HZ: u8 = 20;

/// Standard error with a smaller width. indicatif fills lines up to this width, so the terminal's `^C` stays in the
/// line that is removed.
#[derive(Debug)]
struct Terminal(console::Term);

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        // indicatif needs a terminal of at least four columns.
        self.0.size().1.saturating_sub(CTRL_C).max(LEAST_COLUMNS - CTRL_C)
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.0.move_cursor_up(lines)
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.0.move_cursor_down(lines)
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.0.move_cursor_right(columns)
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.0.move_cursor_left(columns)
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.0.write_line(line)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Printer for lines that stay visible above the bar or among the lines of a run.
pub(crate) struct Beside(Arc<Shared>);

impl Beside {
    /// Prints a line that `line` makes from the name of the current step.
    pub(crate) fn say(&self, line: impl FnOnce(&str) -> String) {
        let line = line(&self.0.state().what);
        match &self.0.show {
            Show::Bar(_) => tell!("{line}"),
            Show::Lines { say, .. } => say(&line),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
        // The thread panics only on a bug, and the panic has printed its own message.
        let _ = self.ticker.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn tick(&self) {
        let every = match self.show {
            Show::Bar(_) => DRAW_EVERY,
            Show::Lines { every, .. } => every,
        };
        let mut state = self.state();
        // During a long wait the first line comes early.
        let mut next = Instant::now() + every.min(SHORT);
        while !state.is_over {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Skip the lines that a stopped process has missed.
                next = Instant::now() + every;
                match &self.show {
                    Show::Bar(_) => self.draw(&state),
                    Show::Lines { say, .. } => say(&state.line(Instant::now())),
                }
                continue;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    fn draw(&self, state: &State) {
        if let Show::Bar(bar) = &self.show
            && !state.is_over
            && (!state.is_waiting || state.begin.elapsed() >= SHORT)
        {
            let width = console::Term::stderr().size().1;
            if state.what.is_empty() || width < LEAST_COLUMNS {
                return;
            }
            set_bar(Some(bar.clone()));
            let mut beside = BESIDE;
            if !state.is_waiting {
                let has_bar = width >= WITH_BAR;
                beside += if has_bar { BAR } else { 0 };
                bar.set_style(style(if has_bar { TEMPLATE } else { NARROW }));
            }
            let columns = usize::from(width - CTRL_C).saturating_sub(beside);
            let (what, times) = (harmless(&state.what), state.times(Instant::now()));
            bar.set_message(fitted(&what, &times, columns));
            if !state.is_waiting {
                bar.set_position(position(state.share));
            }
        }
    }
}

impl State {
    fn plan_time(&mut self, left: Duration, now: Instant) {
        let spent = (now - self.begin).as_secs_f64();
        let planned = spent + left.as_secs_f64().max(1e-3);
        (self.planned, self.share, self.stepped) = (Some(planned), spent / planned, now);
        self.work = (spent, planned);
    }

    fn plan(&mut self, work: f64, now: Instant) {
        (self.work, self.share, self.from, self.stepped) = ((0.0, work), 0.0, now, now);
    }

    fn reach(&mut self, share: f64) {
        (self.share, self.stepped) = (share.min(1.0), Instant::now());
    }

    /// Estimates the seconds from begin to end.
    fn whole(&self) -> Option<f64> {
        let stepped = (self.stepped - self.begin).as_secs_f64();
        match self.planned {
            _ if self.share >= 1.0 => None,
            Some(planned) => {
                let done = self.share * planned;
                // The first parts say little about the others, so the delay counts with the share.
                let slower = if done > 0.0 { (stepped / done - 1.0) * self.share } else { 0.0 };
                Some(stepped + (planned - done) * (1.0 + slower))
            }
            None => {
                let first = if self.work.1 > 0.0 { FIRST_SHARE } else { LEAST_SHARE };
                let before = (self.from - self.begin).as_secs_f64();
                (self.share >= first).then(|| before + (stepped - before) / self.share)
            }
        }
    }

    /// Returns a line such as `64KiB write: warming up, 12 s already; 15 s so far, about 40 s left`.
    fn line(&self, now: Instant) -> String {
        format!("{}{}", self.what, self.times(now).concat())
    }

    /// Returns the time of this step, the time of the run and the time left, each empty if there is none to show.
    fn times(&self, now: Instant) -> [String; 3] {
        let (elapsed, here) = (now - self.begin, now - self.since);
        let [mut of_step, mut of_run, mut to_come] = [(); 3].map(|()| String::new());
        if here >= SHORT && here + SHORT <= elapsed {
            of_step = format!(", {} already", show_passed(here));
        }
        if elapsed >= SHORT {
            of_run = format!("; {} so far", show_passed(elapsed));
        }
        if let Some(whole) = self.whole() {
            // The time counts down until the next part is done and updates the estimate. A late part is expected to
            // need as much time again as it is late.
            let left = (whole - elapsed.as_secs_f64()).abs().max(1.0);
            let left = show_time(Duration::from_secs_f64(left.min(1e9)));
            to_come = format!(", {} {left} left", self.bound);
        }
        [of_step, of_run, to_come]
    }
}

/// Fits a line into the columns. The name of the step is kept. The time of the run is dropped first, then that of the
/// step, then the time left.
fn fitted(what: &str, [of_step, of_run, to_come]: &[String; 3], columns: usize) -> String {
    let lines = [
        format!("{what}{of_step}{of_run}{to_come}"),
        format!("{what}{of_step}{to_come}"),
        format!("{what}{to_come}"),
    ];
    let fits = |line: &&String| console::measure_text_width(line) <= columns;
    let line = lines.iter().find(fits).map_or(what, String::as_str);
    console::truncate_str(line, columns, "…").into_owned()
}

/// Formats a time that has passed for people: `0.12 s`, `4.1 s`, `4 min 10 s`.
pub(crate) fn show_taken(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{seconds:.2} s"),
        seconds if seconds < 10.0 => format!("{seconds:.1} s"),
        _ => show_time(time),
    }
}

/// Formats a time that is still passing, in whole seconds: `4 min 10 s`.
fn show_passed(time: Duration) -> String {
    in_seconds(time.as_secs())
}

/// Formats a time to come, in seconds rounded up: `4 min 10 s`.
pub(crate) fn show_time(time: Duration) -> String {
    in_seconds(time.as_secs_f64().ceil() as u64)
}

fn in_seconds(seconds: u64) -> String {
    if seconds < 60 {
        format!("{seconds} s")
    } else {
        format!("{} min {} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_those_that_the_bar_understands() {
        assert!(
            [TEMPLATE, NARROW, WAITING].iter().all(|one| ProgressStyle::with_template(one).is_ok())
        );
    }

    #[test]
    fn a_longer_step_has_its_time_and_the_time_left_where_that_is_known() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut state = State {
            what: "warming up".into(),
            begin,
            since: at(3),
            share: 0.0,
            stepped: begin,
            is_waiting: false,
            planned: None,
            from: begin,
            work: (0.0, 0.0),
            bound: "about",
            is_over: false,
        };
        assert_eq!(state.line(at(4) - Duration::from_millis(1)), "warming up; 3 s so far");
        assert_eq!(state.line(at(15)), "warming up, 12 s already; 15 s so far");
        (state.share, state.stepped) = (0.25, at(20));
        let text = "warming up, 17 s already; 20 s so far, about 1 min 0 s left";
        assert_eq!(state.line(at(20)), text);
        assert!(state.line(at(60)).ends_with("about 20 s left"), "{}", state.line(at(60)));
        assert!(state.line(at(80)).ends_with("about 1 s left"), "{}", state.line(at(80)));
        assert!(state.line(at(300)).ends_with("about 3 min 40 s left"), "{}", state.line(at(300)));
        (state.since, state.share) = (begin, 0.0);
        assert_eq!(state.line(at(1)), "warming up");
        // The planned time is known from the start; the delay is learned as parts are done.
        state.plan_time(Duration::from_secs(60), begin);
        assert!(state.line(at(1)).ends_with("about 59 s left"), "{}", state.line(at(1)));
        (state.share, state.stepped) = (0.5, at(40));
        assert!(state.line(at(40)).ends_with("about 35 s left"), "{}", state.line(at(40)));
        (state.share, state.stepped) = (1.0, at(80));
        assert!(!state.line(at(80)).contains("left"), "{}", state.line(at(80)));
        // A later plan replaces the estimate.
        state.plan_time(Duration::from_secs(30), at(90));
        assert!(state.line(at(90)).ends_with("about 30 s left"), "{}", state.line(at(90)));
        state.bound = "at least";
        assert!(state.line(at(90)).ends_with("at least 30 s left"), "{}", state.line(at(90)));
    }

    #[test]
    fn the_rate_of_work_counts_from_its_plan() {
        let progress = Progress::new();
        let mut state = progress.shared.state();
        let at = |seconds| state.begin + Duration::from_secs(seconds);
        let (connected, now) = (at(60), at(70));
        state.plan(10.0, connected);
        assert!(!state.line(connected).contains("left"), "{}", state.line(connected));
        (state.share, state.stepped) = (0.5, now);
        assert!(state.line(now).ends_with("about 10 s left"), "{}", state.line(now));
        // The first parts of planned work give no estimate. Any share that a run sets without a plan does.
        state.share = 0.01;
        assert!(!state.line(now).contains("left"), "{}", state.line(now));
        let begin = state.begin;
        state.plan(0.0, begin);
        (state.share, state.stepped) = (0.01, now);
        assert!(state.line(now).contains("left"), "{}", state.line(now));
    }

    #[test]
    fn a_time_plan_counts_down_at_once_and_its_steps_are_seconds() {
        let progress = Progress::new();
        progress.plan_time(Duration::from_secs(100));
        let line = || progress.shared.state().line(Instant::now());
        assert!(line().ends_with(" left"), "{}", line());
        progress.did(50.0);
        let share = progress.shared.state().share;
        assert!((share - 0.5).abs() < 0.01, "{share}");
    }

    #[test]
    fn a_bar_never_shows_that_all_is_done() {
        let shown = [0.0, 0.009, 0.5, 0.995, 1.0].map(|share| whole_percent(position(share)));
        assert_eq!(shown, [0, 0, 50, 99, 99]);
    }

    #[test]
    fn a_bar_has_one_line_with_room_for_the_signs_of_ctrl_c() {
        let what = "64KiB: trying socket_buffer_bytes=4MiB";
        let times = [", 6 s already", "; 11 s so far", ", about 1 min 20 s left"];
        let times = times.map(str::to_owned);
        let shown = |columns| fitted(what, &times, columns);
        let whole = format!("{what}{}", times.concat());
        assert_eq!(shown(whole.len()), whole);
        let step = format!("{what}, 6 s already, about 1 min 20 s left");
        assert_eq!(shown(whole.len() - 1), step);
        assert_eq!(shown(step.len() - 1), format!("{what}, about 1 min 20 s left"));
        // Terminals of 60 and of 40 columns.
        assert_eq!(shown(60 - usize::from(CTRL_C) - BESIDE), what);
        assert_eq!(shown(40 - usize::from(CTRL_C) - BESIDE), "64KiB: trying socket_buffer_by…");
        // indicatif fills the line up to this width.
        let terminal = console::Term::stderr();
        assert_eq!(Terminal(terminal.clone()).width() + CTRL_C, terminal.size().1);
    }

    #[test]
    fn what_took_a_moment_did_not_take_a_second() {
        let shown = |millis| show_taken(Duration::from_millis(millis));
        let times = [120, 4_120, 12_100, 250_000].map(shown);
        assert_eq!(times, ["0.12 s", "4.1 s", "13 s", "4 min 10 s"]);
    }

    fn shown_every(every: Duration) -> (Show, std::sync::mpsc::Receiver<String>) {
        let (sender, lines) = std::sync::mpsc::channel();
        let say = Box::new(move |line: &str| {
            // The test may be over.
            let _ = sender.send(line.to_owned());
        });
        (Show::Lines { every, say }, lines)
    }

    #[test]
    fn on_a_pipe_the_first_line_comes_as_soon_as_a_run_is_no_short_one() {
        let begin = Instant::now();
        let (show, lines) = shown_every(Duration::from_secs(3600));
        let progress = Progress::begin(show);
        progress.say("warming up");
        let line = lines.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(line.starts_with("warming up; ") && line.ends_with(" s so far"), "{line}");
        assert!(begin.elapsed() >= SHORT, "{line}");
    }

    #[test]
    fn on_a_pipe_a_line_comes_now_and_then_until_the_end() {
        assert!(SAY_EVERY <= Duration::from_secs(10));
        let (show, lines) = shown_every(Duration::from_millis(5));
        let progress = Progress::begin(show);
        progress.plan(4.0);
        progress.say("warming up");
        progress.did(1.0);
        let next = || lines.recv_timeout(Duration::from_secs(60)).unwrap();
        while !next().starts_with("warming up, about ") {}
        progress.say("round 1");
        while !next().starts_with("round 1") {}
        drop(progress);
        while lines.try_recv().is_ok() {}
        assert!(lines.recv().is_err(), "the ticker ended with the run");
    }

    #[test]
    fn after_a_stop_lines_come_no_faster() {
        const EVERY: Duration = Duration::from_millis(200);
        let (sender, lines) = std::sync::mpsc::channel();
        let is_first = std::sync::atomic::AtomicBool::new(true);
        let say = Box::new(move |_: &str| {
            // The test may be over.
            let _ = sender.send(Instant::now());
            if is_first.swap(false, std::sync::atomic::Ordering::Relaxed) {
                // Stands for a stopped process: several lines are due afterwards.
                thread::sleep(5 * EVERY);
            }
        });
        let progress = Progress::begin(Show::Lines { every: EVERY, say });
        let next = || lines.recv_timeout(Duration::from_secs(60)).unwrap();
        let times = [(); 3].map(|()| next());
        drop(progress);
        assert!(times[2] - times[1] >= EVERY / 2, "{times:?}");
    }

    #[test]
    fn steps_add_up_to_the_whole() {
        let progress = Progress::new();
        let is_share = |wanted: f64| {
            let share = progress.shared.state().share;
            assert!((share - wanted).abs() < 1e-9, "{share} is not {wanted}");
        };
        progress.did(1.0);
        is_share(0.0);
        progress.plan(4.0);
        progress.did(1.0);
        is_share(0.25);
        for _ in 0..4 {
            progress.did(1.0);
        }
        is_share(1.0);
        progress.show(0.5, "again");
        is_share(0.5);
    }
}
