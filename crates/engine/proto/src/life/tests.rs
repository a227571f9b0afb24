//! Every state with every event, and the resulting transitions between states.

use std::collections::HashSet;
use std::time::Duration;

use super::greeting::{Sessions, greeting};
use super::*;
use crate::hello::RefusedCode;
use crate::id::Time;

const EVENTS: [PeerEvent; 20] = [
    PeerEvent::Add,
    PeerEvent::AddOtherCard,
    PeerEvent::Remove,
    PeerEvent::Close,
    PeerEvent::Told,
    PeerEvent::Hello(HelloKind::First),
    PeerEvent::Hello(HelloKind::Current),
    PeerEvent::Hello(HelloKind::Anew),
    PeerEvent::Hello(HelloKind::AnewInVain),
    PeerEvent::Hello(HelloKind::TooEarly),
    PeerEvent::Hello(HelloKind::Over),
    PeerEvent::Hello(HelloKind::OtherCard),
    PeerEvent::Bye,
    PeerEvent::Up,
    PeerEvent::Down,
    PeerEvent::NobodyThere,
    PeerEvent::Dismissed { proven: true },
    PeerEvent::Dismissed { proven: false },
    PeerEvent::Unreachable,
    PeerEvent::Silent,
];

/// The states are those of [`PeerState::ALL`] by their letters here, each cell is the state afterwards and the action:
/// `b`egin, begin `a`new, `e`nd, `c`onnect, `s`ay goodbye, `w`elcome, refuse because it is `r`emoved, its session is
/// `o`ver, its `d`ata differ or it comes `t`oo early, `p`robe, end both for it comes in `v`ain.
const TABLE: &str = "
                     U  N  C  K  L  X  G  R
Add                  Nb Nc Cc Kc Na X. Nb Nb
AddOtherCard         Nb Na Na Na Na X. Nb Nb
Remove               R. Ls Ls Ls L. X. R. R.
Close                U. Xs Xs Xs L. X. G. R.
Told                 U. N. C. K. Re Ge G. R.
HelloFirst           Nb Nw Cw Kp Lr Xw Nb Rr
HelloCurrent         Nb Nw Cw Kw Lr Xw Nb Rr
HelloAnew            Nb Na Na Na Lr Xt Nb Rr
HelloAnewInVain      Uo Gv Gv Gv Lr Xt Go Rr
HelloTooEarly        Nb Np Cp Kp Lr Xt Nb Rr
HelloOver            Uo No Co Ko Lr Xt Go Rr
HelloOtherCard       Ud Nd Cd Kd Lr Xt Gd Rr
Bye                  U. Ge Ge Ge Re Ge G. R.
Up                   U. C. C. C. L. X. G. R.
Down                 U. N. K. K. L. X. G. R.
NobodyThere          U. Ge C. Ge Re Ge G. R.
DismissedProven      U. Ge C. Ge Re Ge G. R.
DismissedUnproven    U. Ge C. K. Re Ge G. R.
Unreachable          U. Ge C. Ge Re Ge G. R.
Silent               U. Ge Ge Ge Re Ge G. R.
";

/// Returns the row of an event. An event without one does not compile.
fn row(event: PeerEvent) -> &'static str {
    match event {
        PeerEvent::Add => "Add",
        PeerEvent::AddOtherCard => "AddOtherCard",
        PeerEvent::Remove => "Remove",
        PeerEvent::Close => "Close",
        PeerEvent::Told => "Told",
        PeerEvent::Hello(HelloKind::First) => "HelloFirst",
        PeerEvent::Hello(HelloKind::Current) => "HelloCurrent",
        PeerEvent::Hello(HelloKind::Anew) => "HelloAnew",
        PeerEvent::Hello(HelloKind::AnewInVain) => "HelloAnewInVain",
        PeerEvent::Hello(HelloKind::TooEarly) => "HelloTooEarly",
        PeerEvent::Hello(HelloKind::Over) => "HelloOver",
        PeerEvent::Hello(HelloKind::OtherCard) => "HelloOtherCard",
        PeerEvent::Bye => "Bye",
        PeerEvent::Up => "Up",
        PeerEvent::Down => "Down",
        PeerEvent::NobodyThere => "NobodyThere",
        PeerEvent::Dismissed { proven: true } => "DismissedProven",
        PeerEvent::Dismissed { proven: false } => "DismissedUnproven",
        PeerEvent::Unreachable => "Unreachable",
        PeerEvent::Silent => "Silent",
    }
}

