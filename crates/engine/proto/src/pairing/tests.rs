use std::net::SocketAddr;

use super::*;

fn rail(name: &str, address: &str, prefix_len: u8, speed_mbps: u32) -> RailCard {
    let address = SocketAddr::new(address.parse().unwrap(), 1);
    RailCard { name: name.to_owned(), address, prefix_len, speed_mbps }
}

fn rails(addresses: &[&str]) -> Vec<RailCard> {
    let numbered = addresses.iter().enumerate();
    numbered.map(|(at, address)| rail(&format!("eth{at}"), address, 24, 0)).collect()
}

/// Returns reachability by networks and families only, as where the kernel can't be queried.
fn unasked(local: &[RailCard], remote: &[RailCard]) -> Vec<Vec<Reach>> {
    let reach = |a: &RailCard, b: &RailCard| match a.network().overlaps(&b.network()) {
        true => Reach::SameSubnet,
        false if a.address.is_ipv4() != b.address.is_ipv4() => Reach::Unreachable(Never::Family),
        false => Reach::Unknown,
    };
    local.iter().map(|a| remote.iter().map(|b| reach(a, b)).collect()).collect()
}

fn pairing(local: &[RailCard], remote: &[RailCard], reach: &[Vec<Reach>]) -> Pairing {
    Question { local, remote, reach, is_named: false }.pair()
}

fn pairs(local: &[&str], remote: &[&str]) -> Vec<(usize, usize)> {
    let (local, remote) = (rails(local), rails(remote));
    pairing(&local, &remote, &unasked(&local, &remote)).pairs
}

#[test]
fn rails_of_one_network_are_paired_whatever_their_order() {
    assert_eq!(pairs(&["10.0.1.1", "10.0.2.1"], &["10.0.2.2", "10.0.1.2"]), [(0, 1), (1, 0)]);
}

#[test]
fn where_networks_tell_nothing_rail_k_goes_with_rail_k() {
    let local = ["10.0.1.1", "10.0.2.1", "10.0.3.1"];
    assert_eq!(pairs(&local, &["10.1.1.1", "10.1.2.1"]), [(0, 0), (1, 1), (2, 0)]);
    assert_eq!(pairs(&["10.0.1.1", "10.0.1.2"], &["10.0.1.1", "10.0.1.2"]), [(0, 0), (1, 1)]);
    // Loopback rails in another order.
    assert_eq!(pairs(&["127.0.0.2", "127.0.0.1"], &["127.0.0.1", "127.0.0.2"]), [(0, 0), (1, 1)]);
}

#[test]
fn a_rail_without_a_network_in_common_is_left_out_when_others_have_one() {
    let (local, remote) = (rails(&["10.0.1.1", "192.168.7.1"]), rails(&["10.0.1.2", "172.16.5.1"]));
    let found = pairing(&local, &remote, &unasked(&local, &remote));
    assert_eq!(found.pairs, [(0, 0)]);
    let why = found.idle_local[1].as_deref().unwrap();
    assert!(
        why.starts_with(
            "192.168.7.1/24 is in no network of the rails of the end opposite (10.0.1.2, 172"
        ),
        "{why}"
    );
    assert_eq!(
        found.idle_remote[1].as_deref(),
        Some("no route was found from the rails of the other end to 172.16.5.1")
    );
}

/// Returns a separate network for each NIC, with a /32 address and a route to the network by device.
fn each_its_own(numbers: &[usize], end: u8) -> Vec<RailCard> {
    let rail = |n: &usize| rail(&format!("eth{n}"), &format!("10.{n}.0.{end}"), 32, 0);
    numbers.iter().map(rail).collect()
}

fn by_number(local: &[RailCard], remote: &[RailCard]) -> Vec<Vec<Reach>> {
    let reach = |a: &RailCard, b: &RailCard| match a.name == b.name {
        true => Reach::OnLinkRoute { prefix_len: 24 },
        false => Reach::NoRoute,
    };
    local.iter().map(|a| remote.iter().map(|b| reach(a, b)).collect()).collect()
}

