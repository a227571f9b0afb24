//! Two engines under these rules, on a network that loses and reorders messages, with users who add and remove, and
//! with crashes. The test tries every order of events up to some depth. From every state that this reaches, the engines
//! connect again once the network is calm and their users want it, and neither stays in a session that the other does
//! not know.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use super::*;
use crate::hello::RefusedCode;

/// Moves from the start, in every order.
const DEPTH: usize = 7;
/// Maximum messages in flight; further ones are lost.
const NET_MAX: usize = 3;

/// Connection on which an end sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Out {
    Idle,
    Asking,
    Up,
}

/// An engine, and its knowledge of the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    /// Run of this engine.
    instance: u8,
    /// Known run of the other.
    knows: u8,
    state: PeerState,
    /// Session in which the end sends, and the number of sessions so far.
    own: u32,
    sessions: u32,
    heard: Option<u32>,
    over: BTreeSet<u32>,
    wants: bool,
    out: Out,
    /// Session of the connection on which the other end sends.
    arrival: Option<u32>,
    /// Data arrived on that connection.
    is_used: bool,
    adds: u8,
    removes: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Word {
    WrongInstance,
    Removed,
    SessionOver,
    OtherSession,
}

/// A message to the end `to`, valid while that is the same run. Each is about the connection on which the end that
/// connected it sends in `session`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Message {
    to: usize,
    instance: u8,
    session: u32,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum What {
    /// `from`: the sender's run; `knows`: the session that it has received.
    Hello {
        from: u8,
        knows: Option<u32>,
    },
    Welcome,
    Refused(Word),
    /// A reset of the connection on which `to` sends, or of the other.
    OutBroken,
    ArrivalBroken,
    Bye,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    ends: [End; 2],
    net: BTreeSet<Message>,
    crashes: u8,
}

impl End {
    fn new(instance: u8, knows: u8) -> Self {
        Self {
            instance,
            knows,
            state: PeerState::Unknown,
            own: 0,
            sessions: 0,
            heard: None,
            over: BTreeSet::new(),
            wants: false,
            out: Out::Idle,
            arrival: None,
            is_used: false,
            adds: 2,
            removes: 1,
        }
    }

    /// Another run of the other end has nothing to do with the previous one.
    fn meets(&mut self, instance: u8) {
        if self.knows != instance {
            let Self { adds, removes, sessions, .. } = *self;
            *self = Self { adds, removes, sessions, ..Self::new(self.instance, instance) };
        }
    }

    fn note_flows(&mut self) {
        let is_reached = self.out == Out::Up || (!self.wants && self.arrival.is_some());
        (self.state, _) =
            self.state.after(if is_reached { PeerEvent::Up } else { PeerEvent::Down });
    }

    fn begin(&mut self) {
        self.sessions += 1;
        self.own = self.sessions;
        self.state = PeerState::New;
        (self.heard, self.wants, self.is_used) = (None, false, false);
    }
}

impl World {
    fn new() -> Self {
        Self { ends: [End::new(0, 0), End::new(0, 0)], net: BTreeSet::new(), crashes: 1 }
    }

    fn say(&mut self, to: usize, session: u32, what: What) {
        // The run that the sender means, or the current run where the kernel answers.
        let instance = match what {
            What::Hello { .. } => self.ends[1 - to].knows,
            _ => self.ends[to].instance,
        };
        if self.net.len() < NET_MAX {
            self.net.insert(Message { to, instance, session, what });
        }
    }

    fn end_session(&mut self, at: usize) {
        let end = &mut self.ends[at];
        end.over.extend(end.heard.take());
        let (out, own) = (std::mem::replace(&mut end.out, Out::Idle), end.own);
        let arrival = end.arrival.take();
        if out != Out::Idle {
            self.say(1 - at, own, What::ArrivalBroken);
        }
        if let Some(session) = arrival {
            self.say(1 - at, session, What::OutBroken);
        }
    }

