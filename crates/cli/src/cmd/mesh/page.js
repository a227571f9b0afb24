// The page of a mesh, from the JSON of `polyrail mesh --json`.

const shown = data.layouts.flatMap((layout) => layout.patterns.map((pattern) => ({
  layout, pattern, name: data.layouts.length > 1 ? `${pattern.pattern}, layout ${layout.layout}` : pattern.pattern })));
const percent = (share) => showPercent(100 * share);
const halfRange = (spread) => spread.median > 0 ? 50 * (spread.max - spread.min) / spread.median : 0;
// One round has no range.
const varies = (spread) => data.rounds > 1 ? `± ${showPercent(halfRange(spread))}` : "–";
const inGb = (pattern) => pattern.transfers * data.size_bytes / 1e9;

Object.assign(terms, {
  "rounds vary by": "half the range of the rounds, of their median",
  depth: "transfers under way per pair on average",
  "window full": "the part of the time in which flows had something to send and the receiver's or the network's window was full",
  "socket full": "the same with no room in the socket: the NIC is slower than the sender",
  "segments again": "TCP segments that the kernel sent again, since they or their acknowledgements were lost or late",
  "chunks again": "chunks that went over another flow, because theirs died or stalled",
  softirq: "time in which the kernel handles packets outside of any process",
  NET_RX: "softirqs that handled received packets",
  NET_TX: "softirqs that handled sent packets",
  squeezed: "times that the kernel stopped handling packets with some left, because its turn was over",
});

function totals() {
  section("Patterns", "", table(["layout", "pattern", "processes", "steps", "total", "rounds vary by", "CPU s/GB", "depth"], shown.map(({ layout, pattern }) => {
    const depths = pattern.pairs.map((pair) => pair.depth).sort((a, b) => a - b);
    return [layout.layout, pattern.pattern, layout.processes, pattern.steps, showRate(pattern.total_gb_per_s.median), varies(pattern.total_gb_per_s),
      inGb(pattern) > 0 ? digits(pattern.cpu_seconds / inGb(pattern)) : "–", digits(depths[Math.floor(depths.length / 2)])];
  })));
}

function pairs({ pattern, name }) {
  const names = pattern.endpoints.map((end) => end.name);
  return heatMap(name, names, (row, column) => {
    const one = pattern.pairs.find((pair) => pair.from === names[row] && pair.to === names[column]);
    return one && { value: one.gb_per_s.median, text: digits(one.gb_per_s.median),
      says: `${one.from} → ${one.to}: ${showRate(one.gb_per_s.median)} ${varies(one.gb_per_s)}\n` +
        `sender's clock ${showRate(one.sender_gb_per_s)}, receiver's ${showRate(one.receiver_gb_per_s)}\n` +
        `${digits(one.depth)} under way, ${showTime(one.mean_transfer_us * 1e3)} each` };
  }, "GB/s", digits);
}

// Rows of several patterns in one table, which names the pattern where there are several.
function rows(ones, headings, of) {
  const isOne = ones.length === 1;
  return table(isOne ? headings : [...headings.slice(0, 1), "pattern", ...headings.slice(1)],
    ones.flatMap((one) => of(one.pattern).map(([first, ...more]) => isOne ? [first, ...more] : [first, one.name, ...more])));
}

function ends(ones) {
  return rows(ones, ["endpoint or node", "sends", "gets"], (pattern) =>
    (pattern.endpoints.length > pattern.nodes.length ? [...pattern.endpoints, ...pattern.nodes] : pattern.nodes)
      .map((flow) => [flow.name, showRate(flow.tx_gb_per_s), showRate(flow.rx_gb_per_s)]));
}

function nics(ones) {
  return rows(ones, ["NIC", "sends", "gets", "window full", "socket full", "segments again", "chunks again", "dropped in", "dropped out"], (pattern) =>
    pattern.nics.map((nic) => [`node${nic.node} ${nic.name}`, showRate(nic.tx_gb_per_s), showRate(nic.rx_gb_per_s), percent(nic.window_full_share), percent(nic.socket_full_share),
      nic.retransmits, nic.resent_chunks, nic.rx_dropped, nic.tx_dropped]));
}

function cpus(ones) {
  return rows(ones, ["CPU", "busy", "user", "system", "irq", "softirq", "NET_RX", "NET_TX", "dropped", "squeezed"], (pattern) =>
    pattern.machines.flatMap((machine) => machine.cpus.map((cpu) => [`${machine.host} cpu${cpu.cpu}`,
      ...[cpu.busy_percent, cpu.user_percent, cpu.system_percent, cpu.irq_percent, cpu.softirq_percent].map(showPercent),
      cpu.net_rx, cpu.net_tx, cpu.dropped, cpu.squeezed])));
}

function details(ones) {
  const title = (textContent) => element("h3", { textContent });
  return element("div", {}, element("div", { className: "pair" }, ...ones.map(pairs)),
    title("Endpoints and nodes"), ends(ones), title("NICs"), nics(ones), title("CPUs, in percent of the measured time"), cpus(ones));
}

// Events of rails, with the times of the rounds that show them.
function events() {
  const all = shown.flatMap(({ pattern, name }) => pattern.events.map((event) => ({ ...event, name })));
  if (!all.length) return;
  const words = { down: "down", back: "back", resent: "chunks sent again", slow: "slow" };
  section("Events", "The time is the beginning of the round that shows it first; each step counts its rounds from 1.", table(["after", "pattern", "round", "rail", "event", "because"], all.map((event) =>
    [`${digits(event.at_s)} s`, event.name, event.round, `${event.end} ${event.rail}`, `${event.what === "resent" ? `${event.count} ` : ""}${words[event.what]}`, event.because ?? "–"]), true));
}

events();
if (shown.length) {
  section("Pairs", "The darker, the faster. Point at a pair for its figures.",
    shown.length > 6 ? chosen([["pattern", shown.map(({ name }, index) => [String(index), name])]], (index) => details([shown[Number(index)]])) : details(shown));
  totals();
}
notes(data.notes);