#[test]
fn with_an_address_of_its_own_for_each_nic_routes_decide_and_not_positions() {
    let of = |local: &[usize], remote: &[usize]| {
        let (local, remote) = (each_its_own(local, 11), each_its_own(remote, 12));
        pairing(&local, &remote, &by_number(&local, &remote))
    };
    let found = of(&[1, 2, 3, 4], &[1, 3, 4]);
    assert_eq!(found.pairs, [(0, 0), (2, 1), (3, 2)]);
    let why = "no route from 10.2.0.11 through this interface to 10.1.0.12, 10.3.0.12, 10.4.0.12 \
               when the two ends met";
    assert_eq!(found.idle_local[1].as_deref(), Some(why));
    let found = of(&[1, 3], &[3, 2, 1]);
    assert_eq!(found.pairs, [(0, 2), (1, 0)]);
    assert_eq!(
        found.idle_remote[1].as_deref(),
        Some("no route was found from the rails of the other end to 10.2.0.12")
    );
}

#[test]
fn a_rail_whose_network_the_peer_has_no_rail_in_says_so() {
    use Reach::{NoRoute, SameSubnet};
    let why = |local: RailCard, remote: &[&str]| {
        let local = [rail("eth0", "10.60.0.2", 24, 0), local];
        let remote = rails(remote);
        let reach = [vec![SameSubnet; remote.len()], vec![NoRoute; remote.len()]];
        pairing(&local, &remote, &reach).idle_local[1].clone().unwrap()
    };
    assert_eq!(
        why(rail("eth1", "10.60.1.2", 24, 0), &["10.60.0.1", "10.60.2.1"]),
        "no rail of the end opposite is in 10.60.1.0/24, and no route led from 10.60.1.2 through this interface to \
         10.60.0.1, 10.60.2.1 when the two ends met"
    );
    let six = why(rail("eth1", "fd00:1::2", 64, 0), &["10.60.0.1"]);
    assert!(
        six.starts_with("no rail of the end opposite is in fd00:1::/64, and no route"),
        "{six}"
    );
    let alone = why(rail("eth1", "10.60.1.2", 32, 0), &["10.60.0.1"]);
    assert_eq!(
        alone,
        "no route from 10.60.1.2 through this interface to 10.60.0.1 when the two ends met"
    );
}

#[test]
fn routed_rails_are_used_beside_a_network_in_common() {
    use Reach::{DefaultRoute, NoRoute, Route, SameSubnet};
    let local = rails(&["192.168.9.1", "10.20.1.1", "10.21.1.1"]);
    let remote = rails(&["192.168.9.2", "10.20.2.1", "10.21.2.1"]);
    let route = Route { prefix_len: 16 };
    let reach = [
        vec![SameSubnet, DefaultRoute, DefaultRoute],
        vec![NoRoute, route, NoRoute],
        vec![NoRoute, NoRoute, route],
    ];
    assert_eq!(pairing(&local, &remote, &reach).pairs, [(0, 0), (1, 1), (2, 2)]);
    // The longer prefix, and a default route where there is nothing else.
    let (short, long) = (Route { prefix_len: 8 }, Route { prefix_len: 24 });
    let reach = [vec![short, long], vec![long, short]];
    assert_eq!(pairing(&local[..2], &remote[..2], &reach).pairs, [(0, 1), (1, 0)]);
    let reach = [vec![DefaultRoute, DefaultRoute], vec![route, NoRoute]];
    assert_eq!(pairing(&local[..2], &remote[..2], &reach).pairs, [(0, 1), (1, 0)]);
    // A default route adds no second pair to a rail that is taken.
    let found = pairing(&local[..2], &remote[..1], &[vec![SameSubnet], vec![DefaultRoute]]);
    assert_eq!(found.pairs, [(0, 0)]);
    let why = "it reaches only 1 rail of the end opposite, all paired";
    assert_eq!(found.idle_local[1].as_deref(), Some(why));
}