    /// Carries out the consequences of an event, except the answer to a hello.
    fn happens(&mut self, at: usize, event: PeerEvent) -> Action {
        let (state, action) = self.ends[at].state.after(event);
        if matches!(action, Action::End | Action::EndBoth | Action::BeginAnew) {
            self.end_session(at);
        }
        if matches!(action, Action::Begin | Action::BeginAnew) {
            self.ends[at].begin();
        }
        self.ends[at].state = state;
        if action == Action::SayBye && self.ends[at].out == Out::Up {
            self.say(1 - at, self.ends[at].own, What::Bye);
        }
        action
    }

    fn add(&mut self, at: usize) {
        let there = self.ends[1 - at].instance;
        self.ends[at].meets(there);
        self.happens(at, PeerEvent::Add);
        self.ends[at].wants = true;
    }

    fn connect(&mut self, at: usize) {
        self.ends[at].out = Out::Asking;
        self.ends[at].wants = true;
        let End { own, instance: from, heard, is_used, .. } = self.ends[at];
        let knows = heard.filter(|_| is_used);
        self.say(1 - at, own, What::Hello { from, knows });
    }

    /// Closes a connection whose time is up.
    fn give_up(&mut self, at: usize) {
        self.ends[at].out = Out::Idle;
        self.say(1 - at, self.ends[at].own, What::ArrivalBroken);
    }

    fn crash(&mut self, at: usize) {
        let End { instance, knows, out, own, arrival, .. } = self.ends[at];
        self.ends[at] = End::new(instance + 1, knows);
        if out != Out::Idle {
            self.say(1 - at, own, What::ArrivalBroken);
        }
        if let Some(session) = arrival {
            self.say(1 - at, session, What::OutBroken);
        }
    }

    fn hello(&mut self, at: usize, message: Message, from: u8, knows: Option<u32>) {
        let Message { instance, session, .. } = message;
        if self.ends[1 - at].instance != from {
            return;
        }
        if self.ends[at].instance != instance {
            return self.say(1 - at, session, What::Refused(Word::WrongInstance));
        }
        self.ends[at].meets(from);
        let epoch = Epoch::first(session).in_hello(knows, knows.is_some(), false);
        let mut greeter = Greeter::new(epoch.0, Duration::ZERO).expect("it counts no attempts");
        let word = loop {
            match self.next_step(at, &mut greeter) {
                Step::Begin => {
                    self.ends[at].begin();
                    return self.welcome(at, session);
                }
                Step::Welcome => return self.welcome(at, session),
                // Afterwards there is no session: beginning one for the hello is another step.
                Step::End(_) => {
                    self.end_session(at);
                    self.ends[at].state = PeerState::Lost;
                }
                Step::EndBoth(event) => {
                    self.happens(at, event);
                    self.ends[at].over.insert(session);
                    break Word::SessionOver;
                }
                Step::Probe => {
                    self.say(1 - at, session, What::Refused(Word::OtherSession));
                    if let Some(earlier) = self.ends[at].arrival
                        && !self.is_arrival_alive(at)
                    {
                        self.say(at, earlier, What::ArrivalBroken);
                    }
                    return;
                }
                Step::Refuse(RefusedCode::Removed) => break Word::Removed,
                Step::Refuse(RefusedCode::SessionOver) => break Word::SessionOver,
                other => panic!("{other:?} for a hello"),
            }
        };
        self.say(1 - at, session, What::Refused(word));
    }

    fn next_step(&self, at: usize, greeter: &mut Greeter) -> Step {
        let end = &self.ends[at];
        let live = Live {
            state: end.state,
            own: end.own,
            heard: end.heard,
            has_flows_up: end.arrival.is_some(),
        };
        let live = (!end.state.is_over()).then_some(live);
        let mut parting = Parting::default();
        parting.state = end.state;
        end.over.iter().for_each(|session| parting.end(*session));
        greeter.next(live, Some(&parting), true, || !end.is_used)
    }

    fn welcome(&mut self, at: usize, session: u32) {
        self.ends[at].heard = Some(session);
        self.ends[at].arrival = Some(session);
        self.happens(at, PeerEvent::Up);
        self.say(1 - at, session, What::Welcome);
    }

