// The page of a mesh, from the JSON of `polyrail mesh --json`.

const shown = data.layouts.flatMap((layout) => layout.patterns.map((pattern) => ({ layout, pattern })));
const rate = (value) => `${digits(value)} GB/s`;
const percent = (share) => showPercent(100 * share);
const halfRange = (spread) => spread.median > 0 ? 50 * (spread.max - spread.min) / spread.median : 0;
const inGb = (pattern) => pattern.transfers * data.size_bytes / 1e9;

function head() {
  main.replaceChildren();
  main.append(element("h1", { textContent: `Mesh of ${data.nodes} nodes` }));
  const started = new Date(data.started_unix_ms).toISOString().slice(0, 16).replace("T", " ");
  const where = data.lab ? `lab ${data.lab} on ${data.hosts[0].hostname}` : data.hosts.map((host) => host.hostname).join(", ");
  main.append(element("p", { className: "soft", textContent:
    `${started} UTC · ${where} · transfers of ${showBytes(data.size_bytes)} in ${data.memory} memory, ${data.depth} under way per pair · ` +
    `${data.rounds} rounds of ${data.time_ms} ms · polyrail ${data.tool.version}` }));
  const tile = (name, value) => element("div", { className: "tile" }, element("b", { textContent: value }), name);
  const best = shown.reduce((most, one) => Math.max(most, one.pattern.total_gb_per_s.median), 0);
  const verified = shown.reduce((sum, one) => sum + one.pattern.verified_bytes, 0);
  main.append(element("div", { className: "tiles" }, tile("nodes", data.nodes), tile("endpoints", data.nodes * data.endpoints_per_node),
    tile("of all pairs together, at most", rate(best)), tile("compared, none wrong", showBytes(verified)), tile("taken in all", showTime(data.elapsed_s * 1e9))));
  if (data.error) main.append(element("div", { className: "warning", textContent: `Ended early: ${data.error}` }));
  main.append(element("h2", { textContent: "Conclusion" }),
    element("ul", { className: "conclusion" }, ...data.conclusions.map((text) => element("li", { textContent: text }))));
  for (const note of data.notes) main.append(element("p", { className: "soft", textContent: note }));
  main.append(table(["layout", "pattern", "processes", "steps", "total", "rounds vary by", "CPU s/GB", "depth"], shown.map(({ layout, pattern }) => {
    const depths = pattern.pairs.map((pair) => pair.depth).sort((a, b) => a - b);
    return [layout.layout, pattern.pattern, layout.processes, pattern.steps, rate(pattern.total_gb_per_s.median), `± ${showPercent(halfRange(pattern.total_gb_per_s))}`,
      inGb(pattern) > 0 ? digits(pattern.cpu_seconds / inGb(pattern)) : "–", digits(depths[Math.floor(depths.length / 2)])];
  })));
}

// Shades begin at zero: a pair that is a fifth slower is a fifth paler, and no more.
function pairs({ pattern }) {
  const names = pattern.endpoints.map((end) => end.name);
  const high = Math.max(...pattern.pairs.map((pair) => pair.gb_per_s.median));
  return figure(heatMap("bandwidth of each pair", names, (row, column) => {
    const one = pattern.pairs.find((pair) => pair.from === names[row] && pair.to === names[column]);
    return one && { share: high > 0 ? one.gb_per_s.median / high : 0, text: digits(one.gb_per_s.median),
      says: `${one.from} → ${one.to}: ${rate(one.gb_per_s.median)} ± ${showPercent(halfRange(one.gb_per_s))}\n` +
        `sender's clock ${rate(one.sender_gb_per_s)}, receiver's ${rate(one.receiver_gb_per_s)}\n` +
        `${digits(one.depth)} under way, ${showTime(one.mean_transfer_us * 1e3)} each` };
  }), `From rows to columns, GB/s; shades from 0 to ${digits(high)}`);
}

function ends({ pattern }) {
  const flows = pattern.endpoints.length > pattern.nodes.length ? [...pattern.endpoints, ...pattern.nodes] : pattern.nodes;
  return table(["endpoint or node", "sends", "gets"], flows.map((flow) => [flow.name, rate(flow.tx_gb_per_s), rate(flow.rx_gb_per_s)]));
}

function nics({ pattern }) {
  return table(["NIC", "sends", "gets", "window full", "socket full", "segments again", "chunks again", "dropped in", "dropped out"],
    pattern.nics.map((nic) => [`node${nic.node} ${nic.name}`, rate(nic.tx_gb_per_s), rate(nic.rx_gb_per_s), percent(nic.window_full_share), percent(nic.socket_full_share),
      nic.retransmits, nic.resent_chunks, nic.rx_dropped, nic.tx_dropped]));
}

function cpus({ pattern }) {
  return table(["CPU", "busy", "user", "system", "irq", "softirq", "NET_RX", "NET_TX", "dropped", "squeezed"],
    pattern.machines.flatMap((machine) => machine.cpus.map((cpu) => [`${machine.host} cpu${cpu.cpu}`,
      ...[cpu.busy_percent, cpu.user_percent, cpu.system_percent, cpu.irq_percent, cpu.softirq_percent].map(showPercent),
      cpu.net_rx, cpu.net_tx, cpu.dropped, cpu.squeezed])));
}

head();
if (shown.length) {
  section("Pairs, nodes, NICs, CPUs", "Point at a pair for its figures. CPUs are shown in percent of the measured time.", chosen(
    [["pattern", shown.map(({ layout, pattern }, index) => [String(index), `${pattern.pattern}, layout ${layout.layout}`])]],
    (index) => {
      const one = shown[Number(index)];
      return element("div", {}, pairs(one), ends(one), nics(one), cpus(one));
    }));
}
document.documentElement.dataset.drawn = String(document.querySelectorAll("svg").length);