#[test]
fn fast_rails_go_with_fast_ones_and_slow_ones_beside_them_are_left_out_unless_named() {
    let end = |last: u8, speeds: [u32; 3]| -> Vec<RailCard> {
        let rail = |(at, speed): (usize, u32)| {
            rail(&format!("eth{at}"), &format!("10.0.0.{}", last + at as u8), 24, speed)
        };
        speeds.into_iter().enumerate().map(rail).collect()
    };
    let (local, remote) = (end(1, [1000, 25_000, 100_000]), end(11, [100_000, 1000, 25_000]));
    let reach = unasked(&local, &remote);
    let question = |is_named| Question { local: &local, remote: &remote, reach: &reach, is_named };
    assert_eq!(question(true).pair().pairs, [(0, 1), (1, 2), (2, 0)]);
    let found = question(false).pair();
    assert_eq!(found.pairs, [(1, 2), (2, 0)]);
    let why = found.idle_local[0].as_deref().unwrap();
    assert!(why.starts_with("eth0 at 1000 Mbit/s is left out") && why.contains("`rails`"), "{why}");
    assert_eq!(found.idle_remote[1], found.idle_local[0]);
    // One fast rail serves two there that are half as fast, and no third.
    let remote = end(11, [50_000, 50_000, 50_000]);
    let local = &local[2..];
    let found = pairing(local, &remote, &unasked(local, &remote));
    assert_eq!(found.pairs, [(0, 0), (0, 2)], "eth2 with eth2 first");
    let why = "only 1 rail of the other end can reach it, all paired";
    assert_eq!(found.idle_remote[1].as_deref(), Some(why));
}

#[test]
fn a_peer_that_announces_many_rails_gets_a_few_pairs_for_each_rail_here() {
    let local = [rail("eth0", "10.0.0.1", 24, 400_000), rail("eth1", "10.0.0.2", 24, 400_000)];
    let one = |at: u8| rail(&format!("eth{at}"), &format!("10.0.0.{}", 10 + at), 24, 6000);
    let remote: Vec<RailCard> = (0..MAX_RAILS as u8).map(one).collect();
    let reach = unasked(&local, &remote);
    let question = Question { local: &local, remote: &remote, reach: &reach, is_named: true };
    assert_eq!(question.pair().pairs.len(), 8);
}

#[test]
fn an_interface_that_is_down_keeps_the_rail_that_it_would_reach() {
    let (local, remote) = (rails(&["10.0.0.1", "10.0.1.1"]), rails(&["10.0.0.2", "10.0.1.2"]));
    let mut reach = unasked(&local, &remote);
    reach[0].fill(Reach::Down);
    (reach[1][0], reach[1][1]) = (Reach::NoRoute, Reach::SameSubnet);
    assert_eq!(pairing(&local, &remote, &reach).pairs, [(0, 0), (1, 1)]);
    let found = pairing(&local, &remote[1..], &[vec![Reach::Down], vec![Reach::SameSubnet]]);
    let why = "its interface is down or has no carrier";
    assert_eq!((found.pairs, found.idle_local[0].as_deref()), (vec![(1, 0)], Some(why)));
}

#[test]
fn what_can_never_meet_is_told_with_the_reason() {
    let none = |local: &[&str], remote: &[&str], reach: Option<Never>| {
        let (local, remote) = (rails(local), rails(remote));
        let mut all = unasked(&local, &remote);
        if let Some(never) = reach {
            all.iter_mut().flatten().for_each(|reach| *reach = Reach::Unreachable(never));
        }
        let question = Question { local: &local, remote: &remote, reach: &all, is_named: false };
        assert_eq!(question.pair().pairs, []);
        question.why_none()
    };
    let why = none(&["10.0.1.1", "10.0.2.1"], &["fd00::1"], None);
    assert_eq!(
        why,
        "no rail of the end opposite has an IPv4 address; an interface that has both gives its rail the one that \
         `address_family` there says, or IPv4"
    );
    let why = none(&["127.0.0.1"], &["10.0.0.1"], Some(Never::Loopback));
    assert_eq!(why, "127.0.0.1 is a loopback address, which reaches this host only");
}