fn is_of_the_user(event: PeerEvent) -> bool {
    matches!(event, PeerEvent::Add | PeerEvent::AddOtherCard | PeerEvent::Remove | PeerEvent::Close)
}

fn letter(state: PeerState) -> char {
    match state {
        PeerState::Unknown => 'U',
        PeerState::New => 'N',
        PeerState::Connected => 'C',
        PeerState::CutOff => 'K',
        PeerState::Leaving => 'L',
        PeerState::Closing => 'X',
        PeerState::Lost => 'G',
        PeerState::Removed => 'R',
    }
}

fn sign(action: Action) -> char {
    match action {
        Action::Nothing => '.',
        Action::Begin => 'b',
        Action::BeginAnew => 'a',
        Action::End => 'e',
        Action::Connect => 'c',
        Action::SayBye => 's',
        Action::Welcome => 'w',
        Action::Refuse(RefusedCode::Removed) => 'r',
        Action::Refuse(RefusedCode::SessionOver) => 'o',
        Action::Refuse(RefusedCode::OtherCard) => 'd',
        Action::Refuse(RefusedCode::OtherSession) => 't',
        Action::Refuse(other) => panic!("{other:?}"),
        Action::RefuseAndProbe => 'p',
        Action::EndBoth => 'v',
    }
}

#[test]
fn every_event_in_every_state_leads_where_the_table_says() {
    let mut lines = TABLE.lines().filter(|line| !line.is_empty());
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(head, PeerState::ALL.map(|state| letter(state).to_string()));
    let rows: Vec<(&str, Vec<&str>)> = lines
        .map(|line| {
            let mut words = line.split_whitespace();
            (words.next().unwrap(), words.collect())
        })
        .collect();
    assert_eq!(rows.iter().map(|(name, _)| *name).collect::<Vec<_>>(), EVENTS.map(row));
    for (event, (name, cells)) in EVENTS.into_iter().zip(rows) {
        assert_eq!(cells.len(), PeerState::ALL.len(), "{name}");
        for (state, cell) in PeerState::ALL.into_iter().zip(cells) {
            let (after, action) = state.after(event);
            let found = format!("{}{}", letter(after), sign(action));
            assert_eq!(found, cell, "{name} in {state:?}");
        }
    }
}

#[test]
fn a_number_is_the_state_that_it_was() {
    for (number, state) in PeerState::ALL.into_iter().enumerate() {
        assert_eq!((state as usize, PeerState::from_number(number as u8)), (number, state));
    }
}

/// Returns the states that such events can reach.
fn reached(from: PeerState, may: impl Fn(PeerState, PeerEvent) -> bool) -> HashSet<PeerState> {
    let (mut seen, mut open) = (HashSet::from([from]), vec![from]);
    while let Some(state) = open.pop() {
        for event in EVENTS.into_iter().filter(|event| may(state, *event)) {
            let (after, _) = state.after(event);
            if seen.insert(after) {
                open.push(after);
            }
        }
    }
    seen
}

#[test]
fn a_peer_comes_back_from_every_state_by_itself_unless_the_user_has_parted_with_it() {
    for state in PeerState::ALL {
        let by_itself = reached(state, |_, event| !is_of_the_user(event));
        let by_user = matches!(state, PeerState::Leaving | PeerState::Removed);
        assert_eq!(by_itself.contains(&PeerState::Connected), !by_user, "{state:?}");
        let when_added =
            reached(state, |_, event| !is_of_the_user(event) || event == PeerEvent::Add);
        assert!(when_added.contains(&PeerState::Connected), "{state:?}");
    }
}

#[test]
fn only_the_user_removes_a_peer_and_has_it_back() {
    for state in PeerState::ALL {
        for event in EVENTS {
            let (after, _) = state.after(event);
            let note = format!("{event:?} in {state:?}");
            if after == PeerState::Removed && state != PeerState::Removed {
                assert!(event == PeerEvent::Remove || state == PeerState::Leaving, "{note}");
            }
            if after == PeerState::Leaving && state != PeerState::Leaving {
                assert_eq!(event, PeerEvent::Remove, "{note}");
            }
            if state == PeerState::Removed && after != PeerState::Removed {
                assert!(matches!(event, PeerEvent::Add | PeerEvent::AddOtherCard), "{note}");
            }
        }
    }
}