    /// Returns whether the other end has the connection on which this one receives from it.
    fn is_arrival_alive(&self, at: usize) -> bool {
        let there = &self.ends[1 - at];
        there.out != Out::Idle
            && there.knows == self.ends[at].instance
            && self.ends[at].knows == there.instance
            && self.ends[at].arrival == Some(there.own)
    }

    fn deliver(&mut self, message: Message) {
        let Message { to, instance, session, what } = message;
        self.net.remove(&message);
        if let What::Hello { from, knows } = what {
            return self.hello(to, message, from, knows);
        }
        let end = &mut self.ends[to];
        if end.instance != instance {
            return;
        }
        let (is_asking, is_up) = (
            end.out == Out::Asking && end.own == session,
            end.out == Out::Up && end.own == session,
        );
        match what {
            What::Hello { .. } => {}
            What::Welcome if is_asking => {
                end.out = Out::Up;
                end.note_flows();
                let there = &mut self.ends[1 - to];
                there.is_used |= there.arrival == Some(session);
            }
            What::Welcome => self.say(1 - to, session, What::ArrivalBroken),
            What::Refused(word) if is_asking => {
                end.out = Out::Idle;
                end.note_flows();
                // Another engine can prove only its own identity.
                let (code, proven) = match word {
                    Word::WrongInstance => (RefusedCode::WrongInstance, false),
                    Word::Removed => (RefusedCode::Removed, true),
                    Word::SessionOver => (RefusedCode::SessionOver, true),
                    Word::OtherSession => (RefusedCode::OtherSession, true),
                };
                if is_final(code, proven, end.state) {
                    self.happens(to, PeerEvent::Dismissed { proven });
                }
            }
            What::OutBroken if is_up => {
                end.out = Out::Idle;
                end.note_flows();
            }
            What::ArrivalBroken if end.arrival == Some(session) => {
                end.arrival = None;
                end.note_flows();
            }
            What::Bye if end.arrival == Some(session) => {
                self.happens(to, PeerEvent::Bye);
            }
            What::Refused(_) | What::OutBroken | What::ArrivalBroken | What::Bye => {}
        }
    }