#[test]
fn what_failed_is_replaced_by_what_is_free_and_never_by_what_has_no_route() {
    let (local, remote) = (each_its_own(&[1, 2, 3], 1), each_its_own(&[1, 2, 3], 2));
    let reach = by_number(&local, &remote);
    let question = Question { local: &local, remote: &remote, reach: &reach, is_named: false };
    assert_eq!(question.instead(&[1, 2], &[1, 2], &[(1, 1)]), [(2, 2)]);
    assert_eq!(question.instead(&[1], &[1], &[(1, 1)]), []);
    // The others are tried where the kernel could not be queried.
    let reach = unasked(&local, &remote);
    let question = Question { reach: &reach, ..question };
    assert_eq!(question.instead(&[1, 2], &[1, 2], &[(1, 1), (2, 2)]), [(1, 2), (2, 1)]);
    assert_eq!(question.instead(&[1, 2], &[1], &[(1, 1)]), [(2, 1)]);
}

/// Random numbers from a seed, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Returns NICs of two nodes: the fabric of each, its prefix, family and speed, which interfaces are down, and which
/// fabrics are routed to each other.
fn topology(random: &mut Random, most: u64) -> (Vec<RailCard>, Vec<RailCard>, Vec<Vec<Reach>>) {
    let mut node = |end: u8| -> Vec<(RailCard, u64, bool)> {
        let count = 1 + random.below(most);
        let nic = |at: u64| {
            let (fabric, down) = (random.below(6), random.below(8) == 0);
            let prefix = [16, 24, 31, 32][random.below(4) as usize];
            let speed = [0, 1000, 25_000, 100_000, 400_000][random.below(5) as usize];
            let host = at * 4 + u64::from(end);
            let (address, prefix) = match random.below(5) {
                0 => (format!("fd00:{fabric}::{host}"), prefix * 4),
                _ => (format!("10.{fabric}.{}.{end}", at * 3), prefix),
            };
            (rail(&format!("eth{at}"), &address, prefix, speed), fabric, down)
        };
        (0..count).map(nic).collect()
    };
    let (here, there) = (node(1), node(2));
    let is_routed: Vec<bool> = (0..36).map(|_| random.below(4) == 0).collect();
    let has_default: Vec<bool> = (0..6).map(|_| random.below(3) == 0).collect();
    let is_known = random.below(5) > 0;
    let reach = |a: &(RailCard, u64, bool), b: &(RailCard, u64, bool)| {
        let (low, high) = (a.1.min(b.1), a.1.max(b.1));
        if a.0.address.is_ipv4() != b.0.address.is_ipv4() {
            Reach::Unreachable(Never::Family)
        } else if a.2 || b.2 {
            Reach::Down
        } else if a.0.network().overlaps(&b.0.network()) {
            Reach::SameSubnet
        } else if !is_known {
            Reach::Unknown
        } else if a.1 == b.1 {
            Reach::OnLinkRoute { prefix_len: 16 }
        } else if is_routed[(low * 6 + high) as usize] {
            Reach::Route { prefix_len: 8 }
        } else if has_default[low as usize] && has_default[high as usize] {
            Reach::DefaultRoute
        } else {
            Reach::NoRoute
        }
    };
    let reach = here.iter().map(|a| there.iter().map(|b| reach(a, b)).collect()).collect();
    let cards = |node: Vec<(RailCard, u64, bool)>| node.into_iter().map(|nic| nic.0).collect();
    (cards(here), cards(there), reach)
}