#[test]
fn a_session_ends_exactly_where_its_state_does() {
    for state in PeerState::ALL {
        for event in EVENTS {
            let (after, action) = state.after(event);
            let is_end = matches!(action, Action::End | Action::EndBoth);
            let ends = is_end || action == Action::BeginAnew;
            let begins = matches!(action, Action::Begin | Action::BeginAnew);
            let note = format!("{event:?} in {state:?}");
            assert!(!ends || !state.is_over(), "{note}: nothing to end");
            assert!(!begins || after == PeerState::New, "{note}: a session begins as a new one");
            let (was, is) = (!state.is_over(), !after.is_over());
            assert_eq!(was && !is, is_end, "{note}");
            assert_eq!(!was && is, action == Action::Begin, "{note}");
        }
    }
}

#[test]
fn what_nobody_has_proven_ends_no_peer_that_was_connected() {
    let codes = [
        RefusedCode::Version,
        RefusedCode::Malformed,
        RefusedCode::WrongInstance,
        RefusedCode::Removed,
        RefusedCode::Limit,
        RefusedCode::Capability,
        RefusedCode::SessionOver,
        RefusedCode::OtherCard,
        RefusedCode::OtherSession,
        RefusedCode::NotAdmitted,
        RefusedCode::Undecided,
        RefusedCode::Unproven,
    ];
    let finals = |proven, state| codes.into_iter().filter(move |c| is_final(*c, proven, state));
    let never_changes = [
        RefusedCode::Version,
        RefusedCode::WrongInstance,
        RefusedCode::SessionOver,
        RefusedCode::NotAdmitted,
        RefusedCode::Unproven,
    ];
    for proven in [true, false] {
        assert_eq!(finals(proven, PeerState::New).collect::<Vec<_>>(), never_changes);
    }
    for state in [PeerState::Connected, PeerState::CutOff] {
        assert_eq!(finals(false, state).count(), 0, "{state:?}");
        let proven: HashSet<_> = finals(true, state).collect();
        assert!(never_changes.iter().all(|code| proven.contains(code)), "{state:?}");
        assert!(proven.contains(&RefusedCode::Removed) && proven.len() == 6, "{state:?}");
    }
}

#[test]
fn a_peer_is_dismissed_by_a_final_word_on_every_flow() {
    let mut attempts = Attempts::new(2, 3);
    let dismissed = |proven| Some(PeerEvent::Dismissed { proven });
    attempts.refused(0, 0, Some(true));
    attempts.refused(1, 1, Some(true));
    assert_eq!(attempts.verdict(), None);
    attempts.refused(0, 2, Some(true));
    assert_eq!(attempts.verdict(), dismissed(true));
    attempts.refused(0, 2, Some(false));
    assert_eq!(attempts.verdict(), dismissed(false), "one of them may be anybody's");
    attempts.refused(0, 2, None);
    assert_eq!(attempts.verdict(), None, "a word that is not final takes back one that was");
    attempts.refused(0, 0, Some(false));
    assert_eq!(attempts.verdict(), None, "one flow is missing, whatever the first heard");
    attempts.refused(0, 0, Some(true));
    attempts.refused(0, 2, Some(true));
    attempts.up(1, 1);
    assert_eq!(attempts.verdict(), None);
}