    /// Returns every possible next world.
    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut may = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            all.push(next);
        };
        for message in self.net.iter().copied() {
            may(&|world| world.deliver(message));
            may(&|world| {
                world.net.remove(&message);
            });
        }
        for at in [0, 1] {
            let end = &self.ends[at];
            if end.adds > 0 {
                may(&|world| {
                    world.ends[at].adds -= 1;
                    world.add(at);
                });
            }
            if end.removes > 0 && !end.state.is_over() {
                may(&|world| {
                    world.ends[at].removes -= 1;
                    world.happens(at, PeerEvent::Remove);
                });
            }
            if end.state.is_parting() {
                may(&|world| {
                    world.happens(at, PeerEvent::Told);
                });
            } else if !end.state.is_over() {
                match end.out {
                    Out::Idle => may(&|world| world.connect(at)),
                    Out::Asking => may(&|world| world.give_up(at)),
                    Out::Up => {}
                }
                let late = match end.state {
                    PeerState::Connected => PeerEvent::Silent,
                    _ => PeerEvent::Unreachable,
                };
                may(&|world| {
                    world.happens(at, late);
                });
            }
            if self.crashes > 0 {
                may(&|world| {
                    world.crashes -= 1;
                    world.crash(at);
                });
            }
        }
        all
    }

    /// Returns whether both send on connections that the other receives, in sessions that both know.
    fn agree(&self) -> bool {
        [0, 1].into_iter().all(|at| {
            let end = &self.ends[at];
            end.state == PeerState::Connected
                && end.out == Out::Up
                && self.is_arrival_alive(at)
                && end.heard == end.arrival
        })
    }

    /// Runs with a calm network: messages arrive, and broken connections are noticed. If `users`, each user adds the
    /// other end whenever it is not known. Returns how often that happened.
    fn calm(&mut self, users: bool) -> u32 {
        let mut added = 0;
        for round in 0..24 {
            while let Some(first) = self.net.first().copied() {
                self.deliver(first);
            }
            if self.agree() {
                break;
            }
            for at in [0, 1] {
                if self.ends[at].state.is_parting() {
                    self.happens(at, PeerEvent::Told);
                }
                if self.ends[at].arrival.is_some() && !self.is_arrival_alive(at) {
                    self.ends[at].arrival = None;
                    self.ends[at].note_flows();
                }
                // The connection is gone or one-way. Close it silently, since a message might be taken for one about
                // the next connection.
                if self.ends[at].out == Out::Asking || !self.is_arrival_alive(1 - at) {
                    self.ends[at].out = Out::Idle;
                    self.ends[at].note_flows();
                }
                let is_other = self.ends[at].knows != self.ends[1 - at].instance;
                if users && (is_other || self.ends[at].state.is_over() || !self.ends[at].wants) {
                    self.add(at);
                    added += 1;
                }
                let end = &self.ends[at];
                let is_live = !end.state.is_over();
                // Longer than a timeout.
                if is_live && end.state != PeerState::Connected && round % 8 == 7 {
                    self.happens(at, PeerEvent::Unreachable);
                } else if is_live && end.out == Out::Idle && end.wants {
                    self.connect(at);
                }
            }
        }
        added
    }

    fn is_fine(&self) -> Result<(), String> {
        let mut alone = self.clone();
        alone.calm(false);
        let believe = alone.ends.iter().all(|end| end.state == PeerState::Connected);
        let is_one_way = alone.ends.iter().any(|end| !end.wants);
        if believe && !is_one_way && !alone.agree() {
            return Err(format!("in different sessions for ever: {alone:#?}"));
        }
        let mut wanted = self.clone();
        let added = wanted.calm(true);
        if !wanted.agree() {
            return Err(format!("never together again: {wanted:#?}"));
        }
        if added > 6 {
            return Err(format!("only after the users had added them {added} times"));
        }
        Ok(())
    }
}

/// Tries every order of events within [`DEPTH`] moves. Returns the number of worlds.
fn search(start: World) -> usize {
    let mut seen = HashSet::from([start.clone()]);
    let mut worlds = vec![start];
    for depth in 0..=DEPTH {
        for world in &worlds {
            if let Err(why) = world.is_fine() {
                panic!("after {depth} moves, from {world:#?}\n{why}");
            }
        }
        if depth < DEPTH {
            let next = worlds.iter().flat_map(World::next);
            worlds = next.filter(|world| seen.insert(world.clone())).collect();
        }
    }
    seen.len()
}

#[test]
fn two_engines_that_never_met_always_find_together() {
    println!("{} worlds", search(World::new()));
}

#[test]
fn two_engines_that_are_connected_always_find_together_again() {
    let mut connected = World::new();
    connected.calm(true);
    assert!(connected.agree());
    println!("{} worlds", search(connected));
}

/// A removed end asks in vain. Its hello is read only after it has given up, and the other's user has added it by then.
#[test]
fn a_hello_of_a_session_that_is_over_ends_no_session_that_the_user_began() {
    let mut world = World::new();
    world.calm(true);
    world.happens(1, PeerEvent::Remove);
    world.calm(false);
    assert_eq!(world.ends.clone().map(|end| end.state), [PeerState::Lost, PeerState::Removed]);
    world.add(0);
    world.connect(0);
    world.happens(0, PeerEvent::Unreachable);
    world.add(1);
    let begun = world.ends[1].own;
    let is_hello = |message: &&Message| matches!(message.what, What::Hello { .. });
    let late = *world.net.iter().find(is_hello).unwrap();
    world.deliver(late);
    assert_eq!(world.ends[1].heard, Some(late.session));
    world.connect(1);
    world.calm(false);
    let end = &world.ends[1];
    assert_eq!((end.own, end.state, end.out), (begun, PeerState::Connected, Out::Up));
}