#[test]
fn over_random_topologies_what_is_reachable_is_paired_and_nothing_else() {
    for seed in 0..3000 {
        let (local, remote, reach) = topology(&mut Random(seed), 8);
        let named = |local, remote, reach| Question { local, remote, reach, is_named: true }.pair();
        let found = named(&local, &remote, &reach);
        assert_eq!(found, named(&local, &remote, &reach), "seed {seed}");
        assert!(found.pairs.is_sorted_by(|one, next| one < next), "seed {seed}: {found:?}");
        let has_way = reach.iter().flatten().any(|reach| reach.is_way());
        for (a, b) in &found.pairs {
            let reach = reach[*a][*b];
            let may = if has_way { reach.is_way() || reach == Reach::Down } else { reach.is_try() };
            assert!(may, "seed {seed}: {a} {b} {reach:?}");
        }
        let is_paired = |local: usize| found.pairs.iter().any(|pair| pair.0 == local);
        let is_used = |remote: usize| found.pairs.iter().any(|pair| pair.1 == remote);
        for (a, row) in reach.iter().enumerate() {
            assert_eq!(is_paired(a), found.idle_local[a].is_none(), "seed {seed}: {found:?}");
            // A usable rail is in a pair, or all rails that it reaches are.
            let reached = (0..remote.len()).filter(|b| row[*b].is_way());
            assert!(
                is_paired(a) || reached.clone().all(is_used),
                "seed {seed}: rail {a} {found:?}"
            );
            assert!(!row.iter().any(|reach| reach.is_specific()) || is_paired(a), "seed {seed}");
        }
        for (b, idle) in found.idle_remote.iter().enumerate() {
            assert_eq!(is_used(b), idle.is_none(), "seed {seed}: {found:?}");
            let mut reaching = (0..local.len()).filter(|a| reach[*a][b].is_way());
            assert!(is_used(b) || reaching.all(is_paired), "seed {seed}: rail {b} there {found:?}");
        }
        // More pairs are impossible with each rail in one pair.
        let most = largest(&reach);
        let mut once = std::collections::BTreeSet::new();
        for (_, b) in found.pairs.iter().filter(|(a, b)| reach[*a][*b].is_way()) {
            once.insert(*b);
        }
        assert!(once.len() >= most, "seed {seed}: {} of {most}", once.len());
    }
}

/// Returns the maximum number of pairs, by trying paths of exchanges.
fn largest(reach: &[Vec<Reach>]) -> usize {
    fn find(a: usize, reach: &[Vec<Reach>], of: &mut [Option<usize>], seen: &mut [bool]) -> bool {
        for b in 0..of.len() {
            if reach[a][b].is_way() && !std::mem::replace(&mut seen[b], true) {
                let is_free = match of[b] {
                    None => true,
                    Some(other) => find(other, reach, of, seen),
                };
                if is_free {
                    of[b] = Some(a);
                    return true;
                }
            }
        }
        false
    }
    let mut of = vec![None; reach.first().map_or(0, Vec::len)];
    (0..reach.len()).filter(|a| find(*a, reach, &mut of, &mut vec![false; of_len(reach)])).count()
}

fn of_len(reach: &[Vec<Reach>]) -> usize {
    reach.first().map_or(0, Vec::len)
}

#[test]
fn both_ends_choose_the_same_pairs_where_they_see_the_same() {
    for seed in 0..3000 {
        let (local, remote, reach) = topology(&mut Random(seed), 8);
        let turned: Vec<Vec<Reach>> =
            (0..remote.len()).map(|b| reach.iter().map(|row| row[b]).collect()).collect();
        let question = |local, remote, reach| Question { local, remote, reach, is_named: true };
        let here = question(&local, &remote, &reach).matched(&Reach::is_way);
        let there = question(&remote, &local, &turned).matched(&Reach::is_way);
        let mut there: Vec<_> = there.into_iter().map(|(a, b)| (b, a)).collect();
        let mut here = here;
        here.sort_unstable();
        there.sort_unstable();
        assert_eq!(here, there, "seed {seed}");
    }
}

#[test]
fn the_most_rails_that_an_engine_may_have_are_paired_each_with_its_own() {
    let end = |last: u8| -> Vec<RailCard> {
        (0..64).map(|at| rail(&format!("eth{at}"), &format!("10.0.{at}.{last}"), 16, 0)).collect()
    };
    let (local, remote) = (end(1), end(2));
    let found = pairing(&local, &remote, &unasked(&local, &remote));
    assert_eq!(found.pairs, (0..64).map(|at| (at, at)).collect::<Vec<_>>());
}