#[test]
fn nobody_is_there_when_every_rail_that_worked_has_refused_for_long_enough() {
    let at = |ms: u64| Time::default().after(Duration::from_millis(ms));
    let (first, second) = (at(0), at(100));
    let mut attempts = Attempts::new(3, 3);
    for rail in 0..2 {
        attempts.leads_there(rail);
        attempts.up(rail, rail);
        attempts.nobody_there(rail, first);
        assert!(attempts.is_unsure(rail));
        // All flows of a rail are refused at once; that is one round.
        attempts.nobody_there(rail, at(1));
    }
    assert_eq!(attempts.verdict(), None, "one round of attempts");
    attempts.nobody_there(0, second);
    assert_eq!(attempts.verdict(), None, "the other rail may lead there");
    assert!(!attempts.is_unsure(0) && attempts.is_unsure(1));
    attempts.nobody_there(1, second);
    // The third rail never led there, so its attempts don't count.
    assert_eq!(attempts.verdict(), Some(PeerEvent::NobodyThere));
    attempts.somebody_there(1);
    assert_eq!(attempts.verdict(), None, "no way there, or time ran out: a cable was cut");
    attempts.nobody_there(1, at(300));
    assert_eq!(attempts.verdict(), None, "begun anew");
    attempts.nobody_there(1, at(400));
    assert_eq!(attempts.verdict(), Some(PeerEvent::NobodyThere));
    attempts.up(0, 0);
    assert_eq!(attempts.verdict(), None);
}

#[test]
fn a_peer_that_no_rail_has_led_to_is_gone_when_all_rails_refuse_for_longer() {
    let at = |ms: u64| Time::default().after(Duration::from_millis(ms));
    let mut attempts = Attempts::new(3, 3);
    (0..3).for_each(|rail| attempts.nobody_there(rail, at(0)));
    (0..3).for_each(|rail| attempts.nobody_there(rail, at(999)));
    assert_eq!(attempts.verdict(), None, "its own flows may come yet");
    assert!((0..3).all(|rail| !attempts.is_unsure(rail)), "no reason to hurry");
    (0..2).for_each(|rail| attempts.nobody_there(rail, at(1000)));
    assert_eq!(attempts.verdict(), None, "the third may lead there");
    attempts.nobody_there(2, at(1000));
    assert_eq!(attempts.verdict(), Some(PeerEvent::NobodyThere));
    attempts.somebody_there(1);
    assert_eq!(attempts.verdict(), None, "time ran out on a rail: nobody refuses there");
    assert_eq!(Attempts::new(0, 0).verdict(), None);
}

#[test]
fn rails_that_took_the_place_of_others_have_led_nowhere_yet() {
    let (mut attempts, start) = (Attempts::new(2, 2), Time(1));
    attempts.leads_there(0);
    attempts.leads_there(1);
    attempts.forget(0);
    attempts.nobody_there(0, start);
    attempts.nobody_there(0, start.after(CONFIRM));
    assert_eq!(attempts.verdict(), None, "the new rails of pair 0 may lead elsewhere");
    assert!(!attempts.has_led_there(0) && attempts.has_led_there(1));
}

#[test]
fn a_hello_is_judged_by_what_either_end_has_heard_before() {
    let greet = |said, knows, own, heard, flows, unused| {
        let over = &[3, 4];
        greeting(Sessions { said, knows, own, heard, over }, true, flows, || unused)
    };
    let of_other_card = |said| {
        let sessions = Sessions { said, knows: None, own: None, heard: None, over: &[4] };
        greeting(sessions, false, false, || false)
    };
    assert_eq!([4, 5].map(of_other_card), [HelloKind::Over, HelloKind::OtherCard]);
    let ours = Some(9);
    assert_eq!(greet(4, None, ours, None, false, false), HelloKind::Over);
    assert_eq!(greet(3, ours, ours, Some(3), true, true), HelloKind::Over);
    assert_eq!(greet(5, None, ours, None, false, false), HelloKind::First);
    assert_eq!(greet(5, ours, ours, None, false, false), HelloKind::Current);
    for own in [None, ours] {
        let of_forgotten = greet(5, Some(8), own, None, false, true);
        assert_eq!(of_forgotten, HelloKind::Over, "it goes on with what is over here");
    }
    assert_eq!(greet(5, None, ours, Some(5), true, false), HelloKind::Current);
    assert_eq!(greet(6, None, ours, Some(5), true, true), HelloKind::TooEarly);
    let replaced = greet(6, ours, ours, Some(5), false, true);
    assert_eq!(replaced, HelloKind::Current, "nothing came of the other");
    assert_eq!(greet(6, None, ours, Some(5), false, false), HelloKind::Anew);
    assert_eq!(greet(6, ours, ours, Some(5), false, false), HelloKind::AnewInVain);
    let of_earlier = greet(6, Some(8), ours, Some(5), false, false);
    assert_eq!(of_earlier, HelloKind::Anew, "it ends with our new one anyway");
}
